# SPDX-License-Identifier: Apache-2.0
"""Tasks join shares of a capture, and the report is that of one process."""

import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from click.testing import CliRunner

from nccl_inspector.capture import pieces
from nccl_inspector.capture.analyze import analyze_directory
from nccl_inspector.capture.shares import BLOCK_BITS
from nccl_inspector.capture.slurm_tasks import slurm_tasks
from nccl_inspector.cli import cli
from tests.simulator import plans
from tests.simulator.case import of_size
from tests.simulator.cases import gpu, straggler
from tests.simulator.making import make_job
from tests.simulator.play import play
from tests.support.fake_srun import make_srun
from tests.support.json_lines import START_US, header, ours, p2p, whole, write, write_job

# Together they take minutes: part of the long tests, so that `make test` stays within ten.
pytestmark = pytest.mark.long

TASKS = 3
COMMS = "0xa", "0xb", "0xc", "0xd", "0xe"


def printed(*words: str | Path) -> str:
    """The report or the error, but for when it was made."""
    done = CliRunner().invoke(cli, ["analyze", *map(str, words), "--json"])
    return re.sub('"generated_at": "[^"]*"', "", done.output)


@pytest.fixture
def by_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str | Path, ...]:
    monkeypatch.setenv("PATH", str(make_srun(tmp_path)), prepend=":")
    monkeypatch.setattr(pieces, "PART_BYTES_MIN", 20_000)
    return "--slurm", str(TASKS), "--shared", tmp_path


def one_long_communicator(folder: Path) -> None:
    """More collectives than one block has, and a rank that is late in the second one."""
    numbers = (1 << BLOCK_BITS) + 2000
    times = [
        [100 + at % 7 + (rank != 1) * 800 * (at > 1 << BLOCK_BITS) for at in range(numbers)]
        for rank in range(2)
    ]
    write_job(folder, times, 2_000)


def a_large_file_was_rotated(folder: Path) -> None:
    """The losses of a process are in its newest file, which is the smaller one."""
    for rank in range(2):
        for number, (name, told) in enumerate(((".log", range(180)), (".1.log", range(180, 200)))):
            lines = [
                ours(at, rank, 100_000, START_US + at * 1000, lines_dropped=5 * number)
                for at in told
            ]
            write(folder, f"node0-pid{1000 + rank}{name}", lines)


def ranks_end_apart(folder: Path) -> None:
    """Many ranks at a few operations, and they do not agree on a communicator's name."""
    for rank in range(16):
        lines = [
            ours(at, rank, (100 + rank) * 1000, START_US + at * 1000)
            | {"header": header(rank, 16, comm) | {"comm_name": f"of {rank % 3}"}}
            for comm in COMMS
            for at in range(20 - (rank % 3) * 3)
        ]
        write(folder, f"{rank}.log", lines)


def nothing(folder: Path) -> None:
    """Files without a line, which is an error."""
    for name in ("a.log", "b.log"):
        (folder / name).write_bytes(b"")


ONE_LONG = pytest.param(one_long_communicator, marks=pytest.mark.long)


def many_communicators(folder: Path) -> None:
    """Collectives and Sends of several communicators, which are in several shares."""
    for rank in range(4):
        lines = []
        for at in range(400):
            comm, now_us = COMMS[at % len(COMMS)], START_US + at * 100_000
            of_comm = {"header": header(rank, comm=comm)}
            lines.append(ours(at, rank, (900 - 200 * rank + at % 11) * 1000, now_us) | of_comm)
            peer = p2p(at, (rank + 1) % 4)
            peer |= {"p2p_exec_time_ns": 5000 + at * 7, "p2p_end_us": now_us + 30}
            lines.append(whole(rank, p2p_perf=peer) | of_comm)
        write(folder, f"{rank}.log", lines)


def the_same_file_twice(folder: Path) -> None:
    """Repeated lines show in collectives only, and repeated Sends are then left out, too."""
    many_communicators(folder)
    shutil.copy(folder / "1.log", folder / "again.log")


@pytest.mark.parametrize(
    ("made", "tells"),
    [
        pytest.param(one_long_communicator, '"count": 67536', marks=pytest.mark.long),
        (many_communicators, "0xe"),
        (the_same_file_twice, '"duplicate": 800'),
        (a_large_file_was_rotated, '"line_dropped": 10'),
        (ranks_end_apart, "the lines of rank 2, rank 5, rank 8, rank 11 and 1 more end at"),
        (nothing, "no operation in these files"),
    ],
)
def test_shares_say_what_the_whole_says(
    made: Callable[[Path], None], tells: str, tmp_path: Path, by_tasks: tuple[str | Path, ...]
) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    made(folder)
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    whole_printed = printed(folder, "--parquet", one)
    assert printed(folder, "--parquet", other, *by_tasks) == whole_printed
    assert tells in whole_printed
    assert one.exists() == other.exists() == (made is not nothing)
    if one.exists():
        rows = [duckdb.read_parquet(str(path)) for path in (one, other)]
        assert not rows[0].except_(rows[1]).fetchall()
        assert [len(found) for found in rows] == [len(rows[0])] * 2


@pytest.mark.long
@pytest.mark.parametrize("planner", [plans.pipeline, plans.experts])
def test_shares_of_a_training_say_what_the_whole_says(
    planner: object, tmp_path: Path, by_tasks: tuple[str | Path, ...]
) -> None:
    small = of_size(planner, wall_s=(150.0, 300.0), nodes=(2,))  # type: ignore[arg-type]
    make = straggler(small, gpu, 0.02, 0.06)
    job, _ = make_job(make(np.random.default_rng(311), 4), 4)
    folder = tmp_path / "capture"
    folder.mkdir()
    play(job, folder, json=True)
    found = printed(folder / "lines", *by_tasks)
    assert found == printed(folder / "lines")
    assert '"cause": "straggler"' in found


@pytest.mark.usefixtures("by_tasks")
@pytest.mark.parametrize("tasks", [0, 3])
def test_progress_is_shown_from_the_first_line_to_the_last_look(tasks: int, tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    folder.mkdir()
    many_communicators(folder)
    shown: list[tuple[int, int]] = []
    bar = nullcontext(lambda done, total: shown.append((done, total)))
    with slurm_tasks(tasks, tmp_path, print) if tasks else nullcontext() as workers:
        analyze_directory(folder, None, bar, workers)
    shares = [done / total for done, total in shown]
    assert shares == sorted(shares)
    assert len(set(shares)) >= 3
    assert shares[-1] == 1


@pytest.mark.parametrize("made", [ONE_LONG, many_communicators])
def test_a_capture_is_not_in_one_share(
    made: Callable[[Path], None],
    tmp_path: Path,
    by_tasks: tuple[str | Path, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither if there are many communicators, nor if there is one with many collectives."""
    kept: list[list[int]] = []
    real = shutil.rmtree

    def count(path: Any, **more: Any) -> None:
        if str(path).rpartition("/")[2].startswith(".nccl-inspector-analyze"):
            found = [
                (one.parent.name, len(duckdb.read_parquet(str(one))))
                for one in Path(path).glob("read-*/share=*/*.parquet")
            ]
            shares = {name for name, _ in found}
            kept.append(sorted(sum(rows for own, rows in found if own == name) for name in shares))
        real(path, **more)

    monkeypatch.setattr(shutil, "rmtree", count)
    folder = tmp_path / "capture"
    folder.mkdir()
    made(folder)
    printed(folder, *by_tasks)
    assert len(kept.pop()) > 1
