# SPDX-License-Identifier: Apache-2.0
"""Every way in which a job can stand still, what its report says, and that nothing contradicts it.

The list is that of the page "A job hangs". Each is told from the boxes alone as far as these know;
then NCCL's log and PyTorch's dumps are added, right and wrong ones.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    CRASHED,
    CRITICAL,
    HEALTHY,
    HUNG,
    NO_DATA,
    WARNING,
    Card,
    Period,
)
from nccl_inspector.model.net import Net
from nccl_inspector.model.process import (
    KILLED,
    NS_PER_S,
    Process,
    Union,
    UnionWindow,
)
from nccl_inspector.nccl_log.catalogue import load_catalogue
from nccl_inspector.nccl_log.files import read_logs
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.flight_words import JobDumps, Said
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.report.nccl_words import NcclWords, words_of
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary
from tests.support.boxes import NOW_NS
from tests.support.repository import REPO
from tests.support.summaries import HEAD
from tests.support.synthetic.jobs import Group, Model, flat_job, through_summaries
from tests.support.synthetic.standstill import (
    STOOD_NS,
    SYNC,
    Call,
    in_last_step,
    parallel_programs,
    stood,
)
from tests.unit.nccl_log.made_logs import PLACE
from tests.unit.report.hung_jobs import hung_processes

CUBE = Model(tp=2, dp=2, pp=2)
EVERYBODY = tuple(range(8))
WORLD = Group(7, "world", EVERYBODY)
LIFE_S = 3600


def outside() -> list[Process]:
    """All ended their last operation, and called nothing more."""
    last_s = (NOW_NS - STOOD_NS) // NS_PER_S
    windows = tuple(
        UnionWindow(at_s, 5, 0, NS_PER_S, 0) for at_s in range(last_s - LIFE_S, last_s, 10)
    )
    return [replace(one, unions=(Union(0, 10, windows),)) for one in hung_processes(stops=None)]


def some_inactive() -> list[Process]:
    """Rank 5 stops in a group of tensor parallelism: some groups wait, and some are idle."""
    programs = parallel_programs(CUBE)
    return stood(programs, {5: in_last_step(programs[5], "tp", "AllReduce")})


def did_not_join() -> list[Process]:
    return hung_processes(stops=40)


def one_too_many() -> list[Process]:
    """Rank 5 had a batch more than the others."""
    programs = [[Call(WORLD, "AllReduce", 8)] * 50 for _ in EVERYBODY]
    programs[5] = [*programs[5], programs[5][0]]
    return stood(programs, {})


def blocked() -> list[Process]:
    """Rank 5 called it, and its kernel never begins."""
    programs = parallel_programs(CUBE)
    return stood(programs, {}, {5: in_last_step(programs[5], "dp", "ReduceScatter")})


def mismatched() -> list[Process]:
    programs = parallel_programs(Model(tp=4, dp=2, pp=1))
    number = in_last_step(programs[6], "tp", "AllReduce")
    programs[6][number] = replace(programs[6][number], func="AllGather")
    return stood(programs, {})


def deadlock() -> list[Process]:
    first = [Call(WORLD, "AllReduce", 8), SYNC]
    then = [Call(Group(8, "dp", EVERYBODY), "AllReduce", 8), SYNC]
    return stood([then + first if rank == 2 else first + then for rank in EVERYBODY], {})


def dead() -> list[Process]:
    found = did_not_join()
    early = replace(found[5].facts, beat_ns=NOW_NS - STOOD_NS + 5 * NS_PER_S)
    found[5] = replace(found[5], facts=early, operations=())
    return found


def nobody_comes_out() -> list[Process]:
    found = stood([[Call(WORLD, "AllReduce", 8)]] * 8, {}, dict.fromkeys(EVERYBODY, 0))
    return [
        replace(one, operations=tuple(replace(o, started=1) for o in one.operations))
        for one in found
    ]


def on_the_network() -> list[Process]:
    """Rank 3 has sent nothing on for long, and its peer gave it room."""
    usual, long = NS_PER_S, 1000 * NS_PER_S
    return [
        replace(
            one,
            nets=(Net(0, (rank + 1) % 8, 1, 10, usual, usual, long if rank == 3 else usual, 0),),
        )
        for rank, one in enumerate(nobody_comes_out())
    ]


def node_missing() -> list[Process]:
    """Of one node nothing came back."""
    return [one for one in some_inactive() if one.facts.node != "n2"]


def slow_only() -> list[Process]:
    """A job that works, ended in the middle of operations that are a second old."""
    return [
        replace(one, facts=replace(one.facts, state=KILLED))
        for one in flat_job(1, {}, 200, 4, sampled=True).processes()
    ]


@dataclass(frozen=True)
class Planted:
    """`rule`: of the finding that says what it is; `names`: the ranks it names."""

    make: Callable[[], list[Process]]
    state: str
    status: str
    rule: rules.Rule | None
    names: tuple[str, ...] = ()


PLANTED = {
    "outside of NCCL, or in a setup": Planted(
        outside, "TIMEOUT", CANNOT_TELL, rules.HANG_OUTSIDE
    ),
    "some groups wait, others are idle": Planted(
        some_inactive, "CANCELLED", HUNG, rules.HANG_DIVERGENT, ("rank 5",)
    ),
    "did not join": Planted(
        did_not_join, "CANCELLED", HUNG, rules.HANG_DIVERGENT, ("rank 5",)
    ),
    "one operation too many": Planted(
        one_too_many, "CANCELLED", HUNG, rules.HANG_DIVERGENT, ()
    ),
    "its GPU did not start it": Planted(
        blocked, "CANCELLED", HUNG, rules.HANG_BLOCKED, ("rank 5",)
    ),
    "mismatched": Planted(mismatched, "CANCELLED", HUNG, rules.HANG_MISMATCHED, ("rank 6",)),
    "deadlock": Planted(deadlock, "CANCELLED", HUNG, rules.HANG_DEADLOCK, ("rank 2",)),
    "dead": Planted(dead, "FAILED", CRASHED, rules.HANG_DEAD, ("rank 5",)),
    "network": Planted(on_the_network, "CANCELLED", HUNG, rules.HANG_NETWORK, ("rank 3", "rank 4")),
    "nobody comes out": Planted(nobody_comes_out, "CANCELLED", HUNG, rules.HANG_TRANSPORT),
    "a node is missing": Planted(node_missing, "NODE_FAIL", CRASHED, rules.HANG_NOT_MEASURED),
    "slow, not stuck": Planted(slow_only, "CANCELLED", HEALTHY, None),
    "in its first setup": Planted(list, "CANCELLED", NO_DATA, None),
}  # fmt: skip


def card_of(one: Planted, words: NcclWords | None = None, dumps: JobDumps | None = None) -> Card:
    """Return the report of a job of 8 ranks on two nodes."""
    record = JobRecord(42, state=one.state, end_s=NOW_NS // NS_PER_S, sources=("sacct",))
    summaries = through_summaries(one.make()) or [NodeSummary(replace(HEAD, problems=()), ())]
    loaded = Loaded(tuple(summaries), (0,), ())
    return build_card(loaded, JobContext(record=record, words=words, dumps=dumps))


@pytest.mark.parametrize("name", PLANTED)
def test_each_is_told_by_the_boxes_as_far_as_they_know(name: str) -> None:
    planted = PLANTED[name]
    card = card_of(planted)
    assert card.verdict.status == planted.status, card.verdict
    hangs = [one for one in card.findings if one.rule in rules.ids_about(rules.About.HANG)]
    assert [one.rule for one in hangs] == ([planted.rule.id] if planted.rule else [])
    named = {who.name for one in hangs for who in one.entities if who.kind == "rank"}
    if planted.names:
        assert named == {*planted.names}
    if planted.status in (CANNOT_TELL, HEALTHY, NO_DATA):
        assert not [one for one in card.findings if one.severity == CRITICAL]


def dumps_of(rule: rules.Rule, *roots: str) -> JobDumps:
    said = Said(rule.id, f"{' and '.join(roots)} did it", "At train.py:3.", Period(1, 2), roots)
    return JobDumps("7 of 8 ranks", (said,))


ADDED: Sequence[tuple[str, JobDumps | None]] = (
    ("cascade", None),  # an adapter of rank 5 gave up
    ("one-rank-never-came", dumps_of(rules.FLIGHT_NO_DUMP, "rank 5")),
    ("no-driver", dumps_of(rules.FLIGHT_NOT_CALLED, "rank 1")),
    ("fallback-of-one-node", dumps_of(rules.FLIGHT_DEADLOCK, "rank 0", "rank 1")),
)


@pytest.mark.parametrize("name", PLANTED)
def test_what_others_wrote_is_told_beside_it_and_contradicts_nothing(name: str) -> None:
    planted = PLANTED[name]
    alone = card_of(planted)
    for log, dumps in ADDED:
        card = card_of(planted, words_of(read_logs([PLACE / f"{log}.log"])), dumps)
        said = [one for one in card.findings if one.rule.startswith(("nccl-", "flight-"))]
        assert said
        assert all(one.severity != CRITICAL for one in said)
        assert not [who for one in said for who in one.entities]
        assert [one for one in card.findings if one not in said] == [*alone.findings]
        assert replace(card.verdict, summary="") == replace(alone.verdict, summary="")
        assert card.verdict.summary.startswith(alone.verdict.summary)


def test_who_may_have_called_one_operation_too_many_is_told_without_an_accusation() -> None:
    card = card_of(PLANTED["one operation too many"])
    (hang,) = [one for one in card.findings if one.rule == rules.HANG_DIVERGENT.id]
    assert hang.title == (
        "rank 5 (n2 GPU5, pid 6) waits in AllReduce 51 of world, which 7 others never called"
    )
    assert "either it is one too many, or they stopped" in hang.detail
    assert not [one for one in hang.entities if one.kind == "rank"]


def test_a_rank_that_wrote_no_dump_is_told_as_the_first_suspect_beside_the_measured_one() -> None:
    card = card_of(PLANTED["dead"], dumps=dumps_of(rules.FLIGHT_NO_DUMP, "rank 5"))
    (said,) = [one for one in card.findings if one.rule == rules.FLIGHT_NO_DUMP.id]
    assert said.severity == WARNING
    assert said.detail.endswith("The measurements name the same rank.")


def test_a_setup_that_did_not_end_is_told_from_nccls_log() -> None:
    words = words_of(read_logs([PLACE / "one-rank-never-came.log"]))
    for name in ("outside of NCCL, or in a setup", "in its first setup"):
        card = card_of(PLANTED[name], words)
        (said,) = [one for one in card.findings if one.rule == rules.NCCL_ERROR.id]
        assert "ranks began to set up a communicator and did not finish" in said.title


def test_the_page_has_all_findings_of_a_job_that_stands_still() -> None:
    page = (REPO / "packaging" / "doc" / "hangs.md").read_text()
    found = set(re.findall(r"findings\.md#([a-z-]+)", page))
    assert {rule.id for rule in rules.RULES if rule.about is rules.About.HANG} <= found
    assert {one.rule.id for one in PLANTED.values() if one.rule} <= found
    assert {*re.findall(r" `([a-z]+-[a-z-]+)`", page)} <= {*load_catalogue().rules}
