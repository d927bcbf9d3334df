# SPDX-License-Identifier: Apache-2.0
"""Single keys of a terminal, as names: `up`, `enter`, `esc`, or the character itself."""

import os
import re
import select
import sys
import termios
import tty
from contextlib import suppress

# What terminals send for keys without a character (ECMA-48; xterm's two modes of the arrows).
_NAMES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "pgup",
    "\x1b[6~": "pgdn",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x1b": "esc",
}
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)


def keys_of(text: str) -> list[str]:
    """Return the keys that a terminal sent; those without a name or character are left out."""
    named = (_NAMES.get(part, part) for part in _KEY.findall(text))
    return [key for key in named if not key.startswith("\x1b")]


class Keyboard:
    """The terminal's keys, one by one and unseen; Ctrl-C and Ctrl-Z keep their meaning.

    Without a terminal at stdin there are no keys, and nothing is changed.
    """

    def __init__(self) -> None:
        """Remember how the terminal is; change nothing yet."""
        self._descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before = None if self._descriptor is None else termios.tcgetattr(self._descriptor)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What can be read when a key is there."""
        return () if self._descriptor is None else (self._descriptor,)

    def take(self) -> None:
        """Let keys come one by one."""
        if self._descriptor is not None:
            tty.setcbreak(self._descriptor, termios.TCSADRAIN)

    def give_back(self) -> None:
        """Make the terminal as it was."""
        if self._descriptor is not None and self._before is not None:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._descriptor, termios.TCSAFLUSH, self._before)

    def read(self) -> list[str]:
        """Return the keys that are there now; a terminal that is gone quits."""
        if self._descriptor is None or not select.select([self._descriptor], [], [], 0)[0]:
            return []
        data = os.read(self._descriptor, 1024)
        return keys_of(data.decode(errors="ignore")) if data else ["q"]
