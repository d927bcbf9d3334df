# SPDX-License-Identifier: Apache-2.0
"""Faults planted in real jobs, and what their report cards say of them: who, and what it was."""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from nccl_inspector.model.card import (
    CRASHED,
    DEGRADED,
    EXIT_CRITICAL,
    EXIT_HEALTHY,
    EXIT_WARNING,
    HEALTHY,
    HUNG,
    NETWORK,
    PERHAPS_HUNG,
    STRAGGLER,
    Card,
)
from nccl_inspector.nccl_log.files import read_logs
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.flight_words import read_job_dumps
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.report.nccl_words import words_of
from nccl_inspector.summary.attempts import load_summaries
from tests.sandbox import JOB_USER, Cluster
from tests.support.repository import REPO
from tests.support.sandbox import jobs

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ALL_NODES = ("-N4", "--ntasks-per-node=2")
TWO_NODES = ("-N2", "--ntasks-per-node=2")
SOME = ("--ops", "allreduce,allgather", "--sizes", "64K", "--seconds", "22")
LONGER = (*SOME[:4], "--seconds", "45")  # what looks at queues tell takes its time
ENDLESS = ("--ops", "allreduce", "--sizes", "64K", "--comms", "world", "--timeout", "0")
CROSSED = ("--ops", "allreduce", "--sizes", "64K", "--comms", "node,world", "--timeout", "0")
# What others write into this job: PyTorch's dumps of a training whose rank 2 did not come, and a
# log of an adapter that gave up, in which rank 5 is the first.
RECORDED = REPO / "tests" / "support" / "recorded_flight_data" / "absent"
LOG = REPO / "tests" / "unit" / "nccl_log" / "logs" / "cascade.log"
WRITTEN = f"""for rank in 0 1 2 3; do
    cp {RECORDED}/comm_lib_trace_rank_$rank nccl-inspector-$SLURM_JOB_ID.0-fr-rank_$rank
done
cat {LOG}
"""
# Twelve windows of ten seconds are what the detector needs; four of them are slow.
WINDOWED = ("--ops", "allreduce,allgather", "--sizes", "256K", "--seconds", "165")
FROM_S, UNTIL_S = 60, 100

PHASES = ("--sizes", "1M,2M", "--compute-ms", "2", "--seconds", "22")

# One after the other: two of them would make each other slow on two cores.
ALONE = {
    # Large enough that what rank 0 does for the others between two operations is nothing beside.
    "healthy": (
        ALL_NODES,
        ("--ops", "allreduce,allgather", "--sizes", "1M", "--seconds", "30",
         "--comms", "node,cross,world"),
    ),
    # Each step is three phases with a barrier that is not NCCL's after each.
    "phases": (ALL_NODES, PHASES),
    "late in phases": (ALL_NODES, (*PHASES, "--slow-rank", "5:40")),
    "slow rank": (ALL_NODES, (*LONGER, "--comms", "node,world", "--slow-rank", "5:40")),
    "slow GPU": (
        ALL_NODES,
        ("--ops", "allreduce", "--sizes", "64K", "--seconds", "75", "--comms", "world",
         "--slow-gpu", "5:40"),
    ),
    # Without a barrier that is not NCCL's: what waits in one is slow by itself.
    "slow node": (
        ALL_NODES,
        (*SOME, "--comms", "half,parity", "--no-barrier", "--throttle", "n3:4"),
    ),
    "slow pair": (
        ALL_NODES,
        ("--ops", "sendrecv", "--sizes", "64K", "--seconds", "22", "--comms", "world",
         "--throttle", "n2+n3:4"),
    ),
}  # fmt: skip
# At once: they wait most of the time, those that hang for longer than the others run.
TOGETHER = {
    "rings only": (
        (*TWO_NODES, "-wn[1-2]"),
        (*WINDOWED, "--comms", "world", "--throttle", f"n2:12:{FROM_S}:{UNTIL_S}"),
    ),
    "window": (
        (*TWO_NODES, "-wn[3-4]"),
        (*WINDOWED, "--comms", "node,world", "--throttle", f"all:12:{FROM_S}:{UNTIL_S}"),
    ),
    "hung": (TWO_NODES, (*ENDLESS, "--steps", "100000", "--hang", "2:20")),
    "mismatched": (TWO_NODES, (*ENDLESS, "--steps", "100000", "--mismatch", "2:20")),
    "crossed": (TWO_NODES, (*CROSSED, "--steps", "100000", "--crossed", "1:20")),
    "killed": (TWO_NODES, (*ENDLESS, "--steps", "100000", "--deaf")),
}


