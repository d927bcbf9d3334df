# SPDX-License-Identifier: Apache-2.0
"""Add the header of the marker before them to lines of NVIDIA's formats v4.3 and v4.4.

In these formats each dump of a communicator begins with a marker. The marker has the header, the
metadata, and how many lines of each kind follow. These lines have nothing but their own figures.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_PARTS = {"coll_perf": "coll_records", "p2p_perf": "p2p_records", "proxy_trace": "proxy_records"}
_BARE = {f'{{"{part}"'.encode(): part for part in _PARTS}
_SNIFFED_LINES = 64


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def needs_context(lines: Iterable[bytes]) -> bool:
    """Tell whether some of the first lines have no header of their own."""
    for _, line in zip(range(_SNIFFED_LINES), lines, strict=False):
        found = _object(line)
        if found and "header" not in found and any(part in found for part in _PARTS):
            return True
    return False


class Context:
    """The contents of a file's last marker."""

    def __init__(self, refused: Counter[str]) -> None:
        """Begin without a marker; `refused` counts lines that no marker announced."""
        self._refused = refused
        self._head = b""
        self._left: dict[str, int] = {}

    def _mark(self, record: dict[str, Any]) -> None:
        """Take a marker; count the lines that the marker before announced and that did not come."""
        self._refused["lines_missing"] += sum(self._left.values())
        stats = record["dump_stats"]
        counts = {
            part: stats.get(name, 0) if isinstance(stats, dict) else 0
            for part, name in _PARTS.items()
        }
        known = isinstance(record.get("header"), dict) and isinstance(record.get("metadata"), dict)
        sound = all(type(count) is int and count >= 0 for count in counts.values())
        self._left = counts if known and sound else {}
        head = {"header": record.get("header"), "metadata": record.get("metadata")}
        self._head = json.dumps(head).encode()[:-1] + b","

    def _bare(self, part: str, line: bytes) -> bytes | None:
        """Return a line with its header; None: no marker announced it."""
        if self._left.get(part, 0) <= 0:
            self._refused["no_context"] += 1
            return None
        self._left[part] -= 1
        return self._head + line.lstrip()[1:]

    def restore(self, line: bytes) -> bytes | None:
        """Return the line with a header; None: there is no header for it."""
        for begin, part in _BARE.items():
            if line.startswith(begin) and b'"header"' not in line:
                return self._bare(part, line)
        record = _object(line)
        if record is None or "header" in record:
            if record is not None and "dump_stats" in record:
                self._mark(record)
            return line
        part = next((part for part in _PARTS if part in record), "")
        return self._bare(part, line) if part else line

    def end(self) -> None:
        """Count the announced lines that did not come because the process was killed."""
        self._refused["lines_missing"] += sum(self._left.values())
        self._left = {}


def restored(lines: Iterable[bytes], refused: Counter[str]) -> Iterator[bytes]:
    """Yield the lines of one file, each with a header."""
    context = Context(refused)
    for line in lines:
        whole = context.restore(line)
        if whole is not None:
            yield whole
    context.end()
