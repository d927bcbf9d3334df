# SPDX-License-Identifier: Apache-2.0
"""Many communicators with many sizes: what has no key of its own is in the figures all the same."""

from pathlib import Path

from nccl_inspector.analysis.join import join_communicators
from nccl_inspector.exposition.process_file import parse_file
from nccl_inspector.model.process import COMM_FOLDED, DROP_REASONS
from tests.support.scripted_nccl import OURS, Stage, step

COMMS, SIZES, TIMES = 33, 20, 3
OPERATIONS = COMMS * SIZES * TIMES
COUNTS = "nccl_collective_operations_total"
SCRIPT = [
    *(step("comm", id=number + 1, name=f"c{number}", ranks=8) for number in range(COMMS)),
    *(
        step("coll", func="AllReduce", bytes=64 << size, times=TIMES, comm=number)
        for number in range(COMMS)
        for size in range(SIZES)
    ),
]


def test_kinds_beyond_the_table_are_in_the_box_the_series_and_the_figures(tmp_path: Path) -> None:
    stage = Stage(OURS, tmp_path)
    with stage.playing(*SCRIPT, step("pause")) as playing:
        playing.until_pause()
        stage.wait_series(COUNTS, "the series of shared kinds", comm_name="(more kinds)")
        (text,) = stage.proms().values()
        playing.go_on()
        playing.finish()
    series = parse_file(text.encode(), {}, {})
    shared = [one for one in series.values() if '"(more kinds)"' in one.text]
    assert sum(float(one.value) for one in shared if one.metric.name == COUNTS) > OPERATIONS / 3
    (process,) = stage.boxes()
    assert sum(key.ops for key in process.keys) == OPERATIONS
    assert process.dropped[DROP_REASONS.index("no_key")] == 0
    (more,) = (comm for comm in process.comms if comm.name == "(more kinds)")
    assert more.state == COMM_FOLDED
    (joined,) = (one for one in join_communicators([("n1", process)]) if one.name == more.name)
    assert sum(one.ranks_operations for one in joined.figures) > OPERATIONS / 3
    assert joined.notes[0].startswith("further kinds of all communicators")
    assert not any(one.waits or one.compared for one in joined.figures), "nobody is judged by it"
