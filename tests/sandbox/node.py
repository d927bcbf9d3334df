"""A compute node: its slurmd, node_exporter and agent, and what a test wants to know of it."""

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox import prometheus, slurm
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import DAEMON_USER, HEAD, REPO, RUN_DIR, Layout
from tests.sandbox.machine import Machine, as_user

AGENT_PROGRAM = "nccl-inspector"


@dataclass(frozen=True, slots=True)
class Node(Machine):
    """One of n1 to n4."""

    def start_slurmd(self) -> None:
        (self.layout.root / "machines" / self.name / "spool").mkdir(exist_ok=True)
        self.start("slurmd", ["slurmd", "-D", "-N", self.name, "-f", str(self.layout.slurm_conf)])

    def start_exporter(self) -> None:
        """node_exporter with the textfile collector only, on the directory that the agent fills."""
        address = self.layout.exporter_url(self.name).removeprefix("http://")
        self.start(
            "node_exporter",
            [*as_user(DAEMON_USER), "prometheus-node-exporter",
             "--collector.disable-defaults", "--collector.textfile",
             f"--collector.textfile.directory={RUN_DIR}/prom", f"--web.listen-address={address}"],
        )  # fmt: skip

    def start_agent(self) -> bool:
        """Start the node agent; False when the program is not installed."""
        program = agent_program(self.layout)
        if program is None:
            return False
        self.start("agent", [str(program), "agent"])
        return True

    def restart_agent(self) -> bool:
        """End the agent, if it runs, and start it with the configuration as it is now."""
        self.stop("agent")
        return self.start_agent()

    def has_its_settings(self) -> bool:
        """Tell whether no agent is still starting: a file changed before is no changed setting."""
        agent = self.process("agent")
        note = self.run(["cat", f"{RUN_DIR}/control/agent.json"]).stdout if agent else ""
        return agent is None or f'"pid": {agent.pid},' in note

    def start_missing(self) -> None:
        """Start those daemons again that the cluster began with and that have ended."""
        options = self.layout.options
        if self.process("slurmd") is None:
            self.start_slurmd()
        if options.monitoring and self.process("node_exporter") is None:
            self.start_exporter()
        if options.agents and self.process("agent") is None:
            self.start_agent()

    def state(self) -> slurm.NodeState:
        """What Slurm thinks of this node."""
        return node_states(self.layout)[self.name]

    def undrain(self) -> None:
        """Give the node back to Slurm; nothing to do when it is not drained."""
        if self.state().drained:
            scontrol(self.layout, "update", f"nodename={self.name}", "state=resume")

    def metrics(self) -> str:
        """The whole answer of node_exporter."""
        return prometheus.get(f"{self.layout.exporter_url(self.name)}/metrics")

    def run_dir_listing(self) -> list[str]:
        """Everything in the node's run directory, relative, sorted; directories end in a slash."""
        argv = ["find", RUN_DIR, "-mindepth", "1", "-printf", "%P%y\\n"]
        done = self.run(argv)
        # A directory that went while find read it: it may have missed others.
        for _ in range(10):
            if "failed to read file names" not in done.stderr:
                break
            done = self.run(argv)
        # What the agent deletes while we look is no error.
        errors = [
            line
            for line in done.stderr.splitlines()
            if f"{RUN_DIR}/" not in line or not line.endswith(": No such file or directory")
        ]
        if errors:
            raise ClusterError(f"{self.name}: {'; '.join(errors)}")
        return sorted(
            f"{line[:-1]}{'/' if line[-1] == 'd' else ''}" for line in done.stdout.splitlines()
        )

    def slurmd_log(self) -> str:
        """slurmd's log; slurmstepd, and the SPANK plugin in it, write there too."""
        return self._read(f"slurmd-{self.name}.log")

    def exporter_log(self) -> str:
        return self.output("node_exporter")

    def agent_log(self) -> str:
        return self.output("agent")


def agent_program(layout: Layout) -> Path | None:
    """The installed command of this interpreter's environment, else of the repository's.

    A tree has another Python, and a command of its own.
    """
    if layout.tree:
        return layout.own_program
    for folder in (Path(sys.executable).parent, REPO / ".venv" / "bin"):
        if (folder / AGENT_PROGRAM).exists():
            return folder / AGENT_PROGRAM
    return None


def scontrol(layout: Layout, *words: str) -> str:
    """What scontrol prints.

    Raises:
        ClusterError: it failed; with its message.
    """
    done = Machine(layout, HEAD).run(["scontrol", *words], timeout=30)
    if done.returncode != 0:
        raise ClusterError(f"scontrol {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def node_states(layout: Layout) -> dict[str, slurm.NodeState]:
    """Every node with what Slurm thinks of it."""
    return slurm.parse_nodes(scontrol(layout, "--oneliner", "show", "node"))
