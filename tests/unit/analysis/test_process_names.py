# SPDX-License-Identifier: Apache-2.0
"""What the report calls a process: Slurm's task, or its place in the world that it knows itself."""

from dataclasses import replace
from pathlib import Path

from nccl_inspector.analysis.process_names import name_processes
from nccl_inspector.box.layout import NOT_KNOWN
from nccl_inspector.model.process import Process
from nccl_inspector.summary.codec import NodeSummary
from tests.support.boxes import BoxOf, CommOf, KeyOf, write_box
from tests.support.summaries import FIRST, read_process, text_of

BATCH = NOT_KNOWN  # Slurm gives a batch script no SLURM_STEP_ID


def process(
    folder: Path, rank: int, *, step: int = 0, procid: int = 0, world: int = 7, size: int = 4
) -> Process:
    box = BoxOf([CommOf(world, rank, size, name="world")], [KeyOf(0, [1000])], procid=procid)
    box.header.update(step_id=step)
    folder.mkdir(exist_ok=True)
    found = read_process(write_box(folder, f"{step}_{world}{rank}", box))
    return replace(found, facts=replace(found.facts, name=f"{step}_{world}{rank}"))


def named(*processes: Process) -> list[str]:
    return name_processes([(42, one) for one in processes])


def test_a_task_of_srun_is_called_by_its_number(tmp_path: Path) -> None:
    processes = [process(tmp_path, 3 - task, procid=task) for task in range(4)]
    assert named(*processes) == ["rank 0", "rank 1", "rank 2", "rank 3"]


def test_processes_of_one_task_are_called_by_their_place_in_the_world(tmp_path: Path) -> None:
    processes = [process(tmp_path, rank) for rank in range(4)]
    assert named(*processes) == [f"rank {rank} of world" for rank in range(4)]


def test_what_mpirun_starts_in_two_steps_is_one_world(tmp_path: Path) -> None:
    """On the first node in the batch step, on the others in a step with a task a node."""
    several = [process(tmp_path, rank, step=BATCH if rank < 2 else 0) for rank in range(4)]
    assert named(*several) == [f"rank {rank} of world" for rank in range(4)]
    single = [process(tmp_path, 0, step=BATCH, size=2), process(tmp_path, 1, size=2)]
    assert named(*single) == ["rank 0 of world", "rank 1 of world"]


def test_uneven_nodes_do_not_give_a_rank_anothers_number(tmp_path: Path) -> None:
    torchrun = [process(tmp_path, rank, procid=rank // 2, size=3) for rank in range(3)]
    assert named(*torchrun) == ["rank 0 of world", "rank 1 of world", "rank 2 of world"]
    places = [(BATCH, 0), (BATCH, 0), (0, 0), (0, 0), (0, 1)]
    mpirun = [
        process(tmp_path, rank, step=step, procid=procid, size=5)
        for rank, (step, procid) in enumerate(places)
    ]
    assert named(*mpirun) == [f"rank {rank} of world" for rank in range(5)]


def test_two_mpiruns_of_one_script_are_told_apart(tmp_path: Path) -> None:
    both = [
        process(tmp_path, rank, step=BATCH, world=world, size=2)
        for world in (7, 8)
        for rank in range(2)
    ]
    names = named(*both)
    assert len(set(names)) == 4
    assert names[0].startswith("rank 0 of world (process ")


def test_steps_with_the_same_numbers_are_told_apart(tmp_path: Path) -> None:
    steps = [
        process(tmp_path, rank, step=step, procid=rank, world=step % 9, size=2)
        for step in (0, 1, BATCH)
        for rank in range(2)
    ]
    assert named(*steps) == [
        "step 0 rank 0", "step 0 rank 1", "step 1 rank 0", "step 1 rank 1",
        "batch step rank 0", "batch step rank 1",
    ]  # fmt: skip


def test_the_report_of_an_arrays_task_says_which_it_is(tmp_path: Path) -> None:
    box = BoxOf([CommOf(7, 0, 1)], [KeyOf(0, [1000])])
    box.header.update(array_job_id=40, array_task_id=0)
    array = read_process(write_box(tmp_path, "0_1", box))
    assert "job 42 (array task 40_0), user" in text_of(
        [NodeSummary(replace(FIRST, array_task=array.facts.array_task), (array,))]
    )
    plain = process(tmp_path, 0)
    assert "job 42, user" in text_of([NodeSummary(FIRST, (plain,))])
