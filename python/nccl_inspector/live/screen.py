# SPDX-License-Identifier: Apache-2.0
"""Draw lines in place on a terminal with plain ANSI codes, and restore the terminal afterwards."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from nccl_inspector.live.model import Kind
from nccl_inspector.live.table import Line
from nccl_inspector.system.wakeup import Wakeup

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"  # alternate screen, no cursor, cleared
_LEAVE = "\x1b[?25h\x1b[?1049l"
_BOLD, _RED, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_BAD = (Kind.LOST, Kind.STOPPED, Kind.HUNG)

Draw = Callable[[int], Sequence[Line]]  # returns the lines for a number of columns


def can_redraw() -> bool:
    """Tell whether stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def has_colour() -> bool:
    """Tell whether colours are wanted (no-color.org)."""
    return can_redraw() and not os.environ.get("NO_COLOR")


def _painted(line: Line, colour: bool) -> str:
    if not colour or line.kind == Kind.NONE or not line.text:
        return line.text
    if line.kind is None:
        return f"{_BOLD}{line.text}{_PLAIN}"
    return f"{_RED if line.kind in _BAD else _YELLOW}{line.text}{_PLAIN}"


def fit(lines: Sequence[Line], rows: int) -> list[Line]:
    """Return at most `rows` lines; if there are more, the last says how many are missing."""
    if len(lines) <= rows:
        return list(lines)
    return [*lines[: rows - 1], Line(f"({len(lines) - rows + 1} lines more: a higher terminal)")]


def _show(draw: Draw, colour: bool) -> None:
    size = shutil.get_terminal_size()
    lines = fit(draw(size.columns), max(2, size.lines))
    text = "\x1b[K\r\n".join(_painted(line, colour) for line in lines)
    sys.stdout.write(f"\x1b[H{text}\x1b[K\x1b[J")
    sys.stdout.flush()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def _own_screen() -> Iterator[Wakeup]:
    """Switch to the alternate screen, and give what wakes up on a signal."""
    wakeup = Wakeup()
    signal.signal(signal.SIGWINCH, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    sys.stdout.write(_ENTER)
    try:
        yield wakeup
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        wakeup.close()


def watch(look: Callable[[], Draw], interval_s: float) -> None:
    """Draw what `look` returns, again at each interval and when the terminal's size changes.

    It ends with Ctrl-C, or with an error of `look`; the terminal is restored in both cases.
    """
    colour = has_colour()
    try:
        with _own_screen() as wakeup:
            while True:
                draw = look()
                _show(draw, colour)
                while wakeup.wait(interval_s):
                    _show(draw, colour)
    except KeyboardInterrupt:
        return


def print_once(lines: Sequence[Line]) -> None:
    """Print the lines, in colour if stdout is a terminal."""
    colour = has_colour()
    for line in lines:
        sys.stdout.write(_painted(line, colour) + "\n")
