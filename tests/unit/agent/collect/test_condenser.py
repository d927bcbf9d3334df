# SPDX-License-Identifier: Apache-2.0
"""A job of many short steps: boxes of ended processes make room, and the summary has them all."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.agent import condenser as condenser_module
from nccl_inspector.agent.collect import Collector
from nccl_inspector.agent.condensed import CONDENSED_BYTES_MAX, FILE
from nccl_inspector.agent.condenser import KEPT_MAX, Condenser
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.box.layout import STATE_FINALIZED, STATE_LIVE
from nccl_inspector.settings.config import parse_config
from nccl_inspector.summary.codec import NodeSummary, decode
from tests.support.boxes import (
    BOX_BYTES,
    JOB_UID,
    MS,
    BoxOf,
    CommOf,
    KeyOf,
    lock_held,
    make_job,
    make_reports,
    make_run_dir,
    names,
    write_box,
    write_user_file,
)
from tests.support.marks import as_root
from tests.support.mounts import fill, mounted

BOX = BoxOf([CommOf(7, 0, 2, name="world")], [KeyOf(0, [5 * MS] * 20)])
STEPS = KEPT_MAX + 8
WAIT_S = 10


class Node:
    """A run directory with one job, and the agent's two who read boxes."""

    def __init__(self, place: Path, run_dir: Path) -> None:
        self.place, self.run_dir = place, make_run_dir(run_dir)
        self.job = self.run_dir / "jobs" / "42"
        self.raw = make_job(self.job)
        self.tally = Tally()
        self._fd = os.open(run_dir, os.O_RDONLY)
        self._reports = make_reports(place)
        self._condenser = Condenser(self._fd, self.tally, AtWork(self._fd))

    def step(self, number: int, state: int = STATE_FINALIZED) -> Path:
        """A step has ended: its process's box, each a second older than the next one's."""
        box = write_box(self.raw, f"{number}_{1000 + number}", replace(BOX, state=state))
        os.utime(box, (1_700_000_000 + number,) * 2)
        return box

    def condense(self) -> list[str]:
        """A pass; return the boxes that are left."""
        self._condenser.run_pass({42: JOB_UID})
        return [name for name in names(self.raw) if name.endswith(".box")]

    def summary(self) -> NodeSummary:
        """The job ends."""
        self.job.rename(self.run_dir / "ended" / "42.1700000000000000000")
        config = parse_config(f"run_dir = {self.run_dir}\n{self._reports}", "test")
        collector = Collector(self._fd, config, self.tally, AtWork(self._fd))
        assert collector.run_pass(WAIT_S) == 0
        collector.close()
        return decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())

    def close(self) -> None:
        """End."""
        self._condenser.close()
        os.close(self._fd)


@pytest.fixture
def node(open_path: Path) -> Iterator[Node]:
    one = Node(open_path, open_path / "run")
    yield one
    one.close()


def steps_of(summary: NodeSummary) -> list[int]:
    return sorted(int(process.facts.name.split("_")[0]) for process in summary.processes)


def test_the_oldest_boxes_go_and_the_summary_has_all_processes(node: Node) -> None:
    for number in range(STEPS):
        node.step(number)
    series = write_user_file(node.raw / "nccl_inspector_metrics_GPU0_0_1000.prom", b"# EOF\n")
    left = node.condense()
    assert sorted(int(name.split("_")[2]) for name in left) == list(range(8, STEPS))
    assert not series.exists(), "nobody publishes the series of a process that has ended"
    assert (node.job / FILE).stat().st_size < 8 * (8 << 10)
    assert node.condense() == left, "what is left is no more than may be"
    found = node.summary()
    assert steps_of(found) == list(range(STEPS))
    assert {process.keys[0].ops for process in found.processes} == {20}
    assert not found.head.problems


def test_few_boxes_stay_as_they_are(node: Node) -> None:
    for number in range(KEPT_MAX):
        node.step(number)
    assert len(node.condense()) == KEPT_MAX
    assert not (node.job / FILE).exists()


def test_who_lives_keeps_its_box_and_who_died_comes_last(node: Node) -> None:
    dead, living = node.step(0, STATE_LIVE), node.step(1, STATE_LIVE)
    ending = node.step(2)
    for number in range(3, STEPS):
        node.step(number)
    with lock_held(living), lock_held(ending):
        node.condense()
        assert living.exists(), "its process holds it"
        assert ending.exists(), "it has said its last word, and its process is still there"
        assert dead.exists()
    for number in range(STEPS, 2 * STEPS):
        node.step(number, STATE_LIVE)
    node.condense()
    assert not dead.exists()
    assert node.tally.lost > 0
    lost = node.tally.lost
    node.condense()
    assert node.tally.lost == lost, "each is counted once"
    assert steps_of(node.summary()) == list(range(2 * STEPS))