@dataclass(frozen=True)
class Ended:
    """A job that is over, and its card."""

    job_id: int
    state: str
    card: Card
    output: str
    with_words: Card  # with what NCCL and PyTorch wrote, as a user's own report has it

    @property
    def steps_per_s(self) -> float:
        """By the job's own count."""
        return float(self.output.split()[-2])

    @property
    def text(self) -> str:
        """The report as its user sees it."""
        return render_text(self.card)

    def entities(self) -> set[tuple[str, str]]:
        """Who is named in findings that are more than information."""
        return {
            (entity.kind, entity.name)
            for finding in self.card.findings
            if finding.severity != "I"
            for entity in finding.entities
        }


def _submit(cluster: Cluster, where: tuple[str, ...], words: tuple[str, ...]) -> int:
    return jobs.submit(
        cluster, "--nccl-inspector=report", "--gpus-per-task=1", "--mem=400", *where,
        script=f"{WRITTEN if '--hang' in words else ''}srun {jobs.standin(cluster, *words)}",
    )  # fmt: skip


def _end(cluster: Cluster, job_id: int) -> Ended:
    state = jobs.finish(cluster, job_id, 240)
    card = build_card(load_summaries(job_id, cluster.layout.reports, None))
    home = cluster.home(JOB_USER)
    context = JobContext(
        words=words_of(read_logs([home / f"{job_id}.out"])),
        dumps=read_job_dumps(home, job_id, home.stat().st_uid),
    )
    with_words = build_card(load_summaries(job_id, cluster.layout.reports, None), context)
    return Ended(job_id, state, card, jobs.output(cluster, job_id), with_words)


def _kill_rank(cluster: Cluster, job_id: int, rank: int) -> None:
    mark = f"SLURM_PROCID={rank}".encode()
    (task,) = (one for one in jobs.tasks_of(cluster, job_id) if mark in jobs.environment(one))
    task.send(signal.SIGKILL)


@pytest.fixture(scope="module")
def ended(shared_cluster: Cluster) -> Mapping[str, Ended]:
    """All jobs, run to their ends."""
    cluster = shared_cluster
    cluster.reset()
    found = {}
    try:
        for name, (where, words) in ALONE.items():
            found[name] = _end(cluster, _submit(cluster, where, words))
        ids = {name: _submit(cluster, *what) for name, what in TOGETHER.items()}
        jobs.wait_for_operations(cluster, ids["killed"], 4, 20)
        _kill_rank(cluster, ids["killed"], 1)
        # The end of a job takes a core for some seconds, which would make the others slow.
        found |= {name: _end(cluster, ids[name]) for name in ("rings only", "window")}
        for name in ("hung", "mismatched", "crossed", "killed"):
            cluster.run_as("root", ["scancel", str(ids[name])])
            found[name] = _end(cluster, ids[name])
    finally:
        cluster.reset()
    return found


def test_a_healthy_job_is_called_healthy(ended: Mapping[str, Ended]) -> None:
    card = ended["healthy"].card
    assert card.verdict.status == HEALTHY, ended["healthy"].text
    assert card.exit_code == EXIT_HEALTHY, card.findings


def test_a_planted_slow_rank_is_named(ended: Mapping[str, Ended]) -> None:
    card = ended["slow rank"].card
    assert (card.verdict.status, card.verdict.cause) == (DEGRADED, STRAGGLER)
    assert card.stragglers[0].rank == "rank 5"
    assert card.stragglers[0].node == "n3"
    assert card.stragglers[0].kind == "host", ended["slow rank"].text
    # 40 ms late in two operations or three of a step that takes 60 ms without it.
    assert (card.verdict.cost_share or 0.0) > 0.5
    assert card.exit_code == EXIT_CRITICAL


def test_a_late_rank_costs_what_the_same_job_gains_without_it(ended: Mapping[str, Ended]) -> None:
    late = ended["late in phases"]
    truth = 1 - late.steps_per_s / ended["phases"].steps_per_s
    assert late.card.verdict.cost_share == pytest.approx(truth, rel=0.2), late.text
    assert re.search(r"in (9[5-9]|100)% of its gaps", late.card.findings[0].title), late.text


