# SPDX-License-Identifier: Apache-2.0
"""Draw lines in place on a terminal with plain ANSI codes, and restore the terminal afterwards."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType
from typing import Protocol

from nccl_inspector.live.keyboard import Keyboard
from nccl_inspector.live.table import ScreenLine
from nccl_inspector.live.view import TroubleKind
from nccl_inspector.system.wakeup import Wakeup

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"  # alternate screen, no cursor, cleared
_LEAVE = "\x1b[?25h\x1b[?1049l"
_BOLD, _RED, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_REVERSE = "\x1b[7m"  # of the job that Enter opens; also without colours
_BAD = tuple(kind for kind in TroubleKind if kind <= TroubleKind.HUNG)

ROWS_MIN = 4


class Next(IntEnum):
    """What a key leads to; of several keys the largest counts."""

    DRAW = 0
    LOOK = 1  # what is to be shown has to be read first
    QUIT = 2


class Screen(Protocol):
    """What is shown on the terminal."""

    def look(self) -> None:
        """Read what is to be shown."""

    def draw(self, columns: int, rows: int) -> Sequence[ScreenLine]:
        """Return at most so many lines of at most so many columns."""

    def press(self, key: str) -> Next:
        """Take a key (`keyboard.keys_of`)."""


def can_redraw() -> bool:
    """Tell whether stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def has_colour() -> bool:
    """Tell whether colours are wanted (no-color.org)."""
    return can_redraw() and not os.environ.get("NO_COLOR")


def _painted(line: ScreenLine, colour: bool) -> str:
    if line.marked:
        return f"{_REVERSE}{line.text}{_PLAIN}"
    if not colour or line.kind == TroubleKind.NONE or not line.text:
        return line.text
    if line.kind is None:
        return f"{_BOLD}{line.text}{_PLAIN}"
    return f"{_RED if line.kind in _BAD else _YELLOW}{line.text}{_PLAIN}"


def fit(lines: Sequence[ScreenLine], rows: int, scrolled: int = 0) -> list[ScreenLine]:
    """Return as many lines as there are rows, without the first ones that are scrolled away.

    Where lines remain below, the last row says how many. Title and column heads scroll, too. A line
    that is `marked` is always among those returned.
    """
    marked = next((at for at, line in enumerate(lines) if line.marked), None)
    first = max(0, min(scrolled, len(lines) - rows))
    if marked is not None and marked - first >= rows - 1 and len(lines) > rows:
        first = min(marked - rows + 2, len(lines) - rows)
    if len(lines) - first <= rows:
        return list(lines[first:])
    shown = lines[first : first + rows - 1]
    return [
        *shown,
        ScreenLine(f"({len(lines) - first - rows + 1} lines more)"),
    ]


def _show(screen: Screen, colour: bool) -> None:
    size = shutil.get_terminal_size()
    lines = screen.draw(size.columns, max(ROWS_MIN, size.lines))
    text = "\x1b[K\r\n".join(_painted(line, colour) for line in lines)
    _write(f"\x1b[H{text}\x1b[K\x1b[J")


def _write(text: str) -> None:
    """Write without Python's buffer, which a signal handler must not enter a second time."""
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def _own_screen(keyboard: Keyboard) -> Iterator[Wakeup]:
    """Draw on the terminal's other screen; give what is woken by a signal."""

    def pause(number: int, _frame: FrameType | None) -> None:
        _write(_LEAVE)
        keyboard.give_back()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # returns when the shell continues the process
        signal.signal(number, pause)
        keyboard.take()
        _write(_ENTER)

    wakeup = Wakeup()
    signal.signal(signal.SIGWINCH, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    signal.signal(signal.SIGTSTP, pause)
    keyboard.take()
    _write(_ENTER)
    try:
        yield wakeup
    finally:
        _write(_LEAVE)
        keyboard.give_back()
        wakeup.close()


def watch(screen: Screen, interval_s: float) -> None:
    """Draw the screen: after each interval, each key, and when the terminal's size changes.

    Ends with a key that quits, with Ctrl-C, or with an error of `look`; the terminal is as before
    then.
    """
    colour = has_colour()
    keyboard = Keyboard()
    try:
        with _own_screen(keyboard) as wakeup:
            after = Next.LOOK
            due_s = 0.0
            while after != Next.QUIT:
                if after == Next.LOOK:
                    screen.look()
                    due_s = time.monotonic() + interval_s
                _show(screen, colour)
                wakeup.wait(max(0.0, due_s - time.monotonic()), *keyboard.descriptors)
                after = Next.LOOK if time.monotonic() >= due_s else Next.DRAW
                after = max(after, *(screen.press(key) for key in keyboard.read()), Next.DRAW)
    except KeyboardInterrupt:
        return


def print_once(lines: Sequence[ScreenLine]) -> None:
    """Print the lines, in colour if stdout is a terminal."""
    colour = has_colour()
    for line in lines:
        sys.stdout.write(_painted(line, colour) + "\n")
