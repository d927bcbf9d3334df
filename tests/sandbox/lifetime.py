"""Bringing a whole cluster up and taking it down completely."""

import fcntl
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.sandbox import accounting, config, host, product
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import (
    DAEMON_USER,
    DESCRIPTION,
    HEAD,
    JOB_USER,
    NODES,
    OTHER_USER,
    REPORT_USER,
    Layout,
    Options,
    check_reachable,
    check_root,
    load,
    save,
)
from tests.sandbox.machine import Machine, as_user
from tests.sandbox.node import Node, node_states
from tests.sandbox.processes import end_all
from tests.sandbox.prometheus import get

_READY = "ready"
_START_S = 30.0


def up(root: Path, options: Options) -> tuple[Layout, list[str]]:
    """Start a cluster in `root`, clearing first what a crash left there.

    Also returns lines worth telling.

    Raises:
        ClusterError: it already runs, the machine lacks something, or a daemon does not start (then
            all processes are ended; the logs stay until `down` or the next `up`).
    """
    reason = host.missing(monitoring=options.monitoring, accounting=options.accounting)
    if reason:
        raise ClusterError(reason)
    check_root(root)
    check_reachable(root)
    umask = os.umask(0o022)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root):
            return _up_alone(root, options)
    finally:
        os.umask(umask)


def _up_alone(root: Path, options: Options) -> tuple[Layout, list[str]]:
    old = load(root)
    if old is not None and runs(old):
        raise ClusterError(f"already up in {root}: `down` first, or choose another directory")
    if old is not None:
        end_all(old)
        _empty(root)
    root.chmod(0o755)
    layout = host.choose_layout(root, options)
    save(layout)
    try:
        return layout, _start(layout)
    except BaseException:
        end_all(layout)
        raise


def down(root: Path) -> int:
    """End every process of the cluster in `root` and remove the directory.

    Returns how many processes there were; 0 also where there is no cluster.

    Raises:
        ClusterError: the directory is not a cluster's, or processes do not die.
    """
    check_root(root)
    if not root.exists():
        return 0
    with _alone(root):
        layout = load(root)
        count = 0 if layout is None else end_all(layout)
        _empty(root)
        root.rmdir()
    return count


def runs(layout: Layout) -> bool:
    """True when a start was completed and its machines and controller still live."""
    machines = [Machine(layout, name) for name in (HEAD, *NODES)]
    return (
        (layout.root / _READY).exists()
        and all(machine.exists for machine in machines)
        and machines[0].process("slurmctld") is not None
    )


