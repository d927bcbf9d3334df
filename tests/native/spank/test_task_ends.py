# SPDX-License-Identifier: Apache-2.0
"""How tasks ended is kept for the report, where only the owner of the run directory can write."""

import os
from pathlib import Path

import pytest

from nccl_inspector.model.task_end import FILE, TaskEnd, parse_task_ends
from tests.support.spank_host import Host, Node

PROM = "--option=prom"
KILLED, FAILED = 9, 1 << 8  # wait statuses
BATCH, EXTERN = 0xFFFFFFFB, 0xFFFFFFFC
FILE_BYTES_MAX = 4096


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(tmp_path)
    node.prolog(42)
    return node


def ends(node: Node) -> tuple[TaskEnd, ...]:
    return parse_task_ends((node.run_dir / "jobs" / "42" / FILE).read_bytes())


def play(node: Node, *statuses: int, words: tuple[str, ...] = (PROM, "--step=3")) -> Host:
    return node.step(*words, *(f"--status={one}" for one in statuses))


def test_tasks_that_did_not_end_well_are_kept_in_order(node: Node) -> None:
    host = play(node, 0, KILLED, 0, FAILED)
    assert host.lines.count("slurm_spank_task_exit -> 0") == 4
    first, second = ends(node)
    assert (first.step, first.task, first.signal, first.code) == (3, 1, 9, 0)
    assert (second.step, second.task, second.signal, second.code) == (3, 3, None, 1)
    assert second.pid == first.pid + 2
    assert 1.7e18 < first.at_ns <= second.at_ns
    file = node.run_dir / "jobs" / "42" / "task_ends"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_job_whose_tasks_end_well_costs_no_file(node: Node) -> None:
    play(node, 0, 0)
    assert not (node.run_dir / "jobs" / "42" / "task_ends").exists()


def test_the_batch_script_is_a_step_of_its_own_and_the_extern_step_none(node: Node) -> None:
    play(node, FAILED, words=(PROM, f"--step={BATCH}"))
    play(node, KILLED, words=(PROM, f"--step={EXTERN}"))
    (only,) = ends(node)
    assert (only.step, only.code) == (None, 1)


@pytest.mark.parametrize("words", [(), ("--option=off",)])
def test_what_is_not_measured_leaves_nothing(node: Node, words: tuple[str, ...]) -> None:
    play(node, KILLED, words=(*words, "--step=0"))
    assert not (node.run_dir / "jobs" / "42" / "task_ends").exists()


def test_after_the_epilog_nothing_is_made_again(node: Node) -> None:
    (node.run_dir / "jobs").rename(node.run_dir / "ended")
    assert "slurm_spank_task_exit -> 0" in play(node, KILLED).lines
    assert not (node.run_dir / "jobs").exists()


def test_the_first_ends_are_kept_and_the_file_stays_small(node: Node) -> None:
    for _ in range(2):
        play(node, *[KILLED] * 128)
    found = ends(node)
    assert [one.task for one in found] == list(range(len(found)))
    size = (node.run_dir / "jobs" / "42" / "task_ends").stat().st_size
    assert FILE_BYTES_MAX <= size < FILE_BYTES_MAX + 128


@pytest.mark.parametrize("place", ["link", "directory", "pipe"])
def test_nothing_but_an_own_file_is_written_and_no_step_minds(node: Node, place: str) -> None:
    file, secret = node.run_dir / "jobs" / "42" / "task_ends", node.run_dir / "secret"
    secret.write_text("mine")
    if place == "link":
        file.symlink_to(secret)
    elif place == "directory":
        file.mkdir()
    else:
        os.mkfifo(file)
    assert "slurm_spank_task_exit -> 0" in play(node, KILLED).lines
    assert secret.read_text() == "mine"


def test_a_torn_line_is_left_out(node: Node) -> None:
    play(node, KILLED, FAILED)
    file = node.run_dir / "jobs" / "42" / "task_ends"
    file.write_text(file.read_text()[:-5])
    assert [one.task for one in ends(node)] == [0]
    play(node, KILLED, FAILED, words=(PROM, "--step=4"))
    assert [(one.step, one.task) for one in ends(node)] == [(3, 0), (4, 1)]
