# SPDX-License-Identifier: Apache-2.0
"""The time lines of a box."""

from itertools import pairwise

from nccl_inspector.box.copy import NS_MAX, BoxCopy
from nccl_inspector.box.layout import HEADER, LINE, LINE_WINDOWS, WINDOW
from nccl_inspector.model.process import FUNCS, Line, Window
from nccl_inspector.model.timeline import on_grid

# A round of the beat thread writes windows, then the beat; under load it may be held up between.
BEAT_LATE_S = 60
WINDOW_S_MAX = 1 << 31

_LINE = LINE.reader(
    "comm_id", "used", "windows", "window_s", "since_s", "rank", "func", "size_class"
)
_WINDOW = WINDOW.reader(*WINDOW.offsets)
_FIRST = LINE.offsets["window"]


def _windows(copy: BoxCopy, base: int, count: int, window_s: int) -> tuple[Window, ...] | None:
    """Return the windows of the line at `base`, or None if they are impossible."""
    start = base + _FIRST
    view = memoryview(copy.data)[start : start + count * WINDOW.size]
    every = (Window(*row) for row in _WINDOW.words.iter_unpack(view))
    windows = on_grid((window for window in every if window.ops), window_s)
    latest_s = HEADER.number(copy.data, "beat_real_ns") // 10**9 + BEAT_LATE_S
    starts = [window.start_s for window in windows]
    rising = all(one < next_ for one, next_ in pairwise(starts))
    if not windows or not rising or starts[-1] > latest_s:
        return None
    # Limit the sums, so that later sums and differences of them fit 64 bits.
    return windows if max(sum(column) for column in zip(*windows, strict=True)) <= NS_MAX else None


def _line(copy: BoxCopy, base: int, words: dict[str, int]) -> Line | None:
    """Return a time line that has windows, or None if its values are impossible."""
    count = words.pop("windows")
    if count > LINE_WINDOWS or not 0 < words["window_s"] <= WINDOW_S_MAX:
        return None
    if words["func"] >= len(FUNCS) or words["size_class"] > 63 or words["rank"] < -1:
        return None
    windows = _windows(copy, base, count, words["window_s"])
    return Line(windows=windows, **words) if windows else None


def read_lines(copy: BoxCopy) -> tuple[tuple[Line, ...], list[str]]:
    """Return the time lines, and a text for each that was left out."""
    found, flags = [], []
    for base in copy.lines.bases():
        words = _LINE.at(copy.data, base)
        if words.pop("used") != 1 or not words["windows"]:
            continue
        line = _line(copy, base, words)
        if line:
            found.append(line)
        else:
            flags.append("an invalid time line is left out")
    return tuple(found), flags
