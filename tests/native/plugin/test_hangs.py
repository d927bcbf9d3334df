# SPDX-License-Identifier: Apache-2.0
"""Who is at the root of a standstill, from the boxes of the plugin itself."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hang.find import find_hangs
from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.card import DIVERGENT, MISMATCHED, Hang
from nccl_inspector.model.process import Process
from tests.support.repository import BUILD
from tests.support.standin import started, until
from tests.support.summaries import read_process

PLUGIN = BUILD / "libnccl-profiler-inspector.so"
RANKS = 8
S = 10**9
STOOD_S = 2.0
TIMES = 200  # so much older than they are the operations are made, not to wait for minutes


def boxes(raw: Path) -> list[Process]:
    """Return what can be read: a process that begins has a box that is none yet."""
    found = []
    for path in sorted(raw.glob("*.box")):
        with suppress(RefusedError):
            found.append(read_process(path))
    return found


def stand_still(raw: Path, waiting: int) -> bool:
    """Whether so many ranks have been in an operation for some time."""
    oldest = (max((o.age_ns for o in one.operations), default=0) for one in boxes(raw))
    return sum(age_ns > STOOD_S * S for age_ns in oldest) == waiting


def hangs_of(tmp_path: Path, raw: Path, waiting: int, *words: str) -> tuple[Hang, ...]:
    """Run the stand-in until so many ranks wait, kill it, and read what it left."""
    env = {
        "NCCL_PROFILER_PLUGIN": str(PLUGIN),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(raw),
    }
    options = ["--sizes", "32K", "--rate", "400", "--compute-ms", "0", *words]
    with started(tmp_path, options, ranks=RANKS, env=env):
        until(lambda: stand_still(raw, waiting), "the ranks wait", 60)
    aged = [
        replace(one, operations=tuple(replace(o, age_ns=TIMES * o.age_ns) for o in one.operations))
        for one in boxes(raw)
    ]
    names = name_processes([(1, one) for one in aged])
    return find_hangs(aged, names, Ending(), [0.0] * len(aged))


@pytest.mark.parametrize(
    ("comms", "culprit", "waiting"),
    [
        pytest.param("node,cross,world", 5, RANKS - 1, id="everybody waits"),
        pytest.param("world", 0, RANKS - 1, id="one communicator", marks=pytest.mark.long),
        pytest.param("cross", 3, 3, id="half of the job goes on", marks=pytest.mark.long),
    ],
)
def test_the_rank_that_calls_nothing_more_is_the_root(
    tmp_path: Path, raw: Path, comms: str, culprit: int, waiting: int
) -> None:
    hangs = hangs_of(tmp_path, raw, waiting, "--comms", comms, "--hang", f"{culprit}:3")
    assert hangs
    assert {hang.roots for hang in hangs} == {(f"rank {culprit}",)}
    assert hangs[0].verdict == DIVERGENT
    assert f"rank {culprit}" in hangs[0].never_issued


@pytest.mark.long
def test_the_rank_that_calls_something_else_is_mismatched(tmp_path: Path, raw: Path) -> None:
    hangs = hangs_of(
        tmp_path,
        raw,
        RANKS,
        "--comms",
        "world",
        "--ops",
        "allreduce,allgather",
        "--mismatch",
        "6:3",
    )
    assert [hang.verdict for hang in hangs] == [MISMATCHED]
    assert hangs[0].roots == hangs[0].mismatched == ("rank 6",)
