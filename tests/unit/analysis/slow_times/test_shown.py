# SPDX-License-Identifier: Apache-2.0
"""The time line that a card shows."""

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times.degradation import find_degradations
from nccl_inspector.analysis.slow_times.line_columns import columns_of
from nccl_inspector.analysis.slow_times.progress import Progress
from nccl_inspector.analysis.slow_times.series import Track, make_tracks
from nccl_inspector.analysis.slow_times.shown import SHOWN_MAX, show
from nccl_inspector.model.card import TimeLine
from nccl_inspector.model.timeline import halve
from tests.support.synthetic.lines import SHORTEST, START_S, WINDOW_S, Made, lines_of

MS = 1e6


def tracks_of(*mades: Made, halved: int = 0) -> list[Track]:
    """Return series; those of the communicator `halved` have windows of twice the length."""
    lines = [one for made in mades for one in lines_of(np.random.default_rng(1), made)]
    columns = [
        columns_of(halve(line) if line.comm_id == halved else line, member)
        for member, line in lines
    ]
    return make_tracks(columns, {made.comm_id: made.ranks for made in mades})


def shown(tracks: list[Track], progress: Progress | None = None) -> TimeLine:
    classes = {track.kind[0]: "mixed" if track.kind[0] < 50 else "nvlink" for track in tracks}
    return show(tracks, classes, find_degradations(tracks, classes, 1000.0), progress)


def flat(comm: int = 7, ms: float = 20, windows: int = 40) -> Made:
    return Made(np.full(windows, ms * MS), comm_id=comm)


def test_all_series_are_on_the_coarsest_grid_with_none_for_nothing() -> None:
    holes = np.full(40, 20 * MS)
    holes[10:14] = np.nan
    line = shown(tracks_of(Made(holes), flat(50), halved=50))
    assert (line.window_s, line.start_s, line.windows) == (2 * WINDOW_S, START_S, 20)
    (one,) = [series for series in line.series if series.communicator == "0x7"]
    assert one.bus_gbs[5:7] == (None, None)
    assert one.operations == tuple(0 if n in (5, 6) else 100 for n in range(20))
    assert one.bus_gbs[0] == pytest.approx(10.07 / SHORTEST, rel=0.02)
    assert {series.transport for series in line.series} == {"mixed", "nvlink"}


def test_the_busiest_of_each_class_and_what_was_slow_are_among_the_few() -> None:
    many = [flat(comm, 20) for comm in range(1, SHOWN_MAX + 5)]
    slow = Made(np.concatenate([np.full(28, 5 * MS), np.full(12, 8 * MS)]), comm_id=49)
    line = shown(tracks_of(*many, slow, flat(50, 0.1)))
    assert len(line.series) == SHOWN_MAX
    assert {"0x31", "0x32"} <= {series.communicator for series in line.series}
    assert [one.communicator for one in line.degradations] == ["0x31"]


def test_the_figure_of_progress_comes_on_the_same_grid() -> None:
    values = np.arange(60, dtype=np.float64)
    values[4] = np.nan
    progress = Progress("TFLOP/s", START_S - 10 * WINDOW_S, WINDOW_S, 10.0, values)
    line = shown(tracks_of(flat(windows=40), flat(50), halved=50), progress)
    assert line.throughput is not None
    assert line.throughput.values == tuple(10.5 + 2 * n for n in range(20))


def test_a_job_without_series_has_no_time_line() -> None:
    assert shown([]) == TimeLine(too_short=True)
