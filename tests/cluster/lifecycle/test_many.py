"""Two hundred short jobs at once, killed at random: nothing is left, and nothing is counted wrong.

The seed is printed when the test fails; $NCCL_INSPECTOR_SEED repeats it (what is killed when
depends on the machine's speed too).
"""

import os
import random
import secrets
import signal
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER, NODES, Cluster, ClusterError, wait_until
from tests.sandbox.layout import HEAD
from tests.sandbox.processes import Process, members
from tests.support.sandbox import jobs
from tests.support.sandbox.checks import assert_exporter_is_well, operations

JOBS = 200
SMALL = ("--sizes", "16K", "--comms", "world", "--ops", "allreduce,allgather,reducescatter")
OPERATIONS_OF_STEP = 3
MEASURED = ("prom", "report")
ENDS_S = 100
# Else the others would wait a minute for a rank that was killed before they met.
KILL_ALL = "--kill-on-bad-exit=1"
PAUSE_S = 0.1  # between two kills
# How often each is killed at most: a dead slurmstepd or agent costs more than a dead task.
MOST = {"scancel": 40, "task": 25, "slurmstepd": 4, "agent": 6}
AGAIN_S = 5
PROGRAMS = {jobs.STANDIN, "sleep", "sh", "slurm_script"}


@dataclass(frozen=True, kw_only=True)
class Spec(jobs.Spec):
    """One command that makes one job, or an array of them. `work`: standin, true or sleep 0.1."""

    command: str  # sbatch or srun

    @property
    def measured(self) -> bool:
        return self.work == "standin" and self.mode in MEASURED

    def argv(self) -> list[str]:
        """The words behind sbatch or srun."""
        return [*self.words(), "--mem=800"]

    def line(self, cluster: Cluster) -> str:
        """What each task runs."""
        if self.work != "standin":
            return self.work
        return jobs.standin(cluster, "--steps", str(self.steps), *SMALL)


def draw(dice: random.Random, number: int, most: int) -> Spec:
    """A random command that makes at most `most` jobs."""
    command = dice.choices(("sbatch", "srun"), (4, 1))[0]
    is_array = command == "sbatch" and dice.random() < 0.1
    return Spec(
        name=f"many-{number}",
        command=command,
        work=dice.choices(("standin", "true", "sleep 0.1"), (6, 2, 2))[0],
        mode=dice.choices(("prom", "report", "off", ""), (4, 3, 2, 1))[0],
        nodes=dice.choices((1, 2, 3, 4), (4, 3, 1, 2))[0],
        tasks_per_node=dice.choice((1, 2)),
        tasks_of_array=min(most, dice.randint(2, 4)) if is_array else 1,
        steps=dice.randint(1, 3),
    )


def is_task(process: Process) -> bool:
    """A batch script or a program of a step, and neither Slurm's nor the machine's own."""
    folder = Path(f"/proc/{process.pid}")
    try:
        return folder.owner() == JOB_USER and (folder / "comm").read_text().strip() in PROGRAMS
    except OSError:  # gone meanwhile
        return False


@dataclass(frozen=True)
class Row:
    """A job as squeue shows it."""

    job_id: int
    label: str  # 12_3 of a task of an array: Slurm 22.05 may not know its number in scancel
    name: str
    state: str


@dataclass
class Crowd:
    """The jobs, and who kills them."""

    cluster: Cluster
    dice: random.Random
    specs: dict[str, Spec] = field(default_factory=dict)
    sruns: list[subprocess.Popen[str]] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    orphaned: dict[int, float] = field(default_factory=dict)  # job: when to cancel it
    next_kill: float = 0

    def submit(self, spec: Spec) -> None:
        cluster, env = self.cluster, jobs.fake_gpus(self.cluster)
        self.specs[spec.name] = spec
        if spec.command == "srun":
            argv = ["srun", KILL_ALL, *spec.argv(), "sh", "-c", spec.line(cluster)]
            self.sruns.append(cluster.popen_as(JOB_USER, argv, env=env))
        else:
            jobs.submit(cluster, *spec.argv(), script=f"srun {KILL_ALL} {spec.line(cluster)}")

    def rows(self, *words: str) -> list[Row]:
        argv = ["squeue", "--noheader", "--array", "--format=%A|%i|%j|%T", *words]
        found = self.cluster.run_as("root", argv)
        assert found.returncode == 0, found.stderr
        # Other tests' jobs have names with newlines: what is no row of ours is passed over.
        parts = (line.strip().split("|") for line in found.stdout.splitlines())
        ours = (words for words in parts if len(words) == 4 and words[2] in self.specs)
        return [Row(int(job), *rest) for job, *rest in ours]

    def states(self) -> dict[str, int]:
        return dict(Counter(row.state for row in self.rows("--states=all")))

    def harm(self) -> None:
        """Kill something, now and then."""
        now = time.monotonic()
        late = {job for job, due in self.orphaned.items() if now > due}
        # Slurm waits for such a step until somebody cancels the job.
        for row in self.rows() if late else ():
            if row.job_id in late:
                self.cluster.run_as("root", ["scancel", row.label])
        self.orphaned |= dict.fromkeys(late, now + AGAIN_S)
        if now < self.next_kill:
            return
        kind = self.dice.choices(tuple(MOST), (3, 12, 1, 1))[0]
        if self.kills[kind] < MOST[kind] and self.kill(kind):
            self.kills[kind] += 1
            self.next_kill = now + PAUSE_S

    def kill(self, kind: str) -> bool:
        """False when there was nothing to kill."""
        if kind == "scancel":
            running = self.rows()
            if running:
                self.cluster.run_as("root", ["scancel", self.dice.choice(running).label])
            return bool(running)
        if kind == "agent":
            node = self.cluster.node(self.dice.choice(NODES))
            return node.stop("agent", signal.SIGKILL) and node.start_agent()
        if kind == "task":
            tasks = self.tasks()
            for process in tasks and [self.dice.choice(tasks)]:
                process.send(signal.SIGKILL)
            return bool(tasks)
        stepds = self.stepds()
        for process, job in stepds and [self.dice.choice(stepds)]:
            process.send(signal.SIGKILL)
            self.orphaned[job] = time.monotonic() + 1
        return bool(stepds)

    def tasks(self) -> list[Process]:
        found = members(self.cluster.layout)
        return [one for one, machine in found.items() if machine != HEAD and is_task(one)]

    def stepds(self) -> list[tuple[Process, int]]:
        """The slurmstepd processes with the job of each."""
        found = []
        for process in members(self.cluster.layout):
            words = jobs.command_line(process)
            if words.startswith("slurmstepd: ["):
                job = words.removeprefix("slurmstepd: [").partition(".")[0]
                found.append((process, int(job)))
        return found

    def run(self) -> None:
        """Submit them all, kill meanwhile, and wait for the last."""
        left = JOBS
        while left:
            spec = draw(self.dice, len(self.specs), left)
            self.submit(spec)
            self.harm()
            left -= spec.tasks_of_array
        print(f"all submitted, not ended: {len(self.rows())}")

        def ended() -> bool:
            self.harm()
            return all(one.poll() is not None for one in self.sruns) and not self.rows()

        try:
            wait_until(ended, ENDS_S, "every job has ended", 0.1)
        except ClusterError as err:
            stuck = [(row, self.specs[row.name]) for row in self.rows()]
            log = self.cluster.slurmctld_log().splitlines()
            said = [line for line in log for row, _ in stuck if f"JobId={row.job_id} " in line]
            print("\n".join(said), f"without slurmstepd: {list(self.orphaned)}", sep="\n")
            raise ClusterError(f"{err}: {stuck}") from err
        for srun in self.sruns:
            srun.communicate(timeout=10)


