# SPDX-License-Identifier: Apache-2.0
"""The node summary: what one node's processes did in one attempt of a job.

A line of JSON (the job and the node), then a block for each process: four bytes
of length, little-endian, and zlib data of at most BLOCK_BYTES_MAX. Inside a
block: four bytes of length, JSON (facts, GPUs, communicators, operations in
flight), then the keys as varints, ordered by time spent. Keys that do not fit
are left out, the least busy first, and a flag says how many.
"""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, get_origin

from nccl_inspector.errors import RefusedError
from nccl_inspector.layout import HIST_BUCKETS
from nccl_inspector.model import ALGOS, FUNCS, PROTOS, Comm, Facts, Gpu, Key, Operation, Process

FORMAT = "nccl-inspector-node-summary/2"
BLOCK_BYTES_MAX = 32 << 10  # design.md 5: at most 32 KiB a rank
PROCESSES_MAX = 1024
SUMMARY_BYTES_MAX = PROCESSES_MAX * (BLOCK_BYTES_MAX + 4) + (2 << 20)

HEAD_BYTES_MAX = 2 << 20  # a node list may be long
_RAW_BYTES_MAX = 4 << 20  # of one block, unpacked
_LENGTH = struct.Struct("<I")
_KEY_NAMES = tuple(field.name for field in fields(Key) if field.name != "histogram")
_RATE = _KEY_NAMES.index("log2_rate_q20")  # the one signed word
_WORD_MAX = (1 << 64) - 1
_COMM_ROWS_MAX = 4096
_KEYS_MAX = 1024  # of a process; the plugin has 256


@dataclass(frozen=True, slots=True)
class Head:
    """The job and the node that a summary is about. Times are Unix seconds."""

    job_id: int
    uid: int
    user: str
    account: str
    partition: str
    cluster: str
    node: str
    nodelist: str
    num_nodes: int
    restart: int
    start: int
    end: int  # when the epilog ran here
    het_job_id: str  # of a heterogeneous job's component: the leader's id; else empty
    problems: tuple[str, ...]  # what was not taken on this node, in words


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One file of a report's directory."""

    head: Head
    processes: tuple[Process, ...]


