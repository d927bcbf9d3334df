# SPDX-License-Identifier: Apache-2.0
"""Ends that are not in the queue: found in accounting, a share for each user, some at a time."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.controller import missed_ends
from nccl_inspector.controller.children import Children
from nccl_inspector.controller.missed_ends import (
    BACK_MAX_S,
    OVERLAP_S,
    AccountingProgress,
    FoundEnds,
    LostEnds,
    Slice,
    begin_round,
    choose,
    ends_of,
    find_lost,
)
from nccl_inspector.controller.queue import QUEUED_MAX, USER_QUEUED_MAX, Entry, Queue
from nccl_inspector.controller.status import read_status, status_text
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.settings.config import Config
from nccl_inspector.slurm.accounting import read_rows
from nccl_inspector.slurm.ended import ask_ended, has_ended
from tests.support.queued_jobs import left, run_pass, stored, summarize
from tests.support.recorded_slurm import DELIMITER, load

COLUMNS = (
    "JobIDRaw", "JobID", "User", "UID", "Cluster", "State", "ExitCode", "End", "Restarts",
    "NodeList", "JobName",
)  # fmt: skip
# Of all users' jobs it says what is in a file, with the delimiter of the question; of one, nothing.
SACCT = """#!/bin/sh
: >"{folder}/asked.$$"
for word; do
	case $word in
	--helpformat) echo {columns}; exit ;;
	--jobs=*) exit 1 ;;
	--delimiter=*) delimiter=${{word#*=}} ;;
	esac
done
sed "s/@/$delimiter/g" {folder}/rows
"""


def row(job_id: int, end_s: float, uid: int = 4711, state: str = "COMPLETED") -> str:
    cells = (
        job_id, job_id, f"u{uid}", uid, "c1", state, "0:0", int(end_s), 0, "n1", "train",
    )  # fmt: skip
    return "".join(f"{cell}@" for cell in cells)


@pytest.fixture
def accounting(config: Config, tmp_path: Path) -> Config:
    """A site whose sacct says what the file `rows` says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sacct").write_text(SACCT.format(folder=folder, columns=" ".join(COLUMNS)))
    (folder / "sacct").chmod(0o755)
    (folder / "rows").write_text("")
    return replace(config, scontrol=folder / "scontrol")


def knows(config: Config, rows: Sequence[str]) -> None:
    (config.scontrol.parent / "rows").write_text("".join(f"{one}\n" for one in rows))


def entry(job_id: int, uid: int, queued_s: float = 0.0) -> Entry:
    return Entry("", 0, job_id, 0, queued_s, uid=uid)


@pytest.mark.long
def test_the_report_of_an_end_that_was_never_queued_is_made(
    accounting: Config, tmp_path: Path
) -> None:
    ended_s = time.time() - 7200
    knows(accounting, [row(42, ended_s), row(43, ended_s), row(44, ended_s, state="RUNNING")])
    for number in (42, 44):
        summarize(accounting, tmp_path / str(number), number)
    found = []

    def look() -> float:
        run_pass(accounting, usual_makers(accounting))
        found.extend(left(accounting))
        return read_status(accounting.controller_dir).accounted_s or 0.0

    report = accounting.store_dir / "42" / "0.json"
    for _ in range(30):
        if look() > ended_s and report.exists():
            break
    look()  # it is not queued again
    status = read_status(accounting.controller_dir)
    assert status.accounted_s is not None
    assert time.time() - status.accounted_s < OVERLAP_S
    assert [name.partition(".")[0] for name in found] == ["42"], "43 used no NCCL"
    assert stored(accounting) == [42]


def test_a_day_without_the_service_loses_no_end(accounting: Config, tmp_path: Path) -> None:
    now_s = time.time()
    numbers = range(100, 124)
    knows(accounting, [row(at, now_s - 3600 * (at - 99)) for at in numbers])
    for number in numbers:
        summarize(accounting, tmp_path / str(number), number)
    queue = Queue(accounting.controller_dir)
    ends = LostEnds(accounting, queue, Children(), now_s - 86400)
    for _ in range(20):
        assert ends.look(queue.scan()[0]) == ""
    assert sorted(one.job_id for one in queue.scan()[0]) == list(numbers)
    queue.close()


def test_each_pass_asks_for_some_hours_only(accounting: Config) -> None:
    now_s = time.time()
    found = find_lost(accounting, now_s - 86400, now_s, ())
    assert (len(found.slices), found.problem) == (missed_ends.SLICES_MAX, "")
    assert found.until_s == now_s - 86400 + missed_ends.SLICES_MAX * missed_ends.SLICE_S


def test_without_accounting_that_is_said_and_nothing_is_skipped(config: Config) -> None:
    gone = replace(config, scontrol=config.store_dir / "scontrol")
    queue = Queue(config.controller_dir)
    ends = LostEnds(gone, queue, Children(), 1000.0)
    assert "not looked for in accounting" in ends.look([])
    queue.close()


def test_what_is_queued_or_set_aside_is_not_queued_again() -> None:
    rows = [row(42, 100.0), row(43, 100.0)]
    cells = [dict(zip(COLUMNS, one.split("@"), strict=False)) for one in rows]
    assert [one.job_id for one in ends_of(cells, {42})] == [43]


def test_a_user_with_many_lost_ends_displaces_nobody() -> None:
    flood = [entry(at, 1001, queued_s=at) for at in range(30_000)]
    honest = [entry(100_000 + at, 1002, queued_s=1e6 + at) for at in range(5)]
    chosen = choose([*flood, *honest], {}, most=20)
    assert [one.job_id for one in chosen if one.uid == 1002] == [one.job_id for one in honest]
    assert len(chosen) == 20
    assert choose(flood, {1001: USER_QUEUED_MAX}) == []
    assert len(choose(flood, {1001: USER_QUEUED_MAX - 3})) == 3
    assert choose(honest, {1001: QUEUED_MAX}) == []


def test_a_span_in_which_there_was_no_room_for_all_is_asked_about_again() -> None:
    first, second = entry(1, 1001), entry(2, 1001)
    found = FoundEnds((Slice(0.0, (first,)), Slice(3600.0, (second,))), 7200.0)
    all_there = AccountingProgress(0.0, 0.0).after(found, [first, second])
    assert (all_there.settled_s, all_there.kept_back_s) == (7200.0, None)
    some = AccountingProgress(0.0, 0.0).after(found, [first])
    assert (some.settled_s, some.scan_s, some.kept_back_s) == (3600.0, 7200.0, 3600.0)
    later = some.after(FoundEnds((), 9000.0), [])
    assert (later.settled_s, later.scan_s) == (3600.0, 9000.0)


@pytest.mark.parametrize(
    ("settled_s", "days", "begin_s"),
    [
        (None, 365, 1e9 - 86400),
        (1e9 - 7200, 365, 1e9 - 7200),
        (0.0, 365, 1e9 - BACK_MAX_S),
        (0.0, 2, 1e9 - 86400),
        (2e9, 365, 1e9 - 86400),
    ],
    ids=["first", "an hour", "long ago", "reports go after two days", "by a clock of the future"],
)
def test_a_round_goes_back_as_far_as_it_must_and_may(
    settled_s: float | None, days: int, begin_s: float
) -> None:
    begun = begin_round(settled_s, 1e9, days)
    assert (begun.settled_s, begun.scan_s) == (begin_s, begin_s - OVERLAP_S)


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_ends_are_read_of_what_each_release_says(release: str) -> None:
    said = load(release)

    def ends(kind: str) -> list[Entry]:
        rows = read_rows(said.output(kind, "sacct"), said.columns(kind), DELIMITER)
        assert rows is not None
        return ends_of([one for one in rows if has_ended(one, 0, 1e11)], ())

    (finished,) = ends("finished")
    assert (finished.job_id, finished.name, finished.nodelist) == (
        said.ids["finished"], "train", "n[3-4]",
    )  # fmt: skip
    assert (finished.exit_code, finished.array_task, finished.het_job_id) == ("0:0", "", None)
    assert finished.uid is not None
    assert finished.queued_s > 1.7e9
    assert all(one.array_task for one in ends("array"))
    assert {one.leader for one in ends("het")} == {said.ids["het"]}
    assert len(ends("requeued")) == 1
    assert "\n" not in ends("hostile")[0].name


def test_an_answer_that_is_too_long_is_asked_for_in_parts(
    accounting: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    knows(accounting, [row(at, now_s - 60 * at) for at in range(50)])
    size = (accounting.scontrol.parent / "rows").stat().st_size
    monkeypatch.setattr("nccl_inspector.slurm.command.OUTPUT_BYTES_MAX", size)
    sacct = accounting.scontrol.with_name("sacct")
    rows, why = ask_ended(sacct, now_s - 3600, now_s)
    assert (rows, why) == ([], ""), "this sacct gives the same, whatever span is asked for"
    assert len(list(accounting.scontrol.parent.glob("asked.*"))) > 60


def test_the_status_says_what_hangs_and_what_was_not_queued(config: Config) -> None:
    dropped = config.controller_dir / "dropped"
    dropped.mkdir()
    (dropped / "1001").write_bytes(b"." * 12)
    (dropped / "unknown").write_bytes(b".")
    (dropped / "x").write_bytes(b"." * 99)
    run_pass(config, usual_makers(config))
    (dropped / "1001").write_bytes(b"...")
    run_pass(config, usual_makers(config))
    status = read_status(config.controller_dir)
    assert status.dropped == {"1001": 15, "unknown": 1}
    text = status_text(status, time.time())
    assert "16 ends beyond the users' shares: uid 1001: 15, uid unknown: 1" in text
    assert "0 processes left behind" in text
