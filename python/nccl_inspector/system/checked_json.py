# SPDX-License-Identifier: Apache-2.0
"""Check untrusted JSON value by value: a wrong type, or too large a value, is refused."""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.printable import printable

TEXT_CHARS_MAX = 256
ROWS_MAX = 4096
TIME_S_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Checks:
    """Each check returns the value it was given, or raises RefusedError with this reason."""

    reason: str

    def refused(self, what: str) -> RefusedError:
        """Return the error to raise."""
        return RefusedError(self.reason, what)

    def load(self, data: bytes) -> Any:
        """Return the parsed JSON value."""
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as err:
            raise self.refused("invalid JSON") from err

    def integer(self, value: Any, most: int) -> int:
        """Return a whole number from 0 to `most`."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.refused("invalid number")
        return value

    def integers(self, values: list[Any], most: int) -> list[int]:
        """Return whole numbers from 0 to `most`; much faster than one by one."""
        if not values:
            return values
        if set(map(type, values)) != {int} or min(values) < 0 or max(values) > most:
            raise self.refused("invalid number")
        return values

    def figure(self, value: Any, most: float) -> float:
        """Return a number from 0 to `most` as a float; NaN is refused."""
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.refused("invalid number")
        return float(value)

    def time(self, value: Any) -> int:
        """Return a Unix time in seconds."""
        return self.integer(value, TIME_S_MAX)

    def text(self, value: Any, most: int = TEXT_CHARS_MAX) -> str:
        """Return a text of up to `most` characters; unprintable ones are replaced by `?`."""
        if not isinstance(value, str) or len(value) > most:
            raise self.refused("invalid text")
        return printable(value)

    def texts(self, values: list[Any]) -> tuple[str, ...]:
        """Return texts, each as `text` does; those of many files are the same."""
        try:
            return _texts(self, tuple(values))
        except TypeError as err:
            raise self.refused("invalid text") from err

    def rows(self, value: Any, length: int | None = None, most: int = ROWS_MAX) -> list[Any]:
        """Return a list of up to `most`; if `length` is given, a list of exactly that length."""
        if not isinstance(value, list) or len(value) > most:
            raise self.refused("invalid list")
        if length is not None and len(value) != length:
            raise self.refused("invalid row")
        return value

    def table(self, value: Any) -> dict[str, Any]:
        """Return an object; its keys are checked by `text`."""
        if not isinstance(value, dict) or len(value) > ROWS_MAX:
            raise self.refused("invalid table")
        return dict(zip(_texts(self, tuple(value)), value.values(), strict=True))


@lru_cache(maxsize=64)  # a summary has some hundred tables of a few kinds
def _texts(checks: Checks, texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(checks.text, texts))


def dump(value: Any) -> bytes:
    """Return a JSON value as compact bytes."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")
