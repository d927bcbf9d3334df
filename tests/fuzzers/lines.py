"""JSON lines of many ranks, through the readers of lines and through `analyze`.

To start DuckDB and to ask its questions takes most of a second, however few lines there are. So an
input is the capture of a job of many small communicators, most of whose files are spoilt.
"""

import gzip
import os
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.capture.analyze import analyze_directory
from nccl_inspector.capture.end_files import parse_end
from nccl_inspector.capture.line_records import parse_record
from nccl_inspector.capture.lines import read_lines
from nccl_inspector.capture.restore import restored
from nccl_inspector.errors import InspectorError, RefusedError
from tests.fuzzers import mutation, seeds
from tests.fuzzers.forms import check_card
from tests.fuzzers.target import Budget, Read, Run, Target
from tests.support import json_lines

_GROUPS, _RANKS = 16, 4
_LINES = 8  # of a file: DuckDB reads millions, but mutation and join take time
_FILE_BYTES_MAX = 32 << 10
_SPOILT = 0.8  # of the files; an honest rank beside it is what a spoilt one is compared with
_SIZES = struct.Struct("<II")  # of a name and of its data
_GZIP = b"\x1f\x8b"


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return files as one input."""
    return b"".join(
        _SIZES.pack(len(name), len(data)) + name.encode() + data for name, data in files.items()
    )


def unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of an input; the last one may be cut."""
    at = 0
    while at + _SIZES.size <= len(data):
        name, size = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        yield data[at : at + name].decode(), data[at + name : at + name + size]
        at += name + size


def _verbose(rank: int, comm: str) -> bytes:
    """Return lines as NVIDIA's plugin writes them when it is to say more."""
    parts = ({**json_lines.coll(at), **json_lines.traces("coll")} for at in range(_LINES))
    header = json_lines.header(rank, _RANKS, comm)
    return json_lines.text(
        json_lines.whole(rank, coll_perf=one) | {"header": header} for one in parts
    )


def _bare(rank: int) -> bytes:
    """Return lines without headers of their own."""
    colls = [{"coll_perf": json_lines.coll(at)} for at in range(_LINES)]
    return json_lines.text(
        [json_lines.marker(rank, _RANKS, 1), *colls, {"p2p_perf": json_lines.p2p()}]
    )


def _capture(job: str) -> bytes:
    """Return the capture of a played job many times, each with other communicators and lines."""
    found: dict[str, bytes] = {}
    lines = seeds.played(job).lines
    for group in range(_GROUPS):
        for rank, (name, data) in enumerate(
            (one, data) for one, data in lines.items() if one.endswith(".log")
        ):
            rows = data.splitlines(keepends=True)
            begin = group * _LINES % max(1, len(rows) - _LINES)
            own = b"".join(rows[begin : begin + _LINES])
            for comm in (b"0xabc", b"0xdef"):
                own = own.replace(b'"%s"' % comm, b'"%s%02x"' % (comm, group))
            new = name.replace("-pid", f"-pid{group + 1}")
            match group % 8:
                case 5:
                    own = _verbose(rank, f"0xfed{group:02x}")
                case 6:
                    own = _bare(rank)
                case 7:
                    new, own = f"{new}.gz", gzip.compress(own, mtime=0)
            found[new] = own
            if f"{name}.end" in lines:
                found[f"{new.removesuffix('.gz')}.end"] = lines[f"{name}.end"]
    return packed(found)


@cache
def _seeds() -> list[bytes]:
    return [_capture("healthy"), _capture("hung")]


def _read(name: str, data: bytes, refused: Counter[str]) -> None:
    """Read a file line by line, as a reader does with what DuckDB cannot read."""
    if name.endswith(".end"):
        parse_end(data)
        return
    fd = os.memfd_create("lines")
    try:
        os.write(fd, data)
        for line in restored(read_lines(fd, data.startswith(_GZIP), refused), refused):
            try:
                parse_record(line)
            except RefusedError as err:
                refused[err.reason] += 1
    finally:
        os.close(fd)


def prepare(place: Path) -> Run:
    """Return what reads a capture, and analyzes it."""
    cpus = sorted(os.sched_getaffinity(0))  # a second thread of DuckDB's only takes time
    os.sched_setaffinity(0, {cpus[os.getpid() % len(cpus)]})

    def run(data: bytes) -> Read:
        files = [*unpacked(data)]
        refused: Counter[str] = Counter()
        for name, lines in files:
            _read(name, lines, refused)

        def rest() -> str:
            for path in place.iterdir():
                path.unlink()
            for name, lines in files:
                (place / name).write_bytes(lines)
            try:
                card = analyze_directory(place, None)
            except InspectorError as err:
                return str(err)
            return check_card(card)

        return Read(" ".join(sorted(refused)), rest)

    return run


def _other_lines(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return other lines, of which most are JSON."""
    if data.startswith(_GZIP):
        return mutation.several(chance, data, (data,), mutation.BYTES)
    if chance.random() < 0.3:
        return mutation.several(chance, data, corpus, mutation.TEXT)
    rows = data.split(b"\n")
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(rows))
        rows[at] = mutation.change_json(chance, rows[at], corpus)
    return b"\n".join(rows)


def mutate(chance: Random, data: bytes, _corpus: Sequence[bytes]) -> bytes:
    """Return a capture with other lines in most files."""
    files = dict(unpacked(data))
    others = [chance.choice([*files.values()]) for _ in range(4)]
    spoilt = {
        name: _other_lines(chance, lines, others)[:_FILE_BYTES_MAX]
        if chance.random() < _SPOILT
        else lines
        for name, lines in files.items()
        if chance.random() > 0.01
    }
    return packed(spoilt)


TARGET = Target(
    "lines", _seeds, mutate, prepare,
    Budget(cpu_s=4.0, cpu_times=4.0, memory_bytes=256 << 20),
    rest_of=8, inputs=lambda data: sum(not name.endswith(".end") for name, _ in unpacked(data)),
)  # fmt: skip
