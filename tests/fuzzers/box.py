"""Boxes: members of records in use get other values, records are copied, tables moved."""

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.box import layout
from nccl_inspector.box.layout import COMM, HEADER, NET, NET_QUEUE, Struct
from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.errors import RefusedError
from nccl_inspector.summary.codec import decode, encode, encode_process
from tests.fuzzers import mutation, seeds
from tests.fuzzers.summary import Report
from tests.fuzzers.target import Budget, Read, Run, Target
from tests.support.boxes import put

_FILE = "n1.0.nodesummary"
_TABLES: dict[str, Struct] = {
    "comm": layout.COMM, "key": layout.KEY, "hist": layout.HIST, "op": layout.OP,
    "peer": layout.PEER, "line": layout.LINE, "net": layout.NET, "sample": layout.SAMPLE,
    "sample_kind": layout.SAMPLE_KIND, "union": layout.UNION, "skew": layout.SKEW,
    "label": layout.LABEL,
}  # fmt: skip
# Tables within a record: what of, under which name, and how many are worth a change.
_INNER = {
    "line": (layout.WINDOW, "window", layout.LINE_WINDOWS // 8),
    "union": (layout.UNION_WINDOW, "window", layout.UNION_WINDOWS // 8),
    "net": (layout.NET_QUEUE, "queues", layout.NET_QUEUES),
}
_WEIGHTS = {"comm": 4, "op": 4, "key": 2}  # those that most of a report is about; others 1
_SUMMED = 1 << 16  # bytes whose sum decides how an input is read
_LOOKED_AT = 64  # records at the beginning of a table


def _put(chance: Random, found: bytearray, record: Struct, base: int) -> None:
    """Give a member of a record another value."""
    name = chance.choice([*record.offsets])
    code, at = record.codes[name], base + record.offsets[name]
    if code.endswith("s"):
        text = mutation.encoded(chance.choice(mutation.NASTY))[: int(code[:-1])]
        found[at : at + len(text)] = text
        return
    width = struct.calcsize("<" + code[-1])
    count = int(code[:-1] or 1)
    at += width * chance.randrange(count)
    found[at : at + width] = mutation.boundary(chance, width)


def _table(found: bytes | bytearray, word: str) -> tuple[int, int]:
    """Return where a table is, and how many records lie within the box."""
    record, header = _TABLES[word], bytes(found[: HEADER.size])
    at, count = (HEADER.number(header, f"{word}_{part}") for part in ("offset", "count"))
    return at, max(0, min(count, (len(found) - at) // record.size))


def _in_use(chance: Random, found: bytearray, word: str) -> int:
    """Return where a record is, mostly one in use: those begin with a number that is not 0."""
    at, count = _table(found, word)
    size = _TABLES[word].size
    bases = [at + size * chance.randrange(count)]
    if chance.random() < 0.9:
        begins = range(at, at + size * min(count, _LOOKED_AT), size)
        bases = [base for base in begins if any(found[base : base + 8])] or bases
    return chance.choice(bases)


def _change(chance: Random, found: bytearray) -> None:
    where = chance.random()
    if where < 0.12:
        _put(chance, found, HEADER, 0)
        return
    word = chance.choice([one for one in _TABLES for _ in range(_WEIGHTS.get(one, 1))])
    record = _TABLES[word]
    at, count = _table(found, word)
    if not count:
        return
    base = _in_use(chance, found, word)
    if where < 0.25:
        source, base = base, at + record.size * chance.randrange(min(count, _LOOKED_AT))
        found[base : base + record.size] = found[source : source + record.size]
        _put(chance, found, record, base)
    elif word in _INNER and where < 0.7:
        inner, name, places = _INNER[word]
        first = base + record.offsets[name]
        _put(chance, found, inner, first + inner.size * chance.randrange(places))
    elif where < 0.75:
        first, second = (at + record.size * chance.randrange(min(count, 8)) for _ in range(2))
        found[first : first + record.size], found[second : second + record.size] = (
            found[second : second + record.size], found[first : first + record.size],
        )  # fmt: skip
    else:
        _put(chance, found, record, base)


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return a box of which some members are others."""
    if len(data) < HEADER.size or chance.random() < 0.03:
        return mutation.several(chance, data, corpus[:2], mutation.BYTES)
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 8, 30))):
        _change(chance, found)
    return bytes(found)


def _with_network(data: bytes) -> bytes:
    """Return a box with network detail, which the simulation does not play."""
    found = bytearray(data)
    at, _ = _table(found, "net")
    comm, _ = _table(found, "comm")
    generation = COMM.number(data, "generation", comm)
    for place, (peer, is_send) in enumerate(((1, 1), (3, 0), (2, 1))):
        base = at + place * NET.size
        put(
            found, NET, base,
            steps=1000, used=1, comm=0, comm_generation=generation, peer=peer, is_send=is_send,
            bytes=5 << 30, socket_requests=place, other_requests=3, other_bytes=4, refused=place,
        )  # fmt: skip
        struct.pack_into("<4Q", found, base + NET.offsets["ns"], 10**9, 10**8, 10**7, 10**6)
        for number in range(layout.NET_QUEUES - place):
            queue = base + NET.offsets["queues"] + number * NET_QUEUE.size
            put(found, NET_QUEUE, queue, requests=500, bytes=1 << 30, pair=number << 24 | 4711)
    return bytes(found)


def _small(data: bytes) -> bytes:
    """Return the same box without the ends of its tables that are not in use.

    A box has three megabytes, and most of the time would go into copying them.
    """
    begins = sorted((*_table(data, word), word) for word in _TABLES)
    found = bytearray(data[: begins[0][0]])
    for at, count, word in begins:
        size = _TABLES[word].size
        rows = data[at : at + size * count].rstrip(b"\0")
        kept = min(count, len(rows) // size + 2)
        put(found, HEADER, 0, **{f"{word}_offset": len(found), f"{word}_count": kept})
        found += data[at : at + size * kept]
        found += bytes(-len(found) % 64)
    put(found, HEADER, 0, file_bytes=len(found))
    return bytes(found)


@cache
def _seeds() -> list[bytes]:
    # Of each job one; one of them, more rarely, as large as a box is.
    boxes = [job.boxes()[at % 4] for at, job in enumerate(seeds.all_played())]
    boxes = [_with_network(box) if at % 2 else box for at, box in enumerate(boxes)]
    return [boxes[0], *(3 * [_small(box) for box in boxes])]


def _job_of(data: bytes) -> str:
    began_s = HEADER.number(data, "clock.real0_ns") // 10**9
    at = began_s - seeds.START_S
    return [*seeds.JOBS][at] if 0 <= at < len(seeds.JOBS) else "hung"


def prepare(place: Path) -> Run:
    """Return what reads a box as the agent does, beside a whole one, and makes the job's report."""
    found = {}
    for name in seeds.JOBS:
        before = decode(seeds.played(name).summaries[_FILE])
        found[name] = (
            Report(place / name, name, lean=True),
            before,
            encode_process(before.processes[1]),
        )

    fd = os.memfd_create("box")  # for all: new pages take longer than to read what is in them

    def run(data: bytes) -> str | Read:
        os.pwrite(fd, data, 0)
        os.truncate(fd, len(data))
        try:
            process = read_box(fd, len(data), "0_4001", False)
            # Exact records take most of the time: every other input does without.
            if zlib.crc32(data[:_SUMMED]) % 2:
                process = add_samples(fd, len(data), process, 4)
        except RefusedError as err:
            return str(err)
        # By its clock: the second of its start tells the job.
        report, before, neighbour = found[_job_of(data)]
        head = replace(before.head, array_task=process.facts.array_task)
        blocks = [encode_process(process), neighbour]
        decode(encode(head, blocks))  # what the agent writes the report must be able to read

        def rest() -> str:
            with report.with_file(_FILE, encode(head, blocks, before.counters)):
                return report.said()

        return Read(" ".join(process.flags), rest, " ".join(process.flags[:1]) or "no flag")

    return run


TARGET = Target("box", _seeds, mutate, prepare, Budget(), rest_of=48)
