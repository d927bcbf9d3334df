# SPDX-License-Identifier: Apache-2.0
"""Lines drawn in place on a terminal, by plain ANSI; afterwards it is as it was before."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from nccl_inspector.live.table import ScreenLine
from nccl_inspector.live.view import TroubleKind
from nccl_inspector.system.wakeup import Wakeup

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"  # the other screen, no cursor, empty
_LEAVE = "\x1b[?25h\x1b[?1049l"
_BOLD, _RED, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_BAD = (TroubleKind.LOST, TroubleKind.STOPPED, TroubleKind.HUNG)

Draw = Callable[[int], Sequence[ScreenLine]]  # the lines for so many columns


def can_redraw() -> bool:
    """Tell whether stdout is a terminal that can go back to where it was."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def has_colour() -> bool:
    """Tell whether colours are wanted (no-color.org)."""
    return can_redraw() and not os.environ.get("NO_COLOR")


def _painted(line: ScreenLine, colour: bool) -> str:
    if not colour or line.kind == TroubleKind.NONE or not line.text:
        return line.text
    if line.kind is None:
        return f"{_BOLD}{line.text}{_PLAIN}"
    return f"{_RED if line.kind in _BAD else _YELLOW}{line.text}{_PLAIN}"


def fit(lines: Sequence[ScreenLine], rows: int) -> list[ScreenLine]:
    """Return as many lines as there are rows; the last then says how many are not there."""
    if len(lines) <= rows:
        return list(lines)
    return [
        *lines[: rows - 1],
        ScreenLine(f"({len(lines) - rows + 1} lines more: a higher terminal)"),
    ]


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
    """Give what is woken by a signal."""
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
    """Draw what `look` gives, again each interval and when the terminal's size changes.

    Ends with Ctrl-C, or with an error of `look`; the terminal is as before then.
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


def print_once(lines: Sequence[ScreenLine]) -> None:
    """Print the lines, in colour where stdout is a terminal."""
    colour = has_colour()
    for line in lines:
        sys.stdout.write(_painted(line, colour) + "\n")
