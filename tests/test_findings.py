# SPDX-License-Identifier: Apache-2.0
"""Findings about stragglers, hangs and the measurement itself: right words, no made-up figure."""

from dataclasses import replace

import pytest

from nccl_inspector.analysis.blame import describe_hangs, describe_straggler
from nccl_inspector.analysis.coverage import find_coverage
from nccl_inspector.analysis.unmeasured import find_unmeasured
from nccl_inspector.card.model import (
    CRITICAL,
    HANG_VERDICTS,
    HIGH,
    INFO,
    LOW,
    MEDIUM,
    WARNING,
    Evidence,
    Finding,
    Hang,
    Period,
    Straggler,
)
from nccl_inspector.model import DENIED, DISABLED, FINALIZED, KILLED, Process
from tests.boxes import NOW_NS
from tests.synthetic.jobs import flat_job

S = 10**9
LATE = Straggler(
    "rank 17", "n13", "GPU1", 412_000.0, 9.0, 0.83, 80 * 10**9, "host", ("0x5e",), flagged=True,
    member_of=3, confidence=HIGH, windows=40, period=Period(10, 410),
)  # fmt: skip
HANG = Hang("0x5e", 1841, "AllReduce", 1000.0, 2220.0, "divergent", ("rank 0", "rank 1"),
            never_issued=("rank 2",), roots=("rank 2",))  # fmt: skip


def processes_of(*states: str) -> list[Process]:
    """Return processes that ended so, their last beat at the same time."""
    found = flat_job(1, {}, 4, len(states)).processes()
    return [
        replace(one, facts=replace(one.facts, state=state, beat_ns=NOW_NS + 100 * S))
        for one, state in zip(found, states, strict=True)
    ]


def unmeasured(
    processes: list[Process], missing: tuple[str, ...] = (), expected: int | None = None
) -> tuple[Finding, ...]:
    names = [f"rank {number}" for number in range(len(processes))]
    return find_unmeasured(processes, names, find_coverage(processes, names), missing, expected)


def test_a_straggler_says_who_by_how_much_since_when_and_what_to_do() -> None:
    finding = describe_straggler(LATE, (Evidence("counters", "cpu_some", 0.4, "share"),))
    assert finding is not None
    assert finding.title == "rank 17 (n13 GPU1) came late: 412 us at the median"
    assert "in 83% of 40 windows" in finding.detail
    assert finding.period == Period(10, 410)
    assert (finding.severity, finding.confidence) == (WARNING, HIGH)
    assert [one.metric for one in finding.evidence][-1] == "cpu_some"
    assert "data loader" in finding.actions[0]


@pytest.mark.parametrize(
    ("kind", "words", "action"),
    [
        ("gpu", "GPU-late: it called in time, and what it called waited 300 us", "clocks"),
        ("host", "Host-late: it called late, for what it called waited 300 us", "CPUs"),
        ("unknown", "of which its queue and its counters differ: what it called", "its input"),
    ],
)
def test_what_its_gpus_queue_tells_is_said_with_its_figure(
    kind: str, words: str, action: str
) -> None:
    finding = describe_straggler(replace(
        LATE, kind=kind, queued_ns=300_000, peers_queued_ns=20_000, queue_looks=900
    ))  # fmt: skip
    assert finding is not None
    assert words in finding.detail
    assert "for its GPU, its peers' 20" in finding.detail
    (queue,) = (one for one in finding.evidence if "queue" in one.metric)
    assert (queue.source, queue.value, queue.unit, queue.count) == ("boxes", 300_000, "ns", 900)
    assert queue.reference == 20_000
    assert action in finding.actions[0]


def test_the_slowest_alone_is_no_finding() -> None:
    assert describe_straggler(replace(LATE, flagged=False)) is None


def test_a_straggler_without_windows_says_so() -> None:
    finding = describe_straggler(replace(LATE, windows_share=None, windows=0, kind="unknown"))
    assert finding is not None
    assert "no time line says when" in finding.detail
    assert len(finding.evidence) == 1


