# SPDX-License-Identifier: Apache-2.0
"""Jobs that hang or crash on the cluster, ended in the ways in which jobs end: what is said first.

Rank 2 is the one behind it in each of them, or the node of ranks 2 and 3.
"""

import json
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.model.card import (
    CRASHED,
    EXIT_CRITICAL,
    EXIT_WARNING,
    HUNG,
    PERHAPS_HUNG,
)
from tests.sandbox import Cluster, Options, wait_until
from tests.support.sandbox import jobs
from tests.support.sandbox.lost_nodes import boot, give_up, lose
from tests.support.sandbox.own_cluster import brought_up

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

LIFECYCLE = "Lifecycle"
RANKS = 4
WHERE = ("-N2", "--ntasks-per-node=2", "--gpus-per-task=1", "--mem=400")
WORDS = ("--ops", "allreduce,allgather", "--sizes", "64K", "--comms", "world", "--steps", "100000")
STOPS = ("--hang", "2:40")
LOST = "n4"
MEMORY = Path("/sys/fs/cgroup/memory")  # cgroup v1: the sandbox has no subtree of a v2 for itself
CGROUP = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\nConstrainSwapSpace=yes\n"


@dataclass(frozen=True)
class Way:
    """How a job of the stand-in `words` ends. `srun`: its options. `sends`: a signal to rank 2.

    `loses`: the node of ranks 2 and 3. `left`: the job is cancelled `cancelled_s` after only so
    many tasks are left; 0: by nobody.
    """

    words: tuple[str, ...]
    srun: tuple[str, ...] = ("--kill-on-bad-exit=1",)
    sends: signal.Signals | None = None
    loses: bool = False
    left: int = 0
    cancelled_s: float = 1.0
    limit: str = ""
    says: tuple[str, ...] = (HUNG,)
    script: str = "srun {}"


