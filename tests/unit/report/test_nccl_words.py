# SPDX-License-Identifier: Apache-2.0
"""What NCCL wrote into a job's output becomes findings, and never changes what was measured."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.model.card import DEGRADED, FAILED, HEALTHY, HUNG, NO_DATA, Card, Period
from nccl_inspector.model.process import Process
from nccl_inspector.nccl_log.files import read_logs
from nccl_inspector.report import output
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext, RequestedInputs, gather
from nccl_inspector.report.nccl_words import NcclWords, from_json, to_json, words_of
from nccl_inspector.report.output import Output, read_output
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.summary.attempts import Loaded
from tests.support.boxes import NOW_NS
from tests.support.job_output import CONFIG, LINES, WEEK
from tests.support.synthetic.jobs import flat_job, through_summaries
from tests.unit.nccl_log.made_logs import PLACE
from tests.unit.report.hung_jobs import hung_processes

S = 10**9


def words(name: str) -> NcclWords:
    return words_of(read_logs([PLACE / f"{name}.log"]))


def healthy(ranks: int = 4) -> list[Process]:
    return flat_job(1, {}, 200, ranks, sampled=True).processes()


def card_of(found: list[Process], state: str, said: NcclWords | None) -> Card:
    record = JobRecord(42, state=state, end_s=NOW_NS // S, sources=("sacct",))
    loaded = Loaded(tuple(through_summaries(found)), (0,), ())
    return build_card(loaded, JobContext(record=record, words=said))


def written(card: Card) -> list[tuple[str, str]]:
    return [(one.rule, one.severity) for one in card.findings if one.rule[:5] == "nccl-"]


def test_the_first_error_is_one_finding_with_who_followed_and_what_was_written() -> None:
    card = card_of(healthy(), "FAILED", words("cascade"))
    (one,) = [one for one in card.findings if one.rule == "nccl-error"]
    assert one.title == (
        "NCCL's log: a network adapter gave up on a peer: no answer to any retry (rank 5 (n2)); "
        "7 other processes followed within 3 s"
    )
    assert "cascade.log:186: `NET/IB: Got completion from peer" in one.detail
    also = "watchdog-timeout (8 processes), watchdog-failed (8 processes), rank-behind (1 process)."
    assert f"Also: {also}" in one.detail
    assert one.actions[0].startswith("look first at the node of the peer")


def test_a_silent_fallback_is_named() -> None:
    card = card_of(healthy(), "FAILED", words("fallback-of-one-node"))
    titles = [one.title for one in card.findings if one.rule == "nccl-setting"]
    assert titles[0] == "NCCL's log: data between nodes goes over TCP sockets (n2 (2 processes))"
    assert len(titles) == 3


def test_in_a_healthy_job_it_is_information_and_the_status_stays() -> None:
    plain, card = (card_of(healthy(), "COMPLETED", said) for said in (None, words("cascade")))
    assert card.verdict == plain.verdict
    assert card.verdict.status == HEALTHY
    assert written(card) == [("nccl-error", "I")]
    assert card.exit_code == plain.exit_code


@pytest.mark.parametrize("name", [path.stem for path in sorted(PLACE.glob("*.log"))])
def test_no_log_changes_a_verdict_or_makes_anything_critical(name: str) -> None:
    for found, state in ((healthy(), "COMPLETED"), (hung_processes(), "TIMEOUT")):
        plain, card = (card_of(found, state, said) for said in (None, words(name)))
        assert card.verdict == plain.verdict
        assert card.exit_code == plain.exit_code
        assert {severity for _, severity in written(card)} <= {"I", "W"}


def test_a_hang_is_explained_and_pytorchs_own_counts_do_not_contradict_it() -> None:
    """By PyTorch's counts rank 5 is behind, whoever it is by the boxes."""
    card = card_of(hung_processes(), "TIMEOUT", words("cascade"))
    assert card.verdict.status == HUNG
    assert card.findings[0].rule == "hang-divergent"
    (one,) = [one for one in card.findings if one.rule == "nccl-error"]
    assert one.severity == "W"
    assert "rank-behind" not in one.detail


def test_a_failure_that_nothing_measured_explains_is_explained_by_nccls_words() -> None:
    plain, card = (card_of(healthy(), "FAILED", said) for said in (None, words("cascade")))
    assert (card.verdict.status, card.verdict.confidence) == (FAILED, "low")
    assert card.verdict.summary == (
        f"{plain.verdict.summary}; NCCL wrote: a network adapter gave up on a peer: no answer to "
        "any retry (rank 5 (n2))"
    )


def test_words_accuse_no_node_so_nothing_is_held_against_one_later() -> None:
    card = card_of(healthy(), "FAILED", words("fallback-of-one-node"))
    for one in card.findings:
        if one.rule.startswith("nccl-"):
            assert (one.entities, one.victims, one.cause, one.cost_s) == ((), (), "", None)


def test_words_go_through_the_child_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cascade.log"
    path.write_bytes((PLACE / "cascade.log").read_bytes() + LINES.encode())
    given = gather(WEEK, CONFIG, RequestedInputs(slurm=False, output=path))
    assert given.words == words("cascade")
    assert given.readings is not None
    (seen,) = (one for one in given.inputs if one.source == "nccl_log")
    assert seen.detail.endswith("lines in the job's output")
    assert from_json(json.loads(json.dumps(to_json(words("cascade"))))) == words("cascade")


def test_words_remain_if_the_throughput_takes_all_the_time(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text("n1:1:1 [0] NCCL WARN Too many open files\n" + "a" * 4000 + "\n")

    slow = re.compile(r"(?:a+)+b(?P<value>\d)")

    told = read_output(Output(path, None, Period(WEEK.start, WEEK.end), (slow,), 1.0))
    assert told.readings is None
    assert "it took more than 1 s" in told.seen.detail
    assert told.words is not None
    assert told.words.first == "too-many-files"


def test_an_output_of_which_only_a_part_is_read_has_no_missing_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    path = tmp_path / "job.out"
    path.write_bytes((PLACE / "one-rank-never-came.log").read_bytes() * 2)
    whole = gather(WEEK, CONFIG, RequestedInputs(slurm=False, output=path)).words
    monkeypatch.setattr(output, "_WORDS_HEAD_BYTES", 2000)
    monkeypatch.setattr(output, "_WORDS_TAIL_BYTES", 2000)
    part = gather(WEEK, CONFIG, RequestedInputs(slurm=False, output=path)).words
    assert whole is not None
    assert part is not None
    assert "init-incomplete" in [one.rule for one in whole.told]
    assert "init-incomplete" not in [one.rule for one in part.told]


def test_an_output_without_a_line_of_nccls_says_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text(LINES)
    given = gather(WEEK, CONFIG, RequestedInputs(slurm=False, output=path))
    assert given.words is None
    assert [one.source for one in given.inputs] == ["throughput"]


def test_a_job_that_was_not_measured_has_at_least_what_nccl_wrote() -> None:
    bare = [replace(one, operations=(), comms=(), samples=None, unions=()) for one in healthy()]
    card = card_of(bare, "FAILED", words("pytorch-only"))
    assert card.verdict.status in (NO_DATA, FAILED)
    assert card.verdict.status != DEGRADED
    assert written(card) == [("nccl-error", "W")]
