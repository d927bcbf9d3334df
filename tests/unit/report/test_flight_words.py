# SPDX-License-Identifier: Apache-2.0
"""PyTorch's flight recorder in the report: beside what was measured, and never against it."""

import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    HEALTHY,
    HUNG,
    INFO,
    LOW,
    WARNING,
    Card,
    Finding,
    Period,
    Severity,
)
from nccl_inspector.model.process import KILLED
from nccl_inspector.render.text import render_text
from nccl_inspector.report import flight_words, job_context
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.flight_words import JobDumps, Said, read_job_dumps
from nccl_inspector.report.job_context import JobContext, RequestedInputs, gather
from nccl_inspector.slurm.job_record import JobRecord
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.system.limited import Limits
from tests.support.boxes import NOW_NS
from tests.support.flight_dumps import START_NS, dump, entry
from tests.support.job_output import CONFIG
from tests.support.summaries import HEAD, eight_ranks
from tests.support.synthetic.jobs import Group, through_summaries
from tests.support.synthetic.standstill import Call, Standstill

JOB, RANKS = 4711, 8
AGE_NS = 600 * 10**9


def healthy(dumps: JobDumps | None) -> Card:
    """Return the report of a job in which all was well."""
    record = JobRecord(42, state="COMPLETED", sources=("sacct",))
    return build_card(Loaded(tuple(eight_ranks(None)), (0,), ()), JobContext(record, dumps=dumps))


def job(culprit: int, dumps: JobDumps | None) -> Card:
    """Return the report of a job in which a rank stopped calling."""
    group = Group(7, "dp", tuple(range(RANKS)))
    still = Standstill([[Call(group, "AllReduce", 8)] * 50] * RANKS)
    still.ranks[culprit].stop_at = 20
    still.run()
    since_ns = NOW_NS - AGE_NS
    found = [
        replace(
            one,
            facts=replace(one.facts, state=KILLED),
            comms=tuple(replace(comm, last_progress_ns=since_ns) for comm in one.comms),
            operations=tuple(replace(op, age_ns=AGE_NS) for op in one.operations),
        )
        for one in still.processes()
    ]
    record = JobRecord(42, state="CANCELLED", sources=("sacct",))
    loaded = Loaded(tuple(through_summaries(found)), (0,), ())
    return build_card(loaded, JobContext(record=record, dumps=dumps))


def dumps(*roots: str, rule: rules.Rule = rules.FLIGHT_NOT_CALLED) -> JobDumps:
    said = Said(rule.id, f"{', '.join(roots)} did not call it", "At train.py:3.", None, roots)
    return JobDumps("8 of 8 ranks", (said,))


def told(card: Card) -> Finding:
    (found,) = [one for one in card.findings if one.rule.startswith("flight-")]
    return found


@pytest.mark.parametrize(
    ("root", "sentence"),
    [("rank 5", "The measurements name the same rank."),
     ("rank 2", "The measurements name another rank, and they are what counts.")],
)  # fmt: skip
def test_beside_a_measured_hang_the_dumps_agree_or_are_told_to_be_wrong(
    root: str, sentence: str
) -> None:
    without, card = job(5, None), job(5, dumps(root))
    assert (without.verdict.status, card.verdict) == (HUNG, without.verdict)
    assert [one for one in card.findings if one is not told(card)] == [*without.findings]
    assert told(card).detail == f"At train.py:3. {sentence}"
    assert (told(card).severity, told(card).confidence) == (WARNING, LOW)
    assert (told(card).entities, told(card).victims) == ((), ())
    assert f"PyTorch's flight recorder: {root} did not call it" in " ".join(
        render_text(card).split()
    )


def test_in_a_job_that_was_measured_to_be_healthy_they_are_information() -> None:
    card = healthy(dumps("rank 5"))
    assert (card.verdict.status, told(card).severity) == (HEALTHY, INFO)
    assert card.exit_code == healthy(None).exit_code
    assert card.verdict == healthy(None).verdict


