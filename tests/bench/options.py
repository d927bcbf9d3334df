# SPDX-License-Identifier: Apache-2.0
"""What each option and each older interface of the profiler plugin costs, in time and instructions.

Instructions are counted by valgrind, as the difference of two runs. They hardly depend on the
neighbours on the machine. They are left out where valgrind is not installed. Under valgrind
everything is some thirty times slower, so the plugin's own thread has more rounds for each
operation.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.bench.figure import Figure
from tests.bench.played import NOTHING, OURS, PROGRAM, Played, environment, play, raw_dir

# At full speed everything is above any budget, and would not be measured whole.
_WHOLE = {"NCCL_INSPECTOR_BUDGET_PERCENT": "0"}
_NET = {"NCCL_INSPECTOR_NET": "on"}
_APP, _KERNEL = "application thread", "kernel events"


class _Row(NamedTuple):
    """A row of the player's, as a figure."""

    what: str
    row: str
    limit: float | None


class _Case(NamedTuple):
    """What is played, and what is read of it."""

    part: str
    api: int
    env: Mapping[str, str]
    rows: tuple[_Row, ...]
    # Whether each operation gets a time before the program ends: v3 waits for the last channels.
    timed: bool = True


_CASES = (
    _Case(
        "warm", 4, _WHOLE,
        (
            _Row(f"v4: {_APP} per operation", "app/8", 30),
            _Row(f"v4: {_KERNEL} per operation", "kernel/8", 80),
            _Row(f"v4: {_APP} per lone Send or Recv", "sends_app/8", 60),
        ),
    ),
    _Case("warm", 3, _WHOLE, (_Row(f"v3: {_APP} per operation", "app/8", 80),), timed=False),
    _Case(
        "warm", 7, _WHOLE | {"NCCL_INSPECTOR_PHASES": "1"},
        (_Row(f"phases=on (v7): {_KERNEL} per operation", "kernel/8", 300),),
    ),
    _Case(
        "warm", 5, _WHOLE | {"NCCL_INSPECTOR_HOST_TIME": "1"},
        (_Row(f"host_time=on: {_APP} per operation", "app/8", 200),),
    ),
    _Case(
        "counted", 5, _WHOLE,
        (
            _Row(f"counted only: {_APP} per lone Send or Recv", "counted_app/8", 60),
            _Row(f"counted only: {_KERNEL} per lone Send or Recv", "counted_kernel/8", 40),
        ),
        timed=False,
    ),
    _Case(
        "net", 5, _NET,
        (_Row(f"net=on: {_KERNEL} per operation, one in N followed", "net_kernel/8", 250),),
    ),
    _Case(
        "net", 5, _NET | _WHOLE,
        (_Row(f"net=on without a budget: {_KERNEL} per operation", "net_kernel/8", None),),
    ),
)  # fmt: skip


def _figures(folder: Path, case: _Case, rounds: int) -> Iterator[Figure]:
    played = Played()
    for _ in range(3):
        play(folder, case.part, rounds, api=case.api, env=case.env, into=played)
    for one in case.rows:
        both = played.quietest(one.row)
        yield Figure(
            f"{one.what}, 8 channels", "ns", both.net, one.limit,
            ours=both.ours, nothing=both.nothing, count=len(played.of(one.row)),
            lost=played.lost if case.timed else None,
        )  # fmt: skip


_COUNTED = re.compile(r"^totals: (\d+)", re.MULTILINE)
_FEW, _MANY = 40_000, 140_000  # operations; the first 512 of a communicator cost more


def _instructions(folder: Path, valgrind: str, load: str, side: str, many: int) -> tuple[int, int]:
    """Return those of the threads that call NCCL, and of all others."""
    with raw_dir(folder) as raw:
        out = raw / "instructions"
        subprocess.run(
            [
                valgrind, "-q", "--tool=callgrind", "--separate-threads=yes",
                f"--callgrind-out-file={out}", PROGRAM, f"only-{side}-{load}", NOTHING, OURS,
                str(many), "5",
            ],
            env=environment(raw, 1_000_000, _WHOLE),
            stdout=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
        counts = [
            int(_COUNTED.findall(path.read_text(encoding="utf-8"))[0])
            for path in sorted(raw.glob("instructions-*"))
        ]
    return counts[0], sum(counts[1:])


def _counted(folder: Path) -> Iterator[Figure]:
    valgrind = shutil.which("valgrind")
    for load in ("colls", "mixed", "sends", "counted") if valgrind else ():
        per: dict[str, list[float]] = {}
        for side in ("ours", "nothing"):
            few = _instructions(folder, str(valgrind), load, side, _FEW)
            many = _instructions(folder, str(valgrind), load, side, _MANY)
            per[side] = [
                (more - less) / (_MANY - _FEW) for less, more in zip(few, many, strict=True)
            ]
        for place, (who, limit) in enumerate((("calling threads", 1700), ("own thread", None))):
            ours, nothing = per["ours"][place], per["nothing"][place]
            what = f"{load}: instructions of the {who} per operation, 8 channels"
            yield Figure(what, "instr", ours - nothing, limit, ours=ours, nothing=nothing)


def measure(folder: Path, rounds: int) -> list[Figure]:
    """Measure the plugin that is built.

    Raises:
        subprocess.SubprocessError: a part failed.
    """
    figures = [one for case in _CASES for one in _figures(folder, case, max(9, rounds // 9 * 3))]
    return [*figures, *(_counted(folder) if rounds >= 30 else ())]