def wait_until(fact: Callable[[], bool], timeout: float, what: str, pause: float = 0.02) -> None:
    """Look every `pause` seconds until `fact` holds.

    Raises:
        ClusterError: it did not hold within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not fact():
        if time.monotonic() > deadline:
            raise ClusterError(f"after {timeout:g} s still not: {what}")
        time.sleep(pause)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Only one start or stop at a time in one state directory."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as err:
        raise ClusterError(f"another up or down is at work in {root}") from err
    finally:
        os.close(handle)


def _empty(root: Path) -> None:
    """Delete what is in the state directory, last the description that says that it is ours."""
    for entry in sorted(root.iterdir(), key=lambda entry: entry.name == DESCRIPTION):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _start(layout: Layout) -> list[str]:
    notes = []
    made = host.make_accounts()
    if made:
        notes.append(f"created the accounts {', '.join(made)}; they stay (userdel removes them)")
    _make_directories(layout)
    config.write_all(layout)
    product.install(layout)
    product.install_tools(layout)
    product.set_plugstack(layout, layout.options.plugstack)
    product.set_hooks(layout, on=layout.options.prolog)
    for name in (HEAD, *NODES):
        Machine(layout, name).make()
    _start_slurm(layout)
    if layout.options.monitoring:
        _start_monitoring(layout)
    if layout.options.agents and not all(Node(layout, name).start_agent() for name in NODES):
        notes.append("no nccl-inspector command in the virtual environment, so no agents")
    _wait_ready(layout)
    notes += [f"{service} ended: {words}" for service, words in _ended_services(layout)]
    (layout.root / _READY).touch()
    return notes


def _make_directories(layout: Layout) -> None:
    root = layout.root
    for name in ("etc", "home", "log", "pids", "run", "slurmctld", "root/usr/lib/nccl-inspector"):
        (root / name).mkdir(parents=True)
    host.own(layout.reports, REPORT_USER, 0o711)
    for user in (JOB_USER, OTHER_USER):
        host.own(root / "home" / user, user, 0o700)


def _start_slurm(layout: Layout) -> None:
    root, head = layout.root, Machine(layout, HEAD)
    head.start(
        "munged",
        ["munged", "--foreground", "--force", f"--key-file={root}/etc/munge.key",
         f"--socket={layout.munge_socket}", f"--pid-file={root}/run/munged.pid",
         f"--log-file={root}/log/munged.log", f"--seed-file={root}/run/munge.seed"],
    )  # fmt: skip
    wait_until(layout.munge_socket.exists, _START_S, "munged answers", 0.005)
    if layout.options.accounting:
        _start_accounting(layout)
    head.start("slurmctld", ["slurmctld", "-D", "-f", str(layout.slurm_conf)])
    # A slurmd that finds no controller tries again only after a second.
    address = (layout.address(HEAD), layout.slurmctld_port())
    wait_until(lambda: _listens(layout, address), _START_S, "slurmctld listens", 0.005)
    for name in NODES:
        Node(layout, name).start_slurmd()


def _start_accounting(layout: Layout) -> None:
    accounting.start_mariadb(layout)

    def answers() -> bool:
        _check_daemons(layout)
        return accounting.mariadb_answers(layout)

    wait_until(answers, _START_S, "MariaDB answers")
    accounting.start_slurmdbd(layout)
    address = layout.address(HEAD), layout.slurmdbd_port()
    wait_until(lambda: _listens(layout, address), _START_S, "slurmdbd listens")


def _listens(layout: Layout, address: tuple[str, int]) -> bool:
    _check_daemons(layout)
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def _start_monitoring(layout: Layout) -> None:
    for name in NODES:
        Node(layout, name).start_exporter()
    start_prometheus(layout)


def start_prometheus(layout: Layout) -> None:
    """Start Prometheus, on what it has stored if it ran before."""
    host.own(layout.root / "prometheus", DAEMON_USER, 0o755)
    address = layout.prometheus_url().removeprefix("http://")
    Machine(layout, HEAD).start(
        "prometheus",
        [*as_user(DAEMON_USER), "prometheus", f"--config.file={layout.root}/etc/prometheus.yml",
         f"--storage.tsdb.path={layout.root}/prometheus", f"--web.listen-address={address}",
         "--storage.tsdb.retention.time=1d"],
    )  # fmt: skip


def _wait_ready(layout: Layout) -> None:
    """All nodes idle, agents at work, Prometheus ready. Raises ClusterError when a daemon died."""

    def all_idle() -> bool:
        _check_daemons(layout)
        try:
            states = node_states(layout)
        except ClusterError:  # slurmctld is not there yet
            return False
        return set(states) == set(NODES) and all(state.idle for state in states.values())

    def answers() -> bool:
        _check_daemons(layout)
        try:
            return bool(get(f"{layout.prometheus_url()}/-/ready"))
        except ClusterError:
            return False

    wait_until(all_idle, _START_S, f"all nodes idle (logs in {layout.root}/log)")
    for name in NODES:
        wait_until(Node(layout, name).has_its_settings, _START_S, f"{name}'s agent is at work")
    if layout.options.monitoring:
        wait_until(answers, _START_S, "Prometheus is ready")


def _ended_services(layout: Layout) -> Iterator[tuple[str, str]]:
    """Each daemon that was started and does not live any more, with the last it printed."""
    for name in (HEAD, *NODES):
        machine = Machine(layout, name)
        for note in (layout.root / "pids").glob(f"*-{name}"):
            service = note.name.removesuffix(f"-{name}")
            if machine.process(service) is None:
                lines = machine.output(service).strip().splitlines() or ["it printed nothing"]
                yield note.name, "; ".join(lines[-2:])


def _check_daemons(layout: Layout) -> None:
    """Raises ClusterError when one ended, unless it is an agent: Slurm works without."""
    for service, words in _ended_services(layout):
        if not service.startswith("agent-"):
            raise ClusterError(f"{service} ended: {words}")
