"""The soak itself: submit, harm, look, judge what has ended, and at the end look for leftovers."""

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.sandbox import ClusterError, wait_until
from tests.sandbox.processes import recorded
from tests.soak.faults import Faults
from tests.soak.growth import Growth
from tests.soak.oracle import Ended, judge
from tests.soak.plan import Spec, draw
from tests.support.sandbox import jobs
from tests.support.sandbox.controller_site import Service

ALIVE = 5  # jobs at a time
LOOK_S, FAULT_S, SAMPLE_S = 0.5, 2.5, 5.0
LEFT_S = 40.0  # after its end until nothing of a job may be left
DRAIN_S = 180.0
OVER = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """A job as squeue shows it; `submitted`: of an array the array's number."""

    job_id: int
    submitted: int
    state: str
    nodelist: str


@dataclass
class Soak:
    """One run; `differences` is what it has found."""

    service: Service
    seed: int
    differences: list[str] = field(default_factory=list)
    specs: dict[int, Spec] = field(default_factory=dict)  # by the submitted number
    ended: Counter[str] = field(default_factory=Counter)
    growth: Growth = field(default_factory=Growth)
    _judged: set[int] = field(default_factory=set)
    _over_s: dict[int, float] = field(default_factory=dict)
    _crowded: set[int] = field(default_factory=set)  # that lived while a tmpfs was full
    _complete: set[int] = field(default_factory=set)  # of which a report must be stored
    _next_fault_s: float = 0.0
    _next_sample_s: float = 0.0

    def __post_init__(self) -> None:
        """Take what the cluster has before the first job as what it may have at the end."""
        self.cluster = self.service.cluster
        self.dice = Random(self.seed)  # noqa: S311 - nothing secret
        self.faults = Faults(self.cluster, self.service, Random(self.seed + 1))  # noqa: S311
        self._mounts = self._count_mounts()

    def run(self, seconds: float) -> None:
        """Do it for so long, and then wait for the last job."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            rows = self._look()
            alive = {row.submitted for row in rows if row.state not in OVER}
            if len(alive) < ALIVE:
                spec = draw(self.dice, len(self.specs))
                self.specs[spec.submit(self.cluster)] = spec
            if time.monotonic() > self._next_fault_s:
                self._next_fault_s = time.monotonic() + self.faults.dice.uniform(0.5, 2) * FAULT_S
                self.faults.one([row.job_id for row in rows if row.state == "RUNNING"])
            time.sleep(LOOK_S)
        try:
            wait_until(self._is_over, DRAIN_S, "every job has ended and was judged", LOOK_S)
        except ClusterError as err:
            self._differ(0, str(err))
        self._leftovers()
        self.differences += self.growth.differences()

    def _is_over(self) -> bool:
        rows = self._look()
        return {row.job_id for row in rows} <= self._judged

    def _look(self) -> list[Row]:
        """Judge what has ended meanwhile, take samples, and return the jobs."""
        self.faults.settle()
        if time.monotonic() > self._next_sample_s:
            self._next_sample_s = time.monotonic() + SAMPLE_S
            self._sample()
        rows = self._rows()
        left_over = [row for row in rows if row.job_id not in self._judged]
        if any(self.specs[row.submitted].work == "full tmpfs" for row in left_over):
            self._crowded |= {row.job_id for row in left_over}
        waiting = [row for row in rows if row.state in OVER and row.job_id not in self._judged]
        if waiting:
            left = self._traces()
            for row in waiting:
                since_s = self._over_s.setdefault(row.job_id, time.monotonic())
                if row.job_id in left and time.monotonic() - since_s < LEFT_S:
                    continue
                if row.job_id in left:
                    self._differ(row.job_id, f"left for {LEFT_S:.0f} s: {left[row.job_id][:3]}")
                self._judge(row)
        return rows

    def _rows(self) -> list[Row]:
        argv = ["squeue", "--noheader", "--array", "--states=all", "--format=%A|%F|%T|%N"]
        done = self.cluster.run_as("root", argv)
        found = []
        for line in done.stdout.splitlines():
            words = line.strip().split("|")
            if len(words) == 4 and words[0].isdigit() and int(words[1]) in self.specs:
                found.append(Row(int(words[0]), int(words[1]), words[2], words[3]))
        return found

    def _traces(self) -> dict[int, list[str]]:
        """Return what is left of each job in the run directories."""
        found: dict[int, list[str]] = {}
        for name, node in self.cluster.nodes.items():
            for path in node.run_dir_listing():
                match = re.match(r"(?:jobs|ended|prom)/([0-9]+)[./]", path)
                if match:
                    found.setdefault(int(match[1]), []).append(f"{name}:{path}")
        return found

    def _judge(self, row: Row) -> None:
        self._judged.add(row.job_id)
        spec = self.specs[row.submitted]
        self.ended[f"{spec.work}: {row.state}"] += 1
        text = self.cluster.run_as("root", ["scontrol", "show", "job", str(row.job_id)]).stdout
        restarts = re.search(r"Restarts=(\d+)", text)
        job = Ended(
            row.job_id, spec, row.state, row.nodelist, int(restarts[1]) if restarts else 0,
            frozenset(self.faults.of_job.get(row.job_id, set())), row.job_id in self._crowded,
        )  # fmt: skip
        self.faults.ended(row.job_id)
        if job.is_whole and not job.faults:
            self._complete.add(row.job_id)
        for words in judge(self.cluster, self.service.store, job):
            self._differ(row.job_id, words, spec)

    def _differ(self, job_id: int, words: str, spec: Spec | None = None) -> None:
        faults = ",".join(sorted(self.faults.of_job.get(job_id, set())))
        about = f" {spec.work}/{spec.mode}/{spec.nodes}x{spec.tasks_per_node}" if spec else ""
        said = f"job {job_id}{about}{f' after {faults}' if faults else ''}: {words}"
        self.differences.append(said)
        print(f"DIFFERENCE {ascii(said)[1:-1]}", flush=True)

    def _sample(self) -> None:
        for name, node in self.cluster.nodes.items():
            self.growth.look(f"agent of {name}", node.process("agent"))
        if self.service.process is not None:
            note = self.cluster.layout.root / "pids" / "soak-service"
            pid = _innermost(self.service.process.pid)
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            note.write_text(f"{pid} {words[19]}\n")
            self.growth.look("service", recorded(note))

    def _count_mounts(self) -> dict[str, int]:
        return {
            name: len(node.run(["cat", "/proc/self/mountinfo"]).stdout.splitlines())
            for name, node in self.cluster.nodes.items()
        }

    def _leftovers(self) -> None:
        """Look at everything that must be as it was."""
        if not _in_time(lambda: jobs.run_dirs_are_empty(self.cluster), 60):
            self._differ(0, f"left: {self._traces() or 'what is of no job'}")
        mounts = self._count_mounts()
        if mounts != self._mounts:
            self._differ(0, f"mounts {self._mounts} became {mounts}")
        for name, state in self.cluster.node_states().items():
            if state.drained:
                self._differ(0, f"{name} is drained")
        for name, node in self.cluster.nodes.items():
            if node.process("agent") is None:
                self._differ(0, f"the agent of {name} is dead: {node.agent_log()[-300:]}")
        for process in jobs.tasks(self.cluster):
            self._differ(0, f"a task is left: {process.pid}")
        self._service_leftovers()

    def _service_leftovers(self) -> None:
        if not _in_time(lambda: not self.service.queued(), 90 + self.service.wait_s):
            self._differ(0, f"queued: {self.service.queued()[:5]}")
        for job_id in sorted(self._complete):
            if not (self.service.store / str(job_id) / "0.json").exists():
                said = [line for text in self.faults.said for line in text.splitlines()]
                own = [line for line in said if re.search(rf"\b{job_id}\b", line)]
                failed = sorted(path.name for path in (self.service.folder / "failed").iterdir())
                self._differ(job_id, f"its report is not stored: {own[-2:]}, failed: {failed[:5]}")

    def table(self) -> list[str]:
        """Return the figures of the run."""
        found = [f"{count:>6}  {kind}" for kind, count in sorted(self.ended.items())]
        found += [
            f"{count:>6}  fault: {kind}" for kind, count in sorted(self.faults.counts.items())
        ]
        found += [
            f"{count:>6}  samples of {name}: {first.rss >> 20} to {last.rss >> 20} MiB, "
            f"{first.fds} to {last.fds} descriptors"
            for name, count, first, last in self.growth.rows()
        ]
        found.append(
            f"seed {self.seed}: {len(self._judged)} jobs, "
            f"{sum(self.faults.counts.values())} faults, {len(self.differences)} differences"
        )
        return found


def _in_time(fact: Callable[[], bool], seconds: float) -> bool:
    """Wait for a fact; False when it is none after so long."""
    try:
        wait_until(fact, seconds, "a fact", 1)
    except ClusterError:
        return False
    return True


def _innermost(pid: int) -> int:
    """Return the first Python process of a chain of only children: the others enter namespaces.

    It has children of its own, which come and go.
    """
    while not Path(f"/proc/{pid}/exe").readlink().name.startswith("python"):
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(child)
    return pid
