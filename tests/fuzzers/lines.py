"""JSON lines of one rank beside those of the others, through `analyze`."""

import gzip
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

from nccl_inspector.capture.analyze import analyze_directory
from nccl_inspector.errors import InspectorError
from tests.fuzzers import mutation, seeds
from tests.fuzzers.forms import check_card
from tests.fuzzers.target import Budget, Run, Target
from tests.support import json_lines

_LINES = 60  # of a file: DuckDB reads millions, but mutation and join take time


def _head(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:_LINES])


@cache
def _files() -> dict[str, bytes]:
    """Return the files of a job, shortened."""
    return {
        name: data if name.endswith(".end") else _head(data)
        for name, data in seeds.played("healthy").lines.items()
    }


@cache
def _seeds() -> list[bytes]:
    own = next(data for name, data in _files().items() if name.endswith(".log"))
    verbose = [json_lines.whole(0, coll_perf={**json_lines.coll(at), **json_lines.traces("coll")})
               for at in range(8)]  # fmt: skip
    bare = [json_lines.marker(0, 3, 1), *({"coll_perf": json_lines.coll(at)} for at in range(3)),
            {"p2p_perf": json_lines.p2p()}]  # fmt: skip
    return [own, json_lines.text(verbose), json_lines.text(bare), gzip.compress(own, mtime=0)]


def prepare(place: Path) -> Run:
    """Return what analyzes the job with another first file."""
    files = _files()
    first = next(name for name in files if name.endswith(".log"))
    for name, data in files.items():
        (place / name).write_bytes(data)

    def run(data: bytes) -> str:
        zipped = data.startswith(b"\x1f\x8b")
        path = place / (f"{first}.gz" if zipped else first)
        (place / first).unlink(missing_ok=True)
        (place / f"{first}.gz").unlink(missing_ok=True)
        path.write_bytes(data)
        try:
            card = analyze_directory(place, None)
        except InspectorError as err:
            return str(err)
        return check_card(card)

    return run


def mutate(chance: Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """Return other lines, of which most are JSON."""
    if data.startswith(b"\x1f\x8b"):
        return mutation.several(chance, data, (data,), mutation.BYTES)
    if chance.random() < 0.3:
        return mutation.several(chance, data, corpus, mutation.TEXT)
    rows = data.split(b"\n")
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(rows))
        rows[at] = mutation.change_json(chance, rows[at], corpus)
    return b"\n".join(rows)


TARGET = Target(
    "lines", _seeds, mutate, prepare,
    Budget(cpu_s=2.0, cpu_times=4.0, memory_bytes=256 << 20), most_bytes=1 << 20,
)  # fmt: skip
