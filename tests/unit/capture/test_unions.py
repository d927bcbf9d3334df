# SPDX-License-Identifier: Apache-2.0
"""How long each process was in operations, window by window, by its JSON lines."""

from pathlib import Path

from nccl_inspector.box.layout import UNION_WINDOWS
from nccl_inspector.capture.engine import load
from nccl_inspector.capture.unions import find_unions
from nccl_inspector.model.process import Union
from tests.support import json_lines
from tests.support.json_lines import START_US, ours

MS, S = 10**6, 10**9
FIRST_S = START_US // 10**6


def unions(folder: Path, *operations: tuple[int, int], rank: int = 0) -> Union:
    """Return the windows of a process; each operation's end (ms after the start) and time (ns)."""
    lines = [
        ours(number, rank, time_ns, START_US + end_ms * 1000)
        for number, (end_ms, time_ns) in enumerate(operations)
    ]
    json_lines.write(folder, f"{rank}.log", lines)
    with load(folder) as capture:
        (found,) = find_unions(capture).values()
    return found


def test_operations_count_where_they_end_and_long_ones_in_all_that_they_ran_through(
    tmp_path: Path,
) -> None:
    short = [(500 + 1000 * at, 10 * MS) for at in range(10)]
    found = unions(tmp_path, *short, (45_000, 33 * S))
    assert found.window_s == 10
    start_s = FIRST_S // 10 * 10
    rows = {one.start_s - start_s: (one.operations, one.busy_ns) for one in found.windows}
    assert rows == {
        0: (10, 100 * MS), 10: (0, 8 * S), 20: (0, 10 * S), 30: (0, 10 * S), 40: (1, 5 * S),
    }  # fmt: skip


def test_no_window_is_busy_for_longer_than_it_lasts(tmp_path: Path) -> None:
    found = unions(tmp_path, *((9_000, 900 * MS) for _ in range(100)))
    assert [one.busy_ns for one in found.windows] == [10 * S]


def test_a_long_job_has_no_more_windows_than_a_box(tmp_path: Path) -> None:
    found = unions(tmp_path, *((at * 60_000, 10 * MS) for at in range(2000)))
    assert len(found.windows) <= UNION_WINDOWS
    assert sum(one.operations for one in found.windows) == 2000


def test_a_time_that_cannot_be_true_is_cut_at_the_first_line(tmp_path: Path) -> None:
    found = unions(tmp_path, (500, 10 * MS), (30_000, 1 << 50))
    assert found.windows[0].start_s >= FIRST_S - 10
    assert all(one.busy_ns <= 10 * S for one in found.windows)