def _varint(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _pack_keys(keys: Sequence[Key]) -> bytes:
    out = bytearray()
    for key in keys:
        words = [getattr(key, name) for name in _KEY_NAMES]
        words[_RATE] = words[_RATE] << 1 if words[_RATE] >= 0 else (-words[_RATE] << 1) - 1
        for word in (*words, len(key.histogram)):
            _varint(out, word)
        last = 0
        for bucket, count in key.histogram:
            _varint(out, bucket - last)
            _varint(out, count)
            last = bucket
    return bytes(out)


class _Words:
    """Varints one after the other; what is not one is refused."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, limit: int = _WORD_MAX) -> int:
        """Return the next number, at most `limit`."""
        number = shift = 0
        while shift < 70:
            if self._at >= len(self._data):
                raise RefusedError("bad_summary", "ends within a number")
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if number > limit:
            raise RefusedError("bad_summary", "a number is too large")
        return number


def _unpack_key(words: _Words) -> Key:
    limits = {1: len(FUNCS) - 1, 2: 63, 3: len(ALGOS) - 1, 4: len(PROTOS) - 1}
    numbers = [words.take(limits.get(place, _WORD_MAX)) for place in range(len(_KEY_NAMES))]
    rate = numbers[_RATE]
    numbers[_RATE] = -(rate + 1 >> 1) if rate & 1 else rate >> 1
    histogram, bucket = [], 0
    for _ in range(words.take(HIST_BUCKETS)):
        bucket += words.take(HIST_BUCKETS - 1 - bucket)
        histogram.append((bucket, words.take()))
    words_by_name = dict(zip(_KEY_NAMES, numbers, strict=True))
    return Key(**words_by_name, histogram=tuple(histogram))


def _block(process: Process, keys: Sequence[Key]) -> bytes:
    """Return the block, or more than may be when it would unpack to too much."""
    left_out = len(process.keys) - len(keys)
    flags = list(process.flags) + (
        [f"{left_out} kinds of operation did not fit"] if left_out else []
    )
    rows = [
        [astuple(row) for row in table]
        for table in (process.gpus, process.comms, process.operations)
    ]
    meta = json.dumps(
        [astuple(process.facts), process.dropped, flags, *rows], separators=(",", ":")
    ).encode()
    raw = _LENGTH.pack(len(meta)) + meta + _pack_keys(keys)
    return zlib.compress(raw, 9) if len(raw) <= _RAW_BYTES_MAX else raw


def encode_process(process: Process) -> bytes:
    """Return a block of at most BLOCK_BYTES_MAX, with as many of the busiest keys as go in."""
    keys = sorted(process.keys, key=lambda key: -key.busy_ns)
    block = _block(process, keys)
    while len(block) > BLOCK_BYTES_MAX and keys:
        keys = keys[: len(keys) * BLOCK_BYTES_MAX // len(block) * 9 // 10]
        block = _block(process, keys)
    if len(block) > BLOCK_BYTES_MAX:
        flags = (*process.flags[:8], "its communicators did not fit")
        return _block(replace(process, comms=(), keys=(), operations=(), flags=flags), [])
    return block


def encode(head: Head, blocks: Sequence[bytes]) -> bytes:
    """Return the summary's bytes; the blocks are of `encode_process`."""
    values = {field.name: getattr(head, field.name) for field in fields(Head)}
    line = json.dumps({"format": FORMAT, "processes": len(blocks), **values})
    parts = [line.encode("ascii"), b"\n"]
    for block in blocks:
        parts += [_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _row(cls: Any, values: Any) -> Any:
    """Return `cls(*values)` after a look at number, types and range of the values."""
    members = fields(cls)
    if not isinstance(values, list) or len(values) != len(members):
        raise RefusedError("bad_summary", f"odd {cls.__name__}")
    for member, value in zip(members, values, strict=True):
        kind: Any = tuple if get_origin(member.type) is tuple else member.type
        if not isinstance(value, kind):
            raise RefusedError("bad_summary", f"odd {cls.__name__}.{member.name}")
        if isinstance(value, int) and not -_WORD_MAX <= value <= _WORD_MAX:
            raise RefusedError("bad_summary", f"odd {cls.__name__}.{member.name}")
    return cls(*(printable(value) if isinstance(value, str) else value for value in values))


def printable(text: str) -> str:
    """Return `text` with `?` for what could move a terminal's cursor."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _rows(cls: Any, table: Any) -> tuple[Any, ...]:
    if not isinstance(table, list) or len(table) > _COMM_ROWS_MAX:
        raise RefusedError("bad_summary", f"odd table of {cls.__name__}")
    return tuple(_row(cls, row) for row in table)


def _list(cls: type[Any], values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list) or not all(isinstance(value, cls) for value in values):
        raise RefusedError("bad_summary", "odd list")
    return tuple(printable(value) if isinstance(value, str) else value for value in values)


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as err:
        raise RefusedError("bad_summary", "odd JSON") from err


def _process(block: bytes) -> Process:
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(block, _RAW_BYTES_MAX)
    except zlib.error as err:
        raise RefusedError("bad_summary", "odd block") from err
    if not unpacker.eof or unpacker.unused_data or len(raw) < _LENGTH.size:
        raise RefusedError("bad_summary", "odd block")
    end = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
    meta = _json(raw[_LENGTH.size : end])
    if not isinstance(meta, list) or len(meta) != 6:
        raise RefusedError("bad_summary", "odd block")
    facts, dropped, flags, gpus, comms, operations = meta
    words = _Words(raw, end)
    keys: list[Key] = []
    while words:
        if len(keys) == _KEYS_MAX:
            raise RefusedError("bad_summary", "too many keys")
        keys.append(_unpack_key(words))
    return Process(
        facts=_row(Facts, facts),
        dropped=_list(int, dropped),
        gpus=_rows(Gpu, gpus),
        comms=_rows(Comm, comms),
        keys=tuple(keys),
        operations=_rows(Operation, operations),
        flags=_list(str, flags),
    )


def _head(line: bytes) -> tuple[Head, Any]:
    """Return the first line's head, and how many processes it says there are."""
    values = _json(line)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise RefusedError("bad_summary", "not a node summary of this release")
    problems = _list(str, values.get("problems"))
    row = [values.get(field.name) for field in fields(Head)[:-1]]
    return replace(_row(Head, [*row, ()]), problems=problems), values.get("processes")


def _head_end(data: bytes) -> int:
    end = data.find(b"\n", 0, HEAD_BYTES_MAX)
    if end < 0:
        raise RefusedError("bad_summary", "no first line")
    return end


def decode_head(data: bytes) -> Head:
    """Return the head alone; `data` is what the summary begins with, its first line at least.

    Raises:
        RefusedError: there is no such line, or it says something else; the reason is `bad_summary`.
    """
    return _head(data[: _head_end(data)])[0]


def decode(data: bytes) -> NodeSummary:
    """Return what `encode` was given.

    Raises:
        RefusedError: anything else, however it came about; the reason is `bad_summary`.
    """
    if len(data) > SUMMARY_BYTES_MAX:
        raise RefusedError("bad_summary", "too long")
    end = _head_end(data)
    head, said = _head(data[:end])
    processes: list[Process] = []
    at = end + 1
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise RefusedError("bad_summary", "torn")
        size = _LENGTH.unpack_from(data, at)[0]
        at += _LENGTH.size
        if size > BLOCK_BYTES_MAX or at + size > len(data) or len(processes) == PROCESSES_MAX:
            raise RefusedError("bad_summary", "torn, or a block too long")
        processes.append(_process(data[at : at + size]))
        at += size
    if len(processes) != said:
        raise RefusedError("bad_summary", "torn")
    return NodeSummary(head, tuple(processes))