# Rank 2 may die while all are in one operation. Then Slurm's own record tells who it was.
DIED = (CRASHED,)
WAYS = {
    # The first one takes longest. It has two nodes of its own, and the others follow each other.
    "a rank hangs until the time limit": Way(
        (*STOPS, "--timeout", "0"), limit="--time=2", says=(PERHAPS_HUNG,)
    ),
    "a rank hangs, a watchdog ends the others, kill-on-bad-exit": Way((*STOPS, "--timeout", "8")),
    "a rank hangs, a watchdog ends the others, it lives on until it is cancelled": Way(
        (*STOPS, "--timeout", "8"), ("--kill-on-bad-exit=0", "--wait=0"),
        left=1, cancelled_s=20, says=(HUNG, PERHAPS_HUNG),
    ),
    "kill -9 of one rank": Way(("--timeout", "0", "--deaf"), sends=signal.SIGKILL, says=DIED),
    "a segmentation fault of one rank": Way(
        ("--timeout", "0", "--deaf"), sends=signal.SIGSEGV, says=DIED
    ),
    "an abort of one rank": Way(("--timeout", "0", "--deaf"), sends=signal.SIGABRT, says=DIED),
    "SIGKILL for one rank, and the script goes on": Way(
        ("--timeout", "0", "--deaf"), sends=signal.SIGKILL, says=DIED, script="srun {}; true",
    ),
    "kill -9 of one rank, and the others wait until they are cancelled": Way(
        ("--timeout", "0", "--deaf"), ("--kill-on-bad-exit=0", "--wait=0"), signal.SIGKILL,
        left=3, cancelled_s=65, says=(CRASHED,),
    ),
    # The last one, because the node is gone then.
    "a node that is lost is named": Way(("--timeout", "0", "--deaf"), loses=True, says=DIED),
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    """The report of a job that has ended: as JSON, as text, and its exit status."""

    report: Any
    text: str
    exit_code: int

    def accused(self) -> set[str]:
        """The ranks, nodes and GPUs in findings that are more than information."""
        return {
            one["name"]
            for finding in self.report["findings"]
            if finding["severity"] != "I"
            for one in finding["entities"]
            if one["kind"] in ("rank", "node", "gpu")
        }


def _send(cluster: Cluster, job_id: int, number: signal.Signals) -> None:
    (task,) = (
        one for one in jobs.tasks_of(cluster, job_id) if b"SLURM_PROCID=2" in jobs.environment(one)
    )
    task.send(number)


def _submit(cluster: Cluster, way: Way, nodes: str = f"n3,{LOST}") -> int:
    return jobs.submit(
        cluster, "--nccl-inspector=report", "--no-requeue", f"--nodelist={nodes}", *WHERE,
        *([way.limit] if way.limit else []),
        script=way.script.format(
            f"{' '.join(way.srun)} {jobs.standin(cluster, *WORDS, *way.words)}"
        ),
    )  # fmt: skip


def _end(cluster: Cluster, way: Way, job_id: int) -> Told:
    if way.sends is not None:
        jobs.wait_for_operations(cluster, job_id, RANKS, 40)
        _send(cluster, job_id, way.sends)
    if way.loses:
        jobs.wait_for_operations(cluster, job_id, RANKS, 40)
        lose(cluster, job_id, LOST)
        give_up(cluster, LOST)
        cluster.wait_for_job(job_id)
        boot(cluster, LOST)
    if way.left:
        wait_until(
            lambda: len(jobs.tasks_of(cluster, job_id)) == way.left,
            60,
            f"{way.left} tasks are left",
        )
        time.sleep(way.cancelled_s)  # so long they wait
        cluster.run_as("root", ["scancel", str(job_id)])
    jobs.finish(cluster, job_id, 200)
    said, text = cluster.report(job_id, "--json"), cluster.report(job_id)
    return Told(json.loads(said.stdout), text.stdout, text.returncode)


def _asked(request: pytest.FixtureRequest) -> list[str]:
    """The ways of which tests of this session ask, in the order of WAYS."""
    names = {
        item.callspec.params.get("name")
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and hasattr(item, "callspec")
    }
    return [name for name in WAYS if name in names]


@pytest.fixture(scope="module")
def told(shared_cluster: Cluster, request: pytest.FixtureRequest) -> Mapping[str, Told]:
    """The jobs that are asked for, run to their ends."""
    cluster, asked = shared_cluster, _asked(request)
    cluster.reset()
    found = {}
    longest = next(iter(WAYS))
    try:
        waiting = _submit(cluster, WAYS[longest], "n[1-2]") if longest in asked else None
        # One after the other: Slurm would look only once a minute whether the next one can start.
        for name in asked:
            if name != longest:
                found[name] = _end(cluster, WAYS[name], _submit(cluster, WAYS[name]))
            # slurmctld forgets a job some minutes after its end.
            if waiting is not None and longest not in found and cluster.job(waiting).finished:
                found[longest] = _end(cluster, WAYS[longest], waiting)
        if waiting is not None and longest not in found:
            found[longest] = _end(cluster, WAYS[longest], waiting)
    finally:
        cluster.reset()
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.case(LIFECYCLE, name)) for name in WAYS],
)
def test_the_first_line_says_what_happened_and_to_whom(told: Mapping[str, Told], name: str) -> None:
    one, way = told[name], WAYS[name]
    verdict = one.report["verdict"]
    assert verdict["status"] in way.says, one.text
    if way.loses:
        assert verdict["summary"].startswith(f"node {LOST} failed, so "), one.text
        assert one.accused() == {LOST}, one.text
    else:
        assert verdict["summary"].startswith("rank 2 ("), one.text
        assert one.accused() == {"rank 2"}, one.text
    assert one.exit_code == (EXIT_WARNING if verdict["status"] == PERHAPS_HUNG else EXIT_CRITICAL)
    assert "nothing in its communication explains that" not in " ".join(one.text.split())


@pytest.mark.skipif(not MEMORY.is_dir(), reason="this machine has no cgroup v1 of memory")
def test_a_rank_that_takes_more_memory_than_its_cgroup_has_is_named(cluster_dir: Path) -> None:
    options = Options(
        monitoring=False,
        slurm_lines=("TaskPlugin=task/cgroup",),
        etc_files=(("cgroup.conf", CGROUP),),
    )
    way = Way(("--timeout", "0", "--deaf", "--eat", "2:40"))
    before = {*MEMORY.glob("slurm*")}
    try:
        with brought_up(cluster_dir, options) as cluster:
            job_id = _submit(cluster, way)
            one = _end(cluster, way, job_id)
            # Slurm says what sent the signal in the job's output, which root opens only if told to.
            output = str(cluster.home() / f"{job_id}.out")
            own = jobs.report(cluster, job_id, "--output", output)
    finally:
        for left in {*MEMORY.glob("slurm*")} - before:  # slurmd leaves its own one
            left.rmdir()
    assert re.search(r"rank 2 \(\S+ GPU0, pid \d+\) was killed \(out of memory\)", own), own
    summary = one.report["verdict"]["summary"]
    assert one.report["verdict"]["status"] == CRASHED, one.text
    assert summary.startswith("rank 2 ("), one.text
    assert one.accused() == {"rank 2"}, one.text
    assert one.exit_code == EXIT_CRITICAL