def test_who_beats_keeps_its_box_without_a_lock(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its application has closed a descriptor that was not its own."""
    beats = replace(BOX, state=STATE_LIVE, header={"beat_real_ns": time.time_ns()})
    box = write_box(node.raw, "0_1", beats)
    monkeypatch.setattr(condenser_module, "FULL_SHARE", 0.0)
    assert node.condense() == [box.name]


def test_in_a_tmpfs_that_is_half_full_all_of_them_go(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = [node.step(0), node.step(1)]
    monkeypatch.setattr(condenser_module, "FULL_SHARE", 0.0)
    assert node.condense() == []
    assert not any(box.exists() for box in boxes)
    assert steps_of(node.summary()) == [0, 1]


@as_root
def test_where_nothing_is_free_a_box_makes_room_for_what_is_kept_of_it(open_path: Path) -> None:
    run_dir = open_path / "run"
    run_dir.mkdir()
    with mounted(run_dir, "-t", "tmpfs", "-o", f"size={3 * BOX_BYTES}", "none"):
        node = Node(open_path, run_dir)
        node.step(0)
        node.step(1)
        fill(run_dir)
        assert node.condense() == []
        assert steps_of(node.summary()) == [0, 1]
        node.close()


@as_root
def test_what_a_user_keeps_from_being_removed_holds_up_nobody_else(
    node: Node, tmp_path: Path
) -> None:
    for number in range(STEPS):
        node.step(number)
    series = write_user_file(node.raw / "nccl_inspector_metrics_GPU0_0_1000.prom", b"# EOF\n")
    other = tmp_path / "other"
    other.touch()
    with mounted(series, "--bind", str(other)):
        assert len(node.condense()) == STEPS - 1
        assert len(node.condense()) == KEPT_MAX, "its box is gone: it holds up nothing more"
    assert steps_of(node.summary()) == list(range(STEPS))


def test_a_box_whose_process_is_kept_already_is_not_counted_twice(node: Node) -> None:
    """The agent is killed between its two steps."""
    boxes = [node.step(number) for number in range(STEPS)]
    kept = node.place / "kept.box"
    os.link(boxes[0], kept)
    node.condense()
    os.link(kept, boxes[0])
    assert steps_of(node.summary()) == list(range(STEPS))


@pytest.mark.parametrize("most", [1, 40, 300])
def test_what_was_half_written_is_overwritten(node: Node, most: int) -> None:
    """The agent is killed while it writes of a process, of which there are more bytes to come."""
    for number in range(STEPS):
        node.step(number)
    node.condense()
    record = node.job / FILE
    line_and_block = record.read_bytes()
    with record.open("ab") as file:
        file.write(line_and_block[:most])
    node.step(STEPS)
    node.condense()
    assert steps_of(node.summary()) == list(range(STEPS + 1))


def test_a_box_that_is_refused_waits_for_the_end_of_the_job(node: Node) -> None:
    for number in range(STEPS):
        node.step(number)
    odd = write_box(node.raw, "77_1", replace(BOX, header={"key_offset": 7}, state=STATE_FINALIZED))
    os.utime(odd, (1, 1))
    left = node.condense()
    assert odd.name in left
    assert node.tally.rejected["bad_box"] == 1
    node.condense()
    assert node.tally.rejected["bad_box"] == 1, "once is enough"
    assert steps_of(node.summary()) == list(range(STEPS))


def test_what_is_kept_of_one_users_jobs_is_bounded(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(STEPS):
        node.step(number)
    monkeypatch.setattr(condenser_module, "WHOLE_BLOCK_BYTES_MAX", CONDENSED_BYTES_MAX - 3000)
    node.condense()
    kept = (node.job / FILE).stat().st_size
    assert 3000 < kept < 6000, "what fits by its size is kept, and no more"
    node.condense()
    assert (node.job / FILE).stat().st_size == kept
    assert steps_of(node.summary()) == list(range(STEPS))


def test_a_user_cannot_plant_the_record(node: Node) -> None:
    for number in range(STEPS):
        node.step(number)
    write_user_file(node.job / FILE, b'{"name": "x"}\n')
    assert len(node.condense()) == STEPS
    found = node.summary()
    assert steps_of(found) == list(range(STEPS))
    assert any("wrong_owner" in problem for problem in found.head.problems)
