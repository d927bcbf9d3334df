# SPDX-License-Identifier: Apache-2.0
"""What the summaries of one job may take in memory, whatever its boxes hold."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.box.layout import HIST_BUCKETS
from nccl_inspector.model.process import Histogram, Process
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.budget import (
    JOB_BYTES_MAX,
    NODE_BYTES,
    Budget,
    larger_share,
    node_share,
)
from nccl_inspector.summary.codec import decode, encode, encode_process
from tests.support.boxes import MS, BoxOf, CommOf, KeyOf, write_box
from tests.support.summaries import HEAD, read_process

# As many processes as a node may have boxes.
MANY = 256
# 160 KiB that became 2.3 GB, in a child that has half a GiB beyond the interpreter's own.
_LOAD = """
import resource, sys
from pathlib import Path
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import load_summaries
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20),) * 2)
card = build_card(load_summaries(42, Path(sys.argv[1]), None))
print("\\n".join(card.data_quality.missing))
"""


@pytest.fixture
def honest(tmp_path: Path) -> Process:
    box = BoxOf([CommOf(7, 0, 2, name="world")], [KeyOf(0, [5 * MS] * 20)])
    return read_process(write_box(tmp_path, "0_1", box))


def bomb(process: Process) -> Process:
    """Return a process all of whose tables are as full as a box's can be, and compress well."""
    full = Histogram(tuple(range(HIST_BUCKETS)), (1,) * HIST_BUCKETS)
    key = process.keys[0]._replace(histogram=full, ops=HIST_BUCKETS)
    return replace(process, keys=tuple(key._replace(size_class=n % 60) for n in range(256)))


def write_nodes(place: Path, nodes: dict[str, list[bytes]]) -> None:
    """Write the summaries of a job's nodes, each of these blocks."""
    (place / "42").mkdir()
    for node, blocks in nodes.items():
        names = ",".join(nodes)
        head = replace(HEAD, node=node, nodelist=names, num_nodes=len(nodes), problems=())
        (place / "42" / f"{node}.0.nodesummary").write_bytes(encode(head, blocks))


def test_a_bomb_of_summaries_takes_no_more_memory_than_the_jobs_share(
    tmp_path: Path, honest: Process
) -> None:
    write_nodes(tmp_path, {"n1": [encode_process(bomb(honest))] * MANY})
    assert (tmp_path / "42" / "n1.0.nodesummary").stat().st_size < 512 << 10
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "n1: 253 of 256 processes left out: their measurements would take more" in done.stdout


def test_a_hostile_node_does_not_use_up_the_share_of_the_others(
    tmp_path: Path, honest: Process
) -> None:
    good, bad = encode_process(honest), encode_process(bomb(honest))
    write_nodes(tmp_path, {"a1": [bad] * MANY, "n1": [good] * 8, "n2": [good] * 8})
    loaded = load_summaries(42, tmp_path, None)
    found = {one.head.node: (len(one.processes), one.left_out) for one in loaded.summaries}
    assert found["n1"] == found["n2"] == (8, 0)
    assert sum(found["a1"]) == MANY
    assert [one.partition(":")[0] for one in loaded.problems] == ["a1"]


def test_what_others_leave_over_is_for_a_node_that_needs_more(
    tmp_path: Path, honest: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that holds one of the four processes of a node, in a job of four nodes."""
    good, big = encode_process(honest), encode_process(bomb(honest))
    budget = Budget(JOB_BYTES_MAX)
    decode(encode(HEAD, [big]), budget)
    one = JOB_BYTES_MAX - budget.left
    monkeypatch.setattr("nccl_inspector.summary.budget.JOB_BYTES_MAX", 5 * one)
    write_nodes(tmp_path, {"n1": [big] * 3, "n2": [good], "n3": [good], "n4": [good]})
    loaded = load_summaries(42, tmp_path, None)
    assert loaded.problems == ()
    assert sum(len(one.processes) for one in loaded.summaries) == 6


def test_a_process_that_fits_is_read_also_behind_one_that_does_not(honest: Process) -> None:
    data = encode(HEAD, [encode_process(bomb(honest)), encode_process(honest)])
    found = decode(data, Budget(1 << 20))
    assert found.left_out == 1
    assert found.processes == (replace(honest, lines=found.processes[0].lines),)
    assert decode(data).left_out == 0


def test_the_budget_is_by_the_nodes_that_slurm_gave_the_job() -> None:
    assert node_share(0) == node_share(1) == NODE_BYTES
    assert node_share(1024) * 1024 <= JOB_BYTES_MAX
    # Eight ranks of an ordinary job take some 82 KB each.
    assert node_share(1024) > 8 * 4 * 82_000
    assert larger_share(100, [50, 70], 2) == 160
    assert larger_share(100, [NODE_BYTES], 1) == NODE_BYTES
