"""Node summaries: pieces are changed below their compression, and lengths are made right again."""

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Self
from unittest.mock import patch

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.codec import decode, encode, encode_process
from nccl_inspector.summary.nccl_logs import unpack_logs
from tests.fuzzers import mutation, seeds
from tests.fuzzers.forms import check_card
from tests.fuzzers.target import Budget, Read, Run, Target
from tests.simulator.play import JOB_ID

_LENGTH = struct.Struct("<I")


class Report:
    """A directory of reports with one job, of which files are replaced."""

    def __init__(self, place: Path, name: str = "healthy", *, lean: bool = False) -> None:
        """Write the summaries of a played job below `place`.

        `lean`: without exact records, which take most of the time.
        """
        self.given = seeds.played(name).given
        self._summaries = seeds.played(name).summaries
        if lean:
            self._summaries = {
                file: without_samples(data) for file, data in self._summaries.items()
            }
        self._folder = place / str(JOB_ID)
        self._place = place
        self._folder.mkdir(parents=True)
        for file, data in self._summaries.items():
            (self._folder / file).write_bytes(data)

    @contextmanager
    def with_file(self, file: str, data: bytes) -> Iterator[Self]:
        """Give it with another file, and put the right one back."""
        path = self._folder / file
        try:
            path.write_bytes(data)
            yield self
        finally:
            path.write_bytes(self._summaries[file])

    def load(self, *, in_files: bool = False) -> Loaded:
        """Read the summaries; `in_files`: as of a job that is too large for memory.

        Raises:
            InspectorError: there are none.
        """
        large = patch("nccl_inspector.summary.directory.HELD_BYTES_MAX", 0)
        with large if in_files else nullcontext():
            return load_summaries(JOB_ID, self._place, None)

    def said(self, given: JobContext | None = None, *, in_files: bool = False) -> str:
        """Make the report in every form; return what it says; `in_files`: see load()."""
        try:
            loaded = self.load(in_files=in_files)
        except InspectorError as err:
            return str(err)
        card = build_card(loaded, given or self.given)
        return f"{check_card(card)} {' '.join(loaded.problems)}"


def without_samples(data: bytes) -> bytes:
    """Return a summary without exact records."""
    found = decode(data)
    blocks = [
        encode_process(replace(process, samples=None, unions=())) for process in found.processes
    ]
    logs = unpack_logs(found.nccl_logs)
    return encode(found.head, blocks, found.counters, found.vendor, logs)


def take_apart(data: bytes) -> tuple[dict[str, object], list[bytes], list[list[bytes]]]:
    """Return the first line, the parts after it, and the pieces of each block, unpacked.

    Raises:
        ValueError, struct.error, zlib.error, KeyError: it is spoiled.
    """
    end = data.index(b"\n")
    head = json.loads(data[:end])
    at, parts = end + 1, []
    for name in ("counters_bytes", "vendor_bytes"):
        parts.append(_inflated(data[at : at + head[name]]))
        at += head[name]
    blocks = []
    while at < len(data):
        size = _LENGTH.unpack_from(data, at)[0]
        blocks.append(_pieces(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return head, parts, blocks


def _pieces(block: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(block):
        size = _LENGTH.unpack_from(block, at)[0]
        found.append(_inflated(block[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def _inflated(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, 8 << 20) if data else b""


def _deflated(data: bytes) -> bytes:
    return zlib.compress(data, 1) if data else b""


def put_together(head: object, parts: Sequence[bytes], blocks: Sequence[Sequence[bytes]]) -> bytes:
    """Return a summary with right lengths."""
    packed = [_deflated(one) for one in parts]
    if isinstance(head, dict):
        sizes = dict(zip(("counters_bytes", "vendor_bytes"), map(len, packed), strict=True))
        head = head | sizes | {"processes": len(blocks)}
    found = [mutation.dumped(head), b"\n", *packed]
    for pieces in blocks:
        inner = [_deflated(one) for one in pieces]
        block = b"".join(_LENGTH.pack(len(one)) + one for one in inner)
        found += [_LENGTH.pack(len(block)), block]
    return b"".join(found)


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return a summary of which a part is another."""
    if chance.random() < 0.1:
        return mutation.several(chance, data, corpus, mutation.BYTES)
    try:
        head, parts, blocks = take_apart(data)
        _, more_parts, more = take_apart(chance.choice(corpus))
    except (ValueError, struct.error, zlib.error, KeyError, TypeError, AttributeError):
        return mutation.several(chance, data, corpus, mutation.BYTES)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change(chance, head, parts, blocks)
    if more and chance.random() < 0.1:
        blocks[chance.randrange(len(blocks) + 1) :] = more
    if chance.random() < 0.05:
        parts = more_parts
    if blocks and chance.random() < 0.05:
        blocks += [chance.choice(blocks)] * chance.choice((1, 3, 60))
    return put_together(head, parts, blocks)


def _change(
    chance: Random, head: dict[str, object], parts: list[bytes], blocks: list[list[bytes]]
) -> None:
    where = chance.random()
    if where < 0.1:
        changed = mutation.change_value(chance, head)
        head.clear()
        head |= changed if isinstance(changed, dict) else {"format": changed}
    elif where < 0.2:
        at = chance.randrange(len(parts))
        parts[at] = mutation.change_json(chance, parts[at], parts)
    elif blocks:
        pieces = chance.choice(blocks)
        if not pieces:
            return
        at = 0 if chance.random() < 0.5 else chance.randrange(len(pieces))
        other = [chance.choice(chance.choice(blocks) or [b""])]
        if at in (0, 4):
            pieces[at] = mutation.change_json(chance, pieces[at], other)
        else:
            pieces[at] = mutation.several(chance, pieces[at], other, mutation.BYTES)


@cache
def _seeds() -> list[bytes]:
    whole = [data for job in seeds.all_played() for data in job.summaries.values()]
    return [*whole, *map(without_samples, whole)]


def prepare(place: Path) -> Run:
    """Return what makes the report of a job one of whose two summaries is the input."""
    reports = {name: Report(place / name, name) for name in seeds.JOBS}

    def run(data: bytes) -> Read:
        name, node = seeds.job_of(data), "n2" if b'"node": "n2"' in data[:4096] else "n1"
        file, in_files = f"{node}.0.nodesummary", zlib.crc32(data) % 4 == 0

        def rest() -> str:
            with reports[name].with_file(file, data) as report:
                return report.said(in_files=in_files)

        try:
            words = way = f"{len(decode(data).processes)} processes"
        except RefusedError as err:
            words, way = str(err), err.reason
        return Read(words, rest, way)

    return run


TARGET = Target("summary", _seeds, mutate, prepare, Budget(), rest_of=48)
