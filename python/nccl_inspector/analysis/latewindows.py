# SPDX-License-Identifier: Apache-2.0
"""In which windows of the time lines a rank came late, and so since when."""

from collections.abc import Mapping
from dataclasses import dataclass

from nccl_inspector.analysis.lateness import is_late_in_window
from nccl_inspector.card.model import Period
from nccl_inspector.model import Line, Window
from nccl_inspector.timeline import on_grid

OPERATIONS_MIN = 50  # of each rank: fewer have no median to speak of
_WINDOWS_ENOUGH = 8  # neighbours become one while there are more and they have too few operations


@dataclass(frozen=True, slots=True)
class LateWindows:
    """Of `judged` windows the rank was late in a `share`, from the first to the last of them."""

    judged: int
    share: float
    period: Period | None  # None: in no window


def _medians(lines: Mapping[int, Line], window_s: int) -> dict[int, dict[int, Window]]:
    """Return the windows by start and rank."""
    found: dict[int, dict[int, Window]] = {}
    for rank, line in lines.items():
        for window in on_grid((one for one in line.windows if one.ops), window_s):
            found.setdefault(window.start_s, {})[rank] = window
    return found


def _enough(windows: Mapping[int, Window], rank: int, ranks: int) -> dict[int, float]:
    """Return the medians (ns) of those with enough operations; none where too few have."""
    medians = {r: float(one.median_ns) for r, one in windows.items() if one.ops >= OPERATIONS_MIN}
    return medians if rank in medians and len(medians) >= max(2, ranks / 2) else {}


def judge_windows(lines: Mapping[int, Line], rank: int) -> LateWindows | None:
    """Return in how many windows a rank was late; `lines` are of one kind of operation, by rank.

    None: no window has enough operations.
    """
    if rank not in lines:
        return None
    window_s = max(line.window_s for line in lines.values())
    while True:
        windows = _medians(lines, window_s)
        usable = {
            start_s: medians
            for start_s, found in windows.items()
            if (medians := _enough(found, rank, len(lines)))
        }
        if 2 * len(usable) >= len(windows) or len(windows) <= _WINDOWS_ENOUGH:
            break
        window_s *= 2
    if not usable:
        return None
    late = sorted(start_s for start_s, one in usable.items() if is_late_in_window(one, rank))
    period = Period(late[0], late[-1] + window_s) if late else None
    return LateWindows(len(usable), len(late) / len(usable), period)