def test_a_rank_whose_gpu_is_slow_is_told_from_one_that_calls_late(
    ended: Mapping[str, Ended],
) -> None:
    card = ended["slow GPU"].card
    assert (card.verdict.status, card.verdict.cause) == (DEGRADED, STRAGGLER)
    assert (card.stragglers[0].rank, card.stragglers[0].kind) == ("rank 5", "gpu"), ended[
        "slow GPU"
    ].text


def test_a_node_with_a_slow_link_is_named_where_some_communicators_leave_it_out(
    ended: Mapping[str, Ended],
) -> None:
    one = ended["slow node"]
    assert (one.card.verdict.status, one.card.verdict.cause) == (DEGRADED, NETWORK), one.text
    assert ("node", "n3") in one.entities()
    assert not {name for kind, name in one.entities() if kind == "node"} - {"n3"}


def test_a_pair_with_a_slow_path_is_named_by_its_sends(ended: Mapping[str, Ended]) -> None:
    one = ended["slow pair"]
    assert (one.card.verdict.status, one.card.verdict.cause) == (DEGRADED, NETWORK), one.text
    assert ("pair", "n2 - n3") in one.entities()


def test_with_rings_over_all_nodes_nobody_is_blamed(ended: Mapping[str, Ended]) -> None:
    one = ended["rings only"]
    assert (one.card.verdict.status, one.card.verdict.cause) == (DEGRADED, NETWORK), one.text
    assert "all network paths" in one.card.verdict.summary
    assert not {kind for kind, _ in one.entities()} & {"node", "pair"}


def test_a_slow_time_is_found_where_it_was(ended: Mapping[str, Ended]) -> None:
    one = ended["window"]
    assert (one.card.verdict.status, one.card.verdict.cause) == (DEGRADED, NETWORK), one.text
    worst = one.card.timeline.degradations[0]
    assert worst.transport == "mixed"
    first = min(line.start_s for line in [one.card.timeline])
    assert abs(worst.period.start_s - first - FROM_S) <= 20
    assert abs(worst.period.end_s - first - UNTIL_S) <= 20
    assert worst.depth < -0.4


def test_a_rank_that_never_calls_is_named(ended: Mapping[str, Ended]) -> None:
    one = ended["hung"]
    # It was cancelled when the operation was a minute and a quarter old, and so was the job.
    assert one.card.verdict.status == PERHAPS_HUNG, one.text
    assert one.card.verdict.summary.startswith("rank 2 ("), one.text
    assert one.card.hangs[0].roots == one.card.hangs[0].never_issued
    assert [name.split(" (")[0] for name in one.card.hangs[0].never_issued] == ["rank 2"]
    assert one.card.exit_code == EXIT_WARNING


def test_what_nccl_and_pytorch_wrote_stands_beside_it_and_changes_nothing(
    ended: Mapping[str, Ended],
) -> None:
    one = ended["hung"]
    text = " ".join(render_text(one.with_words).split())
    assert one.with_words.verdict == one.card.verdict
    assert "PyTorch's flight recorder: rank 2 did not call all_reduce 4" in text
    assert "The measurements name the same rank." in text
    assert "NCCL's log: a network adapter gave up on a peer" in text


def test_a_rank_that_calls_something_else_is_named(ended: Mapping[str, Ended]) -> None:
    one = ended["mismatched"]
    assert one.card.verdict.status == HUNG, one.text
    assert one.card.hangs[0].verdict == "mismatched"
    assert [name.split(" (")[0] for name in one.card.hangs[0].mismatched] == ["rank 2"]


def test_a_rank_that_uses_two_communicators_in_another_order_is_a_deadlock(
    ended: Mapping[str, Ended],
) -> None:
    one = ended["crossed"]
    assert one.card.verdict.status == HUNG, one.text
    hangs = {hang.verdict: hang for hang in one.card.hangs}
    assert "deadlock" in hangs, one.text
    assert "rank 1" in [name.split(" (")[0] for name in hangs["deadlock"].roots]


def test_a_rank_that_was_killed_is_named(ended: Mapping[str, Ended]) -> None:
    one = ended["killed"]
    assert one.card.verdict.status == CRASHED, one.text
    assert "rank 1" in one.card.verdict.summary
    assert one.card.exit_code == EXIT_CRITICAL


def test_every_report_fits_a_terminal_and_has_a_verdict(ended: Mapping[str, Ended]) -> None:
    for one in ended.values():
        lines = one.text.splitlines()
        assert max(map(len, lines)) <= 100
        assert any(line.startswith("VERDICT") for line in lines[:12])