@pytest.mark.parametrize("rule", [one for one in rules.RULES if one.about is rules.About.FLIGHT])
def test_no_finding_of_the_dumps_is_critical_or_names_a_culprit(rule: rules.Rule) -> None:
    found = told(job(5, dumps("rank 5", rule=rule)))
    assert found.severity is not Severity.CRITICAL
    assert not found.entities


def test_a_rule_of_another_release_is_left_out() -> None:
    card = job(5, JobDumps("", (Said("flight-of-tomorrow", "x", "", Period(1, 2), ()),)))
    assert not [one for one in card.findings if "tomorrow" in one.rule]


# Which files are a job's dumps.


def write(folder: Path, step: str, ranks: dict[int, Any], job_id: int = JOB, at_s: int = 0) -> None:
    for rank, value in ranks.items():
        path = folder / f"nccl-inspector-{job_id}.{step}-fr-rank_{rank}"
        path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
        os.utime(path, ns=(START_NS + (60 + at_s) * 10**9,) * 2)


def hung(absent: int) -> dict[int, Any]:
    known = {"0": [0, 1, 2]}
    stuck = dump([entry(0, 1), entry(1, 2, state="started")], known)
    return {rank: dump([entry(0, 1)], known) if rank == absent else stuck for rank in range(3)}


def test_the_dumps_of_the_newest_step_of_this_job_are_read(tmp_path: Path) -> None:
    write(tmp_path, "0", hung(0))
    write(tmp_path, "1", hung(2), at_s=9)
    write(tmp_path, "2", hung(1), job_id=JOB + 1, at_s=20)
    found = read_job_dumps(tmp_path, JOB, os.getuid())
    assert found
    (said,) = found.said
    assert (said.rule, said.roots) == ("flight-not-called", ("rank 2",))
    assert found.detail == f"3 of 3 ranks in {tmp_path}"
    assert said.period


def test_without_dumps_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert read_job_dumps(tmp_path, JOB, os.getuid()) is None
    assert read_job_dumps(tmp_path / "nowhere", JOB, os.getuid()) is None


def test_dumps_of_another_user_are_not_believed(tmp_path: Path) -> None:
    write(tmp_path, "0", hung(2))
    os.chown(tmp_path / f"nccl-inspector-{JOB}.0-fr-rank_2", 1234, 1234)
    found = read_job_dumps(tmp_path, JOB, os.getuid())
    assert found
    assert found.detail.startswith("2 of 3 ranks")


@pytest.mark.parametrize("data", [b"", b"cos\nsystem\n(S'touch /tmp/zz9'\ntR.", bytes(1 << 20)])
def test_dumps_that_cannot_be_read_say_nothing(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, "0", {0: data})
    found = read_job_dumps(tmp_path, JOB, os.getuid())
    assert found
    assert (found.said, found.detail[:9]) == ((), "0 of 1 ra")


def test_a_directory_that_never_answers_is_left_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_of: list[int] = []
    monkeypatch.setattr(flight_words, "_LIMITS", Limits(wall_s=0.2))
    monkeypatch.setattr(flight_words, "_newest_step", lambda *_: signal.pause())
    monkeypatch.setattr(flight_words, "hangs", told_of.append)
    assert read_job_dumps(tmp_path, JOB, os.getuid()) is None
    assert len(told_of) == 1


@pytest.mark.parametrize(("euid", "seen"), [(0, False), (1234, True)])
def test_the_report_looks_in_the_jobs_directory_unless_root_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, euid: int, seen: bool
) -> None:
    write(tmp_path, "0", hung(2))
    record = JobRecord(JOB, work_dir=str(tmp_path), sources=("sacct",))
    monkeypatch.setattr(job_context, "find_record", lambda *_: (record, ()))
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    found = gather(replace(HEAD, job_id=JOB, uid=os.getuid()), CONFIG, RequestedInputs())
    assert (found.dumps is not None) == seen
    assert ("flight_recorder" in {one.source for one in found.inputs}) == seen
