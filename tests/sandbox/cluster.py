"""The cluster as tests and the demo use it."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from signal import SIGHUP
from typing import Self

from tests.sandbox import config, lifetime, product, prometheus, slurm
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import HEAD, JOB_USER, NODES, Layout, Options, default_root, load
from tests.sandbox.machine import Machine
from tests.sandbox.node import Node, agent_program, node_states, scontrol


class Cluster:
    """A running Slurm of four nodes. It holds no process: several may look at one cluster."""

    def __init__(self, layout: Layout, notes: list[str] | None = None) -> None:
        self.layout = layout
        self.notes = notes or []
        self.head = Machine(layout, HEAD)
        self.nodes = {name: Node(layout, name) for name in NODES}

    @classmethod
    def up(cls, state_dir: Path | None = None, options: Options | None = None) -> Self:
        """Start a cluster and wait until all nodes are idle. Raises ClusterError."""
        return cls(*lifetime.up(state_dir or default_root(), options or Options()))

    @classmethod
    def attach(cls, state_dir: Path | None = None) -> Self:
        """The cluster that already runs there. Raises ClusterError when none does."""
        root = state_dir or default_root()
        layout = load(root)
        if layout is None or not lifetime.runs(layout):
            raise ClusterError(f"no cluster runs in {root}")
        return cls(layout)

    def down(self) -> int:
        """End everything and remove the state directory; returns the number of processes ended."""
        return lifetime.down(self.layout.root)

    def node(self, name: str) -> Node:
        return self.nodes[name]

    # Jobs, from the login side.

    def run_as(
        self,
        user: str,
        argv: list[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login side as `user`, in the user's directory of this cluster."""
        return self.head.run(argv, user=user, env=env, cwd=cwd, stdin=stdin, timeout=timeout)

    def popen_as(
        self, user: str, argv: list[str], *, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command on the login side (a long srun, an salloc); the caller ends it."""
        return self.head.popen(argv, user=user, env=env)

    def home(self, user: str = JOB_USER) -> Path:
        """The user's directory, where jobs write their output."""
        return self.layout.root / "home" / user

    def tool(self, name: str) -> Path:
        """A stand-in (`nccl-standin`, `libcuda.so.1`) where job users can reach it."""
        return self.layout.tools / name

    def report(self, job_id: int, *words: str) -> subprocess.CompletedProcess[str]:
        """What `nccl-inspector report` says of a job. Raises ClusterError without the program."""
        program = agent_program(self.layout)
        if program is None:
            raise ClusterError("nccl-inspector is not installed: make setup")
        argv = [str(program), "report", str(job_id), *words]
        return self.head.run([*argv, "--conf", str(self.layout.product_conf)], user="root")

    def sbatch(
        self,
        *words: str,
        script: str | None = None,
        user: str = JOB_USER,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Submit with these words, the script on stdin if given, and return the job id.

        Raises:
            ClusterError: sbatch refused; with its message.
        """
        argv = ["sbatch", "--parsable", *words]
        done = self.run_as(user, argv, env=env, stdin=script or "")
        if done.returncode != 0:
            raise ClusterError(f"sbatch: exit status {done.returncode}: {done.stderr.strip()}")
        return int(done.stdout.strip().partition(";")[0])

    def job(self, job_id: int) -> slurm.Job:
        """The job as Slurm has it now. Raises ClusterError when Slurm does not know it."""
        return slurm.parse_job(scontrol(self.layout, "--oneliner", "show", "job", str(job_id)))

    def job_state(self, job_id: int) -> str:
        return self.job(job_id).state

    def wait_for_state(self, job_id: int, state: str, timeout: float = 30) -> slurm.Job:
        """Wait until the job is in this state; RUNNING means that its prologs are done.

        Raises:
            ClusterError: it is not after `timeout` seconds.
        """
        job = self.job(job_id)

        def reached() -> bool:
            nonlocal job
            job = self.job(job_id)
            return job.state == state and job.reason != "Prolog"

        try:
            lifetime.wait_until(reached, timeout, f"job {job_id} is {state}", 0.05)
        except ClusterError as err:
            raise ClusterError(f"{err}; it is {job.state}, reason {job.reason}") from err
        return job

    def wait_for_job(self, job_id: int, timeout: float = 60) -> slurm.Job:
        """Wait until the job has ended and its epilogs are done.

        Raises:
            ClusterError: it has not after `timeout` seconds.
        """
        job = self.job(job_id)

        def ended() -> bool:
            nonlocal job
            job = self.job(job_id)
            return job.finished

        try:
            lifetime.wait_until(ended, timeout, f"job {job_id} has ended", 0.1)
        except ClusterError as err:
            raise ClusterError(f"{err}; it is {job.state}, reason {job.reason}") from err
        return job

    def node_states(self) -> dict[str, slurm.NodeState]:
        """Every node with what Slurm thinks of it."""
        return node_states(self.layout)

    def wait_idle(self, timeout: float = 30) -> None:
        """Wait until no node has a job and none is drained. Raises ClusterError."""
        lifetime.wait_until(
            lambda: all(state.idle for state in self.node_states().values()),
            timeout, "all nodes idle", 0.1,
        )  # fmt: skip

    def undrain(self) -> None:
        """Give drained nodes back to Slurm."""
        for node in self.nodes.values():
            node.undrain()

    # Changing it while it runs.

    def install(self) -> None:
        """Build and put the product into place again. Raises ClusterError."""
        product.install(self.layout)
        product.install_tools(self.layout)
        self.set_plugstack(*self.layout.options.plugstack)

    def set_prolog(self, *, on: bool) -> None:
        """With or without the product's prolog and epilog, for hooks that start from now on."""
        product.set_hooks(self.layout, on=on)

    def take_hook(self, kind: str) -> None:
        """Without the product's `prolog` or `epilog`, for hooks that start from now on."""
        product.hook(self.layout, kind).unlink()

    def add_hook(self, kind: str, name: str, script: str | None) -> None:
        """One more script before (`prolog`) or after (`epilog`) every job, after the product's;
        None takes it away.
        """
        path = self.layout.root / "etc" / f"{kind}.d" / name
        if script is None:
            path.unlink(missing_ok=True)
            return
        # Slurm runs whatever is in the directory, so only a complete script may appear there.
        part = self.layout.root / "etc" / f".{name}.part"
        part.write_text(script)
        part.chmod(0o755)
        part.replace(path)

    def set_plugstack(self, *words: str) -> None:
        """The SPANK plugin's words in plugstack.conf, for commands and steps from now on."""
        product.set_plugstack(self.layout, words)

    def set_conf(self, **changes: str) -> None:
        """Write nccl-inspector.conf anew: the sandbox's settings with these changes."""
        self.write_conf(config.product_conf(self.layout, changes))

    def write_conf(self, text: str) -> None:
        """Write any text as nccl-inspector.conf."""
        config.replace_text(self.layout.product_conf, text)

    def set_rules(self, rules: Mapping[str, str]) -> None:
        """Give Prometheus these files of rules, and no others. Raises ClusterError."""
        folder = self.layout.root / "etc" / "rules"
        if {path.stem: path.read_text() for path in folder.iterdir()} == dict(rules):
            return
        for path in folder.iterdir():
            path.unlink()
        for name, text in rules.items():
            (folder / f"{name}.yml").write_text(text)
        process = self.head.process("prometheus")
        if process is None:
            raise ClusterError("Prometheus does not run")
        process.send(SIGHUP)
        lifetime.wait_until(
            lambda: prometheus.rule_files(self.layout.prometheus_url()) == set(rules),
            10, "Prometheus has taken the rules", 0.1,
        )  # fmt: skip

    def reset(self) -> None:
        """As after the start: daemons live, no jobs, nodes idle, hooks and settings as chosen."""
        for node in self.nodes.values():
            node.start_missing()
        for node in self.nodes.values():
            lifetime.wait_until(node.has_its_settings, 15, f"{node.name}'s agent is at work")
        for kind in ("prolog", "epilog"):
            for hook in (self.layout.root / "etc" / f"{kind}.d").iterdir():
                if hook.name != "00-nothing":
                    hook.unlink()
        self.set_prolog(on=self.layout.options.prolog)
        self.set_plugstack(*self.layout.options.plugstack)
        self.set_conf()
        self.set_rules({})
        # Slurm 22.05 may know a task of an array as 12_3 only.
        jobs = self.run_as("root", ["squeue", "--noheader", "--format=%A %i"]).stdout.split()
        if jobs:
            self.run_as("root", ["scancel", *jobs])
        self.undrain()
        self.wait_idle()

    # Asking it.

    def query(self, promql: str, at: float | None = None) -> list[prometheus.Sample]:
        """An instant query to the cluster's Prometheus, now or at a Unix time."""
        return prometheus.query(self.layout.prometheus_url(), promql, at)

    def history(self, selector: str, seconds: int) -> list[prometheus.Sample]:
        """Every sample that Prometheus took of these series in the last `seconds`, stale or not."""
        return prometheus.history(self.layout.prometheus_url(), selector, seconds)

    def slurmctld_log(self) -> str:
        return (self.layout.root / "log" / "slurmctld.log").read_text(errors="replace")
