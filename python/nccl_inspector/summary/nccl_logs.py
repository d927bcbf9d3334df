# SPDX-License-Identifier: Apache-2.0
"""What is kept of NCCL's logs of one node: the lines that say something, of each file.

The part is zlib data with JSON: rows of name, whether lines are missing, and text. Its text is the
user's.
"""

import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from nccl_inspector.errors import RefusedError
from nccl_inspector.nccl_log.lines import MARK
from nccl_inspector.summary.packed_tables import inflate
from nccl_inspector.system.checked_json import Checks, dump

LOGS_BYTES_MAX = 128 << 10  # of a node, packed
NODE_TEXT_CHARS_MAX = 1 << 20  # of a node, unpacked
FILES_MAX = 256
FILE_CHARS_MAX = 48 << 10
_JSON_TIMES = 7  # of a character, at most
_CHECKS = Checks("bad_summary")


@dataclass(frozen=True, slots=True)
class LogFile:
    """What is kept of one file."""

    name: str
    is_cut: bool
    text: str


def excerpt(name: str, data: bytes, *, is_cut: bool = False) -> LogFile:
    """Return the lines of NCCL's and PyTorch's that say something; of many, the first and last.

    `is_cut`: `data` is not the whole file.
    """
    kept = []
    end = -1
    for match in MARK.finditer(data):
        if match.start() < end:
            continue
        begin = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.start())
        end = len(data) if end < 0 else end
        kept.append(data[max(begin, match.start() - 640) : min(end, match.end())])
    text = b"\n".join(kept).decode("utf-8", "replace")
    return fit(LogFile(name, is_cut, text), FILE_CHARS_MAX)


def fit(file: LogFile, chars: int) -> LogFile:
    """Return the file with at most so many characters: half of the begin, half of the end."""
    text = file.text
    if len(text) <= chars:
        return file
    head = text[: chars // 2].rpartition("\n")[0]
    tail = text[len(text) - chars // 2 :].partition("\n")[2]
    return LogFile(file.name, True, f"{head}\n{tail}")


def pack_logs(files: Sequence[LogFile]) -> bytes:
    """Return at most LOGS_BYTES_MAX; empty for no files. If there is too much, less of each."""
    files = [one for one in files if one.text][:FILES_MAX]
    if not files:
        return b""
    share = min(FILE_CHARS_MAX, NODE_TEXT_CHARS_MAX // len(files))
    while True:
        data = zlib.compress(dump([astuple(fit(one, share)) for one in files]))
        if len(data) <= LOGS_BYTES_MAX:
            return data
        share //= 2


def unpack_logs(data: bytes) -> tuple[LogFile, ...]:
    """Return what `pack_logs` was given.

    Raises:
        RefusedError: the data are invalid; the reason is `bad_summary`.
    """
    if not data:
        return ()
    rows = _CHECKS.rows(_CHECKS.load(inflate(data, _JSON_TIMES * NODE_TEXT_CHARS_MAX)))
    return tuple(_file(_CHECKS.rows(row, 3)) for row in rows[:FILES_MAX])


def _file(row: list[Any]) -> LogFile:
    name, is_cut, text = row
    if type(is_cut) is not bool or not isinstance(text, str) or len(text) > FILE_CHARS_MAX + 1:
        raise RefusedError("bad_summary", "invalid log of NCCL's")
    return LogFile(_CHECKS.text(name), is_cut, text)