def test_one_root_is_one_finding_however_many_communicators_stand() -> None:
    others = [replace(HANG, communicator=hex(n), verdict="blocked") for n in range(5)]
    (finding,) = describe_hangs([HANG, *others])
    assert finding.severity == CRITICAL
    assert finding.title == "rank 2 never issued AllReduce 1841 of 0x5e"
    assert "5 other communicators stand behind it" in finding.detail
    assert finding.period == Period(1000.0, 3220.0)


def test_a_hang_that_is_only_suspected_is_no_critical_one() -> None:
    (finding,) = describe_hangs([replace(HANG, confirmed=False)])
    assert (finding.severity, finding.confidence) == (WARNING, LOW)
    assert finding.title.startswith("perhaps hung: ")


@pytest.mark.parametrize("verdict", HANG_VERDICTS)
def test_every_kind_of_hang_has_words_and_something_to_do(verdict: str) -> None:
    (finding,) = describe_hangs([replace(HANG, verdict=verdict)])
    assert " " not in finding.rule
    assert finding.actions[0]


def test_a_rank_that_is_not_measured_is_not_accused_of_anything() -> None:
    hang = replace(HANG, verdict="dead or not measured", never_issued=(), roots=(),
                   not_measured=("rank 5 of world",))  # fmt: skip
    (finding,) = describe_hangs([hang])
    assert "rank 5 of world are not measured and may not have come to" in finding.title
    assert finding.confidence == LOW


def test_the_rank_that_died_first_is_named() -> None:
    processes = processes_of(KILLED, KILLED, KILLED, KILLED)
    for rank, before_s in ((2, 60), (1, 30)):
        facts = replace(processes[rank].facts, beat_ns=NOW_NS + (100 - before_s) * S)
        processes[rank] = replace(processes[rank], facts=facts)
    (finding,) = unmeasured(processes)
    assert finding.severity == CRITICAL
    assert finding.title == "rank 2 died 60 s before the last process, and 1 other"
    assert [one.name for one in finding.entities] == ["rank 2", "rank 1"]


def test_a_job_that_was_killed_as_a_whole_has_nobody_to_blame() -> None:
    (finding,) = unmeasured(processes_of(KILLED, KILLED))
    assert finding.severity == INFO
    assert "cancelled" in finding.detail


def test_ranks_that_left_in_disorder_when_others_ended_are_a_warning() -> None:
    (finding,) = unmeasured(processes_of(KILLED, FINALIZED, FINALIZED))
    assert finding.severity == WARNING
    assert finding.title == "1 process of 3 did not end in order"


def test_a_job_that_ended_well_and_whole_has_nothing_to_say() -> None:
    assert unmeasured(processes_of(FINALIZED, FINALIZED), expected=2) == ()


def test_what_is_missing_is_a_warning_with_its_nodes() -> None:
    (finding,) = unmeasured(processes_of(FINALIZED), missing=("n2", "n3"), expected=3)
    assert finding.title == "no data of 2 ranks and 2 nodes"
    assert [one.name for one in finding.entities] == ["n2", "n3"]


@pytest.mark.parametrize(("lost", "severity"), [(1, WARNING), (0, None)])
def test_drops_are_told_by_their_share(lost: int, severity: str | None) -> None:
    (one,) = processes_of(FINALIZED)
    found = unmeasured([replace(one, dropped=(lost, *one.dropped[1:]))])
    assert [finding.severity for finding in found] == ([severity] if severity else [])


def test_silence_is_told_with_how_long_it_was() -> None:
    one, two = processes_of(FINALIZED, FINALIZED)
    denied = replace(one, facts=replace(one.facts, silent=DENIED, silent_ns=S))
    off = replace(two, facts=replace(two.facts, silent=DISABLED, silent_ns=90 * S))
    found = unmeasured([denied, off])
    assert [(finding.rule, finding.severity) for finding in found] == [
        ("no-times", WARNING), ("silent", INFO),
    ]  # fmt: skip
    assert "For up to 90 s." in found[1].detail
    assert all(finding.confidence in (HIGH, MEDIUM) for finding in found)