def lines(path: Path) -> int:
    """Whole lines of a file; 0 when there is none."""
    return path.read_text().count("\n") if path.exists() else 0


def assert_complete(crowd: Crowd, row: Row) -> None:
    """The stand-in ran to its end: every node has handed over, every operation is there."""
    cluster, spec = crowd.cluster, crowd.specs[row.name]
    assert len(jobs.summaries(cluster, row.job_id)) == spec.nodes, row
    measured = {
        rank: counts.total() for rank, counts in operations(cluster, row.job_id).items()
    }  # fmt: skip
    logs = jobs.oplog(cluster, row.job_id)
    ranks = range(spec.nodes * spec.tasks_per_node)
    assert measured == {rank: lines(logs / f"{rank}.jsonl") for rank in ranks}, row
    each = spec.steps * OPERATIONS_OF_STEP if len(ranks) > 1 else 0  # alone it has nothing to say
    assert set(measured.values()) == {each}, row


def assert_nothing_made_up(crowd: Crowd, row: Row) -> None:
    """Of a killed job: what its tasks did before, and no more."""
    logs = jobs.oplog(crowd.cluster, row.job_id)
    for rank, counts in operations(crowd.cluster, row.job_id).items():
        logged = lines(logs / f"{rank}.jsonl")
        # The profiler hears of an operation before the application logs it.
        assert logged <= counts.total() <= logged + 1, (row, rank)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.case("Lifecycle", "200 short jobs of up to 4 nodes and random kills")
def test_of_two_hundred_jobs_with_random_kills_nothing_is_left_or_lost(
    healthy_cluster: Cluster,
) -> None:
    cluster = healthy_cluster
    seed = int(os.environ.get("NCCL_INSPECTOR_SEED") or secrets.randbits(32))
    print(f"NCCL_INSPECTOR_SEED={seed}")
    empty = lambda: jobs.run_dirs_are_empty(cluster)  # noqa: E731
    wait_until(empty, 20, "agents at work, nothing of earlier jobs", 0.2)
    crowd = Crowd(cluster, random.Random(seed))  # noqa: S311 - nothing secret
    began = time.monotonic()
    try:
        crowd.run()
    finally:
        print("killed:", dict(crowd.kills), "states:", crowd.states())
    cluster.wait_idle(60)
    print(f"all ended after {time.monotonic() - began:.0f} s")
    wait_until(empty, 30, "nothing of any job on any node", 0.2)

    rows = crowd.rows("--states=all")
    assert {row.name for row in rows} == set(crowd.specs)
    complete = 0
    for row in rows:
        spec = crowd.specs[row.name]
        if not spec.measured:
            assert jobs.summaries(cluster, row.job_id) == {}, row
        elif row.state == "COMPLETED":
            assert_complete(crowd, row)
            complete += 1
        elif row.job_id not in crowd.orphaned:
            assert_nothing_made_up(crowd, row)
    print(f"measured to their end: {complete}")
    assert complete >= JOBS // 10
    assert crowd.kills["task"] >= 5
    assert crowd.kills.keys() == MOST.keys(), "each kind of kill has happened"
    assert not any(state.drained for state in cluster.node_states().values())
    for node in cluster.nodes.values():
        assert node.process("agent"), "alive"
        assert_exporter_is_well(node)
