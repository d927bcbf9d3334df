# SPDX-License-Identifier: Apache-2.0
"""Run one part of build/bench/nccl, which plays NCCL against the plugin, and read what it says."""

import os
import shutil
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tests.support.boxes import read_dead_box
from tests.support.repository import BUILD

PROGRAM = BUILD / "bench" / "nccl"
NOTHING = BUILD / "bench" / "nothing.so"
OURS = BUILD / "libnccl-profiler-inspector.so"
API = 5  # of NCCL 2.28; NVIDIA's Inspector speaks no other
LIMIT_S = 120
BLOCK = 9  # rounds


@dataclass(frozen=True, slots=True)
class Both:
    """The same figure of both plugins."""

    ours: float
    nothing: float

    @property
    def net(self) -> float:
        """What ours adds."""
        return self.ours - self.nothing


def _percentile(values: Sequence[float], percent: float) -> float:
    if percent == 50:
        return statistics.median(values)
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


@dataclass
class Played:
    """The lines of one or more runs, by row and side, and what became of the operations."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    known: int = 0  # operations in the boxes
    json_lines: int | None = None  # operations in JSON lines; None: none were written

    def add(self, line: str) -> None:
        """Take a line `row side value`."""
        row, side, value = line.split()
        self.values[row, side].append(float(value))

    def of(self, row: str, side: str = "ours") -> list[float]:
        """Return the values of a row."""
        return self.values[row, side]

    def one(self, row: str, side: str = "ours") -> float:
        """Return the value of a row that is said once."""
        (value,) = self.of(row, side)
        return value

    def blocks(self, row: str, percent: float, size: int = BLOCK) -> list[Both]:
        """Return a percentile of both sides in each block of so many rounds, in order.

        Rounds that fill no block are left out, unless there is none at all.
        """
        ours, nothing = self.of(row), self.of(row, "nothing")
        starts = range(0, max(1, len(ours) - size + 1), size)
        return [
            Both(
                _percentile(ours[i : i + size], percent),
                _percentile(nothing[i : i + size], percent),
            )
            for i in starts
        ]

    def quietest(self, row: str, size: int = BLOCK) -> Both:
        """Return the medians of the block in which both together took least.

        Others on the machine can only make things slower, and for a while, so
        this is the block that they disturbed least.
        """
        return min(self.blocks(row, 50, size), key=lambda block: block.ours + block.nothing)

    @property
    def told(self) -> int:
        """Operations that the plugin was told of."""
        return int(sum(self.of("told")))

    @property
    def lost(self) -> int:
        """Those that are in no histogram of a box."""
        return self.told - self.known


def _known(raw: Path) -> int:
    return sum(key.ops for path in raw.glob("*.box") for key in read_dead_box(path).keys)


def _json_lines(raw: Path) -> int | None:
    files = [path for kind in ("*.log", "*.jsonl") for path in raw.rglob(kind)]
    if not files:
        return None
    return sum(path.read_bytes().count(b'_perf"') for path in files)


def environment(raw: Path, interval_us: int, more: Mapping[str, str]) -> dict[str, str]:
    """Return what SPANK would set, and nothing that is not said here."""
    return {
        "PATH": os.environ["PATH"],
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(raw),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": str(interval_us),
    } | dict(more)


@contextmanager
def raw_dir(folder: Path) -> Iterator[Path]:
    """A directory like a job's raw/, for one run."""
    path = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def arguments(what: str, rounds: int, ours: Path = OURS, api: int = API) -> list[str | Path]:
    """Return the command that plays a part by that version of NCCL's profiler interface."""
    return [PROGRAM, what, NOTHING, ours, str(rounds), str(api)]


def play(
    folder: Path,
    what: str,
    rounds: int = 0,
    *,
    into: Played | None = None,
    interval_us: int = 1_000_000,
    ours: Path = OURS,
    api: int = API,
    env: Mapping[str, str] = MappingProxyType({}),
) -> Played:
    """Play a part once and return what it says, added to `into`; `{raw}` in `env` is the directory.

    Raises:
        subprocess.SubprocessError: it failed, or did not end.
    """
    played = into if into is not None else Played()
    with raw_dir(folder) as raw:
        more = {key: value.replace("{raw}", str(raw)) for key, value in env.items()}
        done = subprocess.run(
            arguments(what, rounds, ours, api),
            env=environment(raw, interval_us, more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
        for line in done.stdout.splitlines():
            played.add(line)
        played.known += _known(raw)
        played.json_lines = _json_lines(raw)
    return played
