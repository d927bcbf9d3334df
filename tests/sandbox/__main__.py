"""The cluster by hand: python -m tests.sandbox up|down|status|shell|env|tree."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.sandbox import given, lifetime
from tests.sandbox.cluster import Cluster
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import JOB_USER, Options, default_root


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    helps = {
        "up": "start it",
        "down": "end it completely",
        "status": "nodes, daemons and addresses; exit status 3 when it is not up",
        "shell": "a shell on its login side",
        "env": "what to export to use it from any shell",
    }
    trees = commands.add_parser("tree", help="make the trees of other Slurm releases")
    trees.add_argument("suite", nargs="*", default=given.releases(), help="of Debian")
    for name, text in helps.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--dir", type=Path, default=None, help="state directory")
        if name == "up":
            for part in ("prolog", "agents", "monitoring"):
                command.add_argument(f"--no-{part}", dest=part, action="store_false")
            command.add_argument("--tree", help="the Debian suite whose Slurm runs")
            command.add_argument(
                "--plugstack", action="append", default=[], metavar="WORD", help="for the plugin"
            )
        if name == "shell":
            command.add_argument("--user", default=JOB_USER)
            command.add_argument("argv", nargs="*", help="a command instead of a shell")
    return parser


def _up(root: Path, words: argparse.Namespace) -> int:
    begun = time.monotonic()
    options = Options(words.prolog, words.agents, words.monitoring, tuple(words.plugstack))
    if words.tree:
        options = replace(options, tree=words.tree)
    cluster = Cluster.up(root, options)
    for note in cluster.notes:
        print(f"note: {note}")
    print(f"up in {time.monotonic() - begun:.1f} s: {root}")
    return _status(cluster)


def _status(cluster: Cluster) -> int:
    row = "{:<5} {:<14} {:<12} {:<8} {:<8} {}"
    print(row.format("node", "address", "slurm", "slurmd", "agent", "metrics"))
    states = cluster.node_states()
    for name, node in cluster.nodes.items():
        lives = ["yes" if node.process(service) else "no" for service in ("slurmd", "agent")]
        exporter = node.process("node_exporter")
        url = f"{cluster.layout.exporter_url(name)}/metrics" if exporter else "no node_exporter"
        flags = "+".join(sorted(states[name].flags))
        print(row.format(name, cluster.layout.address(name), flags, *lives, url))
        if states[name].reason:
            print(f"      {states[name].reason}")
    if cluster.head.process("prometheus"):
        print(f"Prometheus: {cluster.layout.prometheus_url()}")
    print(f"Slurm {cluster.layout.slurm}")
    print(f"SLURM_CONF={cluster.layout.slurm_conf}")
    return 0


def _shell(cluster: Cluster, words: argparse.Namespace) -> int:
    argv = words.argv or [os.environ.get("SHELL", "/bin/bash"), "-i"]
    extra = {"TERM": os.environ.get("TERM", "dumb")}
    line = cluster.head.argv(argv, user=words.user, env=extra)
    sys.stdout.flush()
    os.execvp(line[0], line)  # noqa: S606 - no shell in between is the point


def _trees(suites: Sequence[str]) -> int:
    """Make the trees at once, a line about each; exit status 1 when one is not available."""
    with ThreadPoolExecutor(len(suites)) as pool:
        return 0 if all(list(pool.map(_tree, suites))) else 1


def _tree(suite: str) -> bool:
    begun = time.monotonic()
    try:
        made = given.release(suite)
    except ClusterError as err:
        print(f"cluster: {err}", file=sys.stderr)
        return False
    print(f"{suite}: Slurm {made.slurm} in {made.root} ({time.monotonic() - begun:.0f} s)")
    return True


def _run(words: argparse.Namespace) -> int:
    if words.command == "tree":
        return _trees(words.suite)
    root = words.dir or default_root()
    if words.command == "up":
        return _up(root, words)
    if words.command == "down":
        there = root.exists()
        count = lifetime.down(root)
        print(f"down: ended {count} processes, removed {root}" if there else f"nothing in {root}")
        return 0
    try:
        cluster = Cluster.attach(root)
    except ClusterError as err:
        print(f"{err}", file=sys.stderr)
        return 3
    if words.command == "status":
        return _status(cluster)
    if words.command == "shell":
        return _shell(cluster, words)
    print(f"export SLURM_CONF={cluster.layout.slurm_conf}")
    print(f"export NCCL_INSPECTOR_CLUSTER_DIR={root}")
    return 0


def main() -> int:
    """The exit status: 0, 1 with one line on stderr, or 3 when no cluster is up."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `status | head` is no error
    try:
        return _run(_parser().parse_args())
    except ClusterError as err:
        print(f"cluster: {err}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
