# SPDX-License-Identifier: Apache-2.0
"""What the first line of a report says of a job that hung or crashed, and that all else agrees."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CANNOT_TELL,
    CRASHED,
    CRITICAL,
    EXIT_CRITICAL,
    EXIT_HEALTHY,
    EXIT_NO_DATA,
    EXIT_WARNING,
    FAILED,
    HEALTHY,
    HUNG,
    INFO,
    PERHAPS_HUNG,
    Card,
)
from nccl_inspector.model.process import NS_PER_S
from nccl_inspector.render.comment import make_comment, read_comment
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.summary.attempts import Loaded
from tests.support.boxes import NOW_NS, fixed_chance
from tests.support.marks import long_but
from tests.support.synthetic.jobs import through_summaries
from tests.unit.report.hung_jobs import LARGE, ONSET_NS, PROGRAMS, End, data_parallel, ended, ring

NOBODY = ""
_HANGS = rules.ids_about(rules.About.HANG)


@dataclass(frozen=True)
class Slurm:
    """What Slurm, or `nccl-inspector run`, knows of the end.

    `after_s`: when Slurm began to end the job, in s after the culprits called nothing more.
    """

    state: str
    exit_code: int | None = None
    signal: int | None = None
    after_s: int | None = None


@dataclass(frozen=True)
class Planted:
    """A job that ended in some way, and what its report has to say first."""

    end: End
    slurm: Slurm | None
    status: frozenset[str]


FOR_SURE, SUSPECT, CRASH = frozenset({HUNG}), frozenset({HUNG, PERHAPS_HUNG}), frozenset({CRASHED})
NO_RECORD = None
# The culprit of a hang is the last that is alive, and that of a crash the first that falls silent.
WATCHDOG_5, WATCHDOG_25, WATCHDOG_70 = (End((s, s + 2.0), s + 3.0) for s in (6.0, 25.0, 70.0))
KILLED_NINE = End((0.3, 1.2), 0.0)
PLANTED = {
    "hang, scancel after 2 min": Planted(
        End((120, 121), 120), Slurm("CANCELLED", 0, 15), SUSPECT),
    "hang, time limit after 2 min": Planted(End((120, 121), 120), Slurm("TIMEOUT", 0), SUSPECT),
    "hang, scancel after 6 min": Planted(End((360, 361), 361), Slurm("CANCELLED"), FOR_SURE),
    "hang, watchdog of 70 s, culprit lives on until scancel": Planted(
        End((70, 72), 200), Slurm("CANCELLED", 0, 15), SUSPECT),
    "hang, watchdog of 8 s, culprit lives on until scancel": Planted(
        End((8, 10), 61), Slurm("CANCELLED", 0, 15, 60), SUSPECT),
    "hang, watchdog of 8 s, culprit lives on until the time limit": Planted(
        End((8, 40), 3600), Slurm("TIMEOUT", 0, None, 3600), SUSPECT),
    "hang, watchdog of 70 s, no record": Planted(End((70, 119), 119), NO_RECORD, SUSPECT),
    "hang, watchdog of 70 s, kill-on-bad-exit": Planted(
        WATCHDOG_70, Slurm("FAILED", 143), FOR_SURE),
    "hang, watchdog of 70 s, exit code of the watchdog": Planted(
        WATCHDOG_70, Slurm("FAILED", 134), FOR_SURE),
    "hang, watchdog of 25 s, kill-on-bad-exit": Planted(
        WATCHDOG_25, Slurm("FAILED", 143), FOR_SURE),
    "hang, watchdog of 25 s, exit code 1": Planted(WATCHDOG_25, Slurm("FAILED", 1), FOR_SURE),
    "hang, watchdog of 5 s, exit code 1": Planted(WATCHDOG_5, Slurm("FAILED", 1), FOR_SURE),
    "hang, watchdog of 25 s under run, 49 s apart": Planted(
        End((25, 26), 75), Slurm("FAILED", 1), FOR_SURE),
    "hang, watchdog of 25 s, victims 30 s apart, no record": Planted(
        End((25, 55), 75), NO_RECORD, SUSPECT),
    "hang, the script hides the failure": Planted(WATCHDOG_25, Slurm("COMPLETED", 0), SUSPECT),
    "hang, the rest ended 15 min after the first": Planted(
        End((600, 900), 1000), Slurm("FAILED", 1), FOR_SURE),
    "kill -9, kill-on-bad-exit": Planted(KILLED_NINE, Slurm("FAILED", 143), CRASH),
    "kill -9, exit code 137": Planted(KILLED_NINE, Slurm("FAILED", 137), CRASH),
    "out of memory": Planted(KILLED_NINE, Slurm("OUT_OF_MEMORY", 0, 125), CRASH),
    "segmentation fault": Planted(KILLED_NINE, Slurm("FAILED", 139), CRASH),
    "an exception": Planted(
        replace(KILLED_NINE, states={1: "exited"}), Slurm("FAILED", 1), CRASH),
    "kill -9, ended by watchdog after 40 s": Planted(
        End((40, 42), 0.0), Slurm("FAILED", 134), CRASH),
    "kill -9, nobody ended the rest until the time limit": Planted(
        End((700, 701), 0.0), Slurm("TIMEOUT"), CRASH),
    "kill -9, no record, the rest lived on for long": Planted(
        End((700, 701), 0.0), NO_RECORD, CRASH),
}  # fmt: skip


def card_of(kind: str, planted: Planted, seed: int = 0) -> Card:
    processes = ended(PROGRAMS[kind](), planted.end, seed)
    return reported(processes, planted.slurm)


def reported(processes: list, slurm: Slurm | None) -> Card:  # type: ignore[type-arg]
    record = None
    if slurm is not None:
        end_s = None if slurm.after_s is None else ONSET_NS // NS_PER_S + slurm.after_s
        record = JobRecord(42, state=slurm.state, exit_code=slurm.exit_code, signal=slurm.signal,
                           end_s=end_s, sources=("sacct",))  # fmt: skip
    loaded = Loaded(tuple(through_summaries(processes)), (0,), ())
    return build_card(loaded, JobContext(record=record))


def named(card: Card) -> set[str]:
    """Return the ranks that the report accuses."""
    return {
        one.name
        for finding in card.findings
        if finding.severity != INFO
        for one in finding.entities
        if one.kind in ("rank", "node", "gpu")
    }


def assert_agrees(card: Card) -> None:
    """Verdict, findings, the table of hangs, exit status and comment say the same."""
    verdict = card.verdict
    hang = next((one for one in card.findings if one.rule in _HANGS), None)
    status = {
        HUNG: EXIT_CRITICAL, CRASHED: EXIT_CRITICAL, PERHAPS_HUNG: EXIT_WARNING,
        HEALTHY: EXIT_HEALTHY, CANNOT_TELL: EXIT_NO_DATA,
    }  # fmt: skip
    if verdict.status in status:
        assert card.exit_code == status[verdict.status]
    if verdict.status == FAILED:
        assert card.exit_code in (EXIT_WARNING, EXIT_CRITICAL)
    if verdict.status in (HUNG, PERHAPS_HUNG):
        assert hang is not None
        assert (hang.severity == CRITICAL) == (verdict.status == HUNG)
    if hang is not None:
        assert verdict.summary in hang.title
        assert {name for one in card.hangs for name in one.roots} >= {
            one.name for one in hang.entities if one.kind == "rank"
        }
        assert {one.confirmed for one in card.hangs[:1]} == {hang.severity == CRITICAL}
    if verdict.status == CRASHED and hang is not None:
        ends = [one for one in card.findings if one.rule == rules.KILLED.id]
        assert ends == [], "each end is told once"
    text = render_text(card)
    assert "explains that" not in text or not named(card)
    assert f"{verdict.status}" in text
    assert read_comment(make_comment(card)).status == verdict.status


KINDS = long_but({"data parallel", "ring", "tensor and data parallel", "long pipeline"}, PROGRAMS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLANTED)
def test_the_first_line_says_that_it_hung_or_crashed_and_who(name: str, kind: str) -> None:
    planted = PLANTED[name]
    card = card_of(kind, planted, seed=len(name))
    assert card.verdict.status in planted.status, (card.verdict, card.findings)
    assert named(card) == {"rank 1"}
    assert "rank 1 " in card.verdict.summary
    assert_agrees(card)


FROM_OUTSIDE = [Slurm("CANCELLED", 0, 15, 0), Slurm("TIMEOUT", 0), Slurm("PREEMPTED"), None]


@pytest.mark.parametrize(
    "slurm",
    [
        FROM_OUTSIDE[0],
        *(pytest.param(one, marks=pytest.mark.long) for one in FROM_OUTSIDE[1:3]),
        FROM_OUTSIDE[3],
    ],
    ids=["scancel", "limit", "preempted", "no record"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_job_that_is_ended_in_the_middle_of_a_step_accuses_nobody(
    kind: str, slurm: Slurm | None
) -> None:
    for seed in range(25):
        late = (seed % 2, 1) if kind != "2 ranks" else (1,)
        step_s = (0.01, 0.5, 4.0)[seed % 3]
        end = End((0.0, 0.4), 0.4, usual_s=(step_s / 4, step_s), culprits=tuple({*late}))
        processes = ended(PROGRAMS[kind](), end, seed)
        card = reported(processes, slurm)
        assert not named(card), card.findings
        assert card.verdict.status in (HEALTHY, CANNOT_TELL)
        assert not card.hangs
        assert_agrees(card)


@pytest.mark.parametrize("seed", [1, 3, 4, 5])
@pytest.mark.parametrize("started", [1, 0], ids=["told", "not told"])
def test_who_called_nothing_comes_before_those_whose_calls_wait_in_the_queues_of_their_gpus(
    started: int, seed: int
) -> None:
    """A rank waits in a ring's Sends, with the next AllReduce queued behind them.

    It is not always told that the Sends have started.
    """
    processes = [
        replace(
            one,
            operations=tuple(
                replace(op, started=op.started * started) if op.peer >= 0 else op
                for op in one.operations
            ),
        )
        for one in ended(ring(ahead=True), WATCHDOG_70, seed)
    ]
    assert any(op.peer >= 0 for one in processes for op in one.operations)
    card = reported(processes, Slurm("FAILED", 1))
    assert named(card) == {"rank 1"}, card.findings
    assert card.verdict.status == HUNG
    assert_agrees(card)


def test_all_that_wait_are_counted_and_not_only_those_in_the_first_operation() -> None:
    card = card_of("pipeline", PLANTED["hang, watchdog of 25 s, exit code 1"], seed=3)
    assert card.verdict.summary.endswith(
        "1 other rank waited 25 s in 21 and gave up, and 6 more behind it"
    )


def test_who_died_is_told_with_how_long_before_the_others() -> None:
    job = ended(data_parallel(), End((70.0, 71.0), 0.0))
    (finding, *rest) = reported(job, Slurm("FAILED", 143)).findings
    assert finding.rule == rules.HANG_DEAD.id
    assert finding.detail.endswith("It ended 1 min 11 s before the last process.")
    assert finding.next
    assert [one.rule for one in rest] == []
    job = ended(data_parallel(), End((0.3, 1.2), 0.0))
    (finding, *rest) = reported(job, Slurm("FAILED", 143)).findings
    assert finding.rule == rules.STOPPED_FIRST.id
    assert finding.detail.endswith("All processes ended within 1.0 s, none in order.")
    assert [one.rule for one in rest] == []


def test_an_elastic_restart_is_no_death() -> None:
    first = [
        replace(one, facts=replace(one.facts, pid=one.facts.pid + 100, name=f"0_{100 + rank}"))
        for rank, one in enumerate(ended(data_parallel(), End((30, 31), 0.0)))
    ]
    second = [
        replace(
            one,
            facts=replace(one.facts, state="finalized", beat_ns=NOW_NS),
            comms=tuple(replace(comm, id=99, created_ns=NOW_NS - 900 * 10**9)
                        for comm in one.comms),
            operations=(),
        )
        for one in ended(data_parallel(), End((30, 31), 0.0, culprits=()))
    ]  # fmt: skip
    card = reported([*first, *second], Slurm("COMPLETED", 0))
    assert card.verdict.status in (HEALTHY, CANNOT_TELL)
    assert not named(card)
    assert any("later ones went on with their GPUs" in one.title for one in card.findings)
    assert_agrees(card)


def test_a_death_without_slurms_record_is_told_with_what_is_known() -> None:
    processes = [
        replace(one, operations=())
        for one in ended(data_parallel(), End((40, 40.5), 0.0, culprits=(3,)))
    ]
    card = reported(processes, None)
    assert card.verdict.status == FAILED
    assert "rank 3 " in card.verdict.summary
    assert "ended without finalizing NCCL 40 s before the last process" in card.verdict.summary
    assert card.exit_code == EXIT_WARNING


def test_most_processes_of_a_job_did_not_die_before_the_others() -> None:
    """They gave up, one by one, and in what is not known: the last one is no culprit either."""
    processes = [
        replace(one, operations=())
        for one in ended(data_parallel(), End((20, 44), 75.0, culprits=(2,)))
    ]
    card = reported(processes, Slurm("FAILED", 1))
    assert not named(card)
    assert (card.verdict.status, card.exit_code) == (FAILED, EXIT_WARNING)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (PLANTED["hang, watchdog of 25 s under run, 49 s apart"].end, "50 s"),
        (End((2.3, 2.3), 0.0), "2.3 s"),
        (End((0.2, 0.2), 0.0), "1.0 s"),  # beats come once a second
    ],
)
def test_how_far_apart_processes_ended_is_told_as_measured(ends: End, words: str) -> None:
    processes = [replace(one, operations=()) for one in ended(PROGRAMS["data parallel"](), ends, 1)]
    card = reported(processes, Slurm("CANCELLED", 0, 15))
    titles = [one.title for one in card.findings if one.rule == rules.KILLED.id]
    assert titles == [f"all processes ended within {words}, none in order"]


@pytest.mark.parametrize(
    ("slurm", "words"),
    [
        (Slurm("FAILED", 137), "was killed (SIGKILL: out of memory, or kill -9)"),
        (Slurm("FAILED", 0, 9), "was killed (SIGKILL: out of memory, or kill -9)"),
        (Slurm("FAILED", 139), "was killed (SIGSEGV: an invalid address)"),
        (Slurm("OUT_OF_MEMORY", 0, 125), "was killed (out of memory)"),
        (Slurm("FAILED", 143), "crashed at about "),
        (Slurm("FAILED", 1), "crashed at about "),
    ],
)
def test_signals_and_exit_codes_are_told_as_words(slurm: Slurm, words: str) -> None:
    card = reported(ended(data_parallel(), KILLED_NINE), slurm)
    assert card.verdict.summary.startswith(f"rank 1 (n1 GPU1, pid 2) {words}")
    assert "7 other ranks waited for it in " in card.verdict.summary


def test_a_failed_job_without_a_culprit_is_told_what_its_exit_code_means() -> None:
    processes = ended(data_parallel(), End((0, 0.2), 0.2, culprits=()))
    card = reported([replace(one, operations=()) for one in processes], Slurm("FAILED", 139))
    assert (card.verdict.status, card.exit_code) == (FAILED, EXIT_WARNING)
    assert card.verdict.summary == (
        "the job's state is failed (exit code 139, SIGSEGV: an invalid address); "
        "nothing in its communication explains that"
    )


def test_whom_all_wait_for_all_the_time_has_not_crashed_just_because_the_job_failed() -> None:
    """In a job that waits for a late rank half of its time, another one may have failed."""
    processes = ended(data_parallel(), End((0.2, 0.4), 0.4, usual_s=(0.1, 0.5)))
    late = [
        replace(one, keys=[key._replace(busy_ns=60 * 10**9 if rank != 1 else 10**9)
                           for key in one.keys])
        for rank, one in enumerate(processes)
    ]  # fmt: skip
    card = reported(late, Slurm("FAILED", 139))
    assert not named(card)
    assert card.verdict.status == FAILED


def at_random(way: str, chance: Random) -> tuple[End, Slurm | None, frozenset[str]]:
    """Return an end of this way, what Slurm knows of it, and the right words for it."""
    usual_s = chance.choice([(0.002, 0.02), (0.05, 0.3), (0.3, 1.0)])
    rest = chance.choice([60.0, 600.0, 7200.0]), usual_s
    cancelled = [Slurm("CANCELLED", 0, 15), Slurm("TIMEOUT", 0)]
    codes = [Slurm("FAILED", code) for code in (1, 134, 137, 139, 143)]
    match way:
        case "watchdog":
            after_s = chance.uniform(5, 900)
            end = End((after_s, after_s + 2), after_s + chance.uniform(0, 3), *rest)
            return end, chance.choice(codes), SUSPECT
        case "minutes apart":
            after_s = chance.uniform(10, 600)
            end = End((after_s, after_s + 60), after_s + chance.uniform(61, 300), *rest)
            return end, chance.choice([codes[0], Slurm("COMPLETED", 0), NO_RECORD]), SUSPECT
        case "ended from outside":
            after_s = chance.uniform(61, 900)
            return (
                End((after_s, after_s + 0.5), after_s + 0.5, *rest),
                chance.choice(cancelled),
                (SUSPECT),
            )
        case "crash":
            after_s = chance.uniform(0.1, 2.5)
            end = End((after_s, after_s + 1), chance.uniform(0, 0.1), *rest)
            return end, chance.choice([*codes, Slurm("OUT_OF_MEMORY", 0, 125)]), CRASH
        case _:
            after_s = chance.uniform(5, 900)
            return End((after_s, after_s + 2), chance.uniform(0, 1), *rest), codes[1], CRASH


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "way", ["watchdog", "minutes apart", "ended from outside", "crash", "crash, ended late"]
)
def test_any_rank_of_any_kind_of_job_is_named_however_it_ended(way: str) -> None:
    chance = fixed_chance(len(way))
    for seed in range(60):
        kinds = LARGE if seed % 12 == 0 else PROGRAMS
        programs = kinds[chance.choice([*kinds])]()
        culprit = chance.randrange(len(programs))
        end, slurm, words = at_random(way, chance)
        card = reported(ended(programs, replace(end, culprits=(culprit,)), seed), slurm)
        assert named(card) == {f"rank {culprit}"}, (seed, end, slurm, card.findings)
        assert card.verdict.status in words
        assert_agrees(card)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_healthy_job_that_is_ended_from_outside_accuses_anybody() -> None:
    chance = fixed_chance(7)
    for seed in range(200):
        programs = PROGRAMS[chance.choice([*PROGRAMS])]()
        step_s = chance.choice([0.01, 0.1, 0.5, 2.0, 8.0, 30.0])
        late = chance.sample(range(len(programs)), chance.randint(1, len(programs) - 1))
        end = End(
            (0.0, chance.uniform(0, step_s)), chance.uniform(0, step_s),
            chance.choice([60.0, 600.0, 7200.0]), (step_s / 4, step_s), tuple(late),
        )  # fmt: skip
        card = reported(ended(programs, end, seed), chance.choice(FROM_OUTSIDE))
        assert not named(card), (seed, end, card.findings)
        assert card.verdict.status in (HEALTHY, CANNOT_TELL)
