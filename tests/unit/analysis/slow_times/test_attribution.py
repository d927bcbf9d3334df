# SPDX-License-Identifier: Apache-2.0
"""What a time of less progress came from: the table, and the arithmetic that must agree."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times.attribution import (
    WORKLOAD,
    Attribution,
    attribute,
    slowdown,
)
from nccl_inspector.analysis.slow_times.comparison import ClassChange, Comparison, compare
from nccl_inspector.analysis.slow_times.degradation import find_degradations
from nccl_inspector.analysis.slow_times.line_columns import Floats, columns_of
from nccl_inspector.analysis.slow_times.progress import (
    Progress,
    on_windows,
    progress_of,
    segment_progress,
)
from nccl_inspector.analysis.slow_times.series import Track, make_tracks
from nccl_inspector.analysis.slow_times.throughput import read_throughput
from nccl_inspector.model import card
from tests.support.synthetic.lines import START_S, WINDOW_S, Made, carried, lines_of, noise, slower

MS = 1e6
WINDOWS = 180
FIRST, LAST = 90, 103  # windows of the slow time: 133 s, as in NVIDIA's example
SLOW = card.Period(START_S + FIRST * WINDOW_S, START_S + LAST * WINDOW_S)
WORLD, LEFT, RIGHT = 7, 8, 9  # one over two nodes, one inside of each
CLASSES = {WORLD: "mixed", LEFT: "nvlink", RIGHT: "nvlink"}
NODES = {member: f"n{1 + member // 4}" for member in range(8)}
# NVIDIA's published readings, TFLOP/s per GPU, and the seconds that each is of.
BEFORE, FALLING, LOW, AFTER = (314, 61.0), (295, 61.6), (289, 72.1), (311, 121.5)


def times(ms: float, seed: int) -> Floats:
    return ms * MS * np.exp(noise(np.random.default_rng(seed), WINDOWS, 0.015))


def usual(value: float, slow: float) -> Floats:
    found = np.full(WINDOWS, value)
    found[FIRST:LAST] = slow
    return found


def job(
    mixed: float = 0.0,
    nodes: Sequence[float] = (0.0, 0.0),
    less: float = 0.0,
    waiting_ns: float = 0.0,
) -> list[Track]:
    """Return the series of a job: depths of the slow time by class, and by how much less is done.

    22 % of its time are transfers between nodes.
    """
    ops = np.round(usual(100, 100 * (1 - less)))
    world = Made(slower(times(22, 1), FIRST, LAST, mixed), 8, comm_id=WORLD, ops=ops,
                 waiting_ns=usual(0, waiting_ns))  # fmt: skip
    inner = [
        Made(slower(times(4, 2 + n), FIRST, LAST, depth), comm_id=comm, ops=ops,
             members=range(4 * n, 4 * n + 4))
        for n, (comm, depth) in enumerate(zip((LEFT, RIGHT), nodes, strict=True))
    ]  # fmt: skip
    rng = np.random.default_rng(9)
    lines = carried([one for made in (world, *inner) for one in lines_of(rng, made)])
    columns = [columns_of(line, member) for member, line in lines]
    return make_tracks(columns, {WORLD: 8, LEFT: 4, RIGHT: 4})


def output(readings: Sequence[tuple[float, float]], first_s: float) -> Progress:
    """Return what an output tells; its first reading is of the time from `first_s` on."""
    lines, at = [], first_s
    for value, length_s in readings:
        at += length_s
        clock = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        lines.append(f"[{clock}] -> throughput per GPU: ~{value:.4g} TFLOP/s/GPU")
    return on_windows(read_throughput(lines, UTC), START_S, WINDOW_S, WINDOWS)


def whole_output(low: Sequence[tuple[float, float]] = (FALLING, LOW)) -> Progress:
    rng = np.random.default_rng(4)
    before = [(314 * float(np.exp(rng.normal(0, 0.003))), 60.0) for _ in range(15)]
    after = [(311 * float(np.exp(rng.normal(0, 0.003))), 60.0) for _ in range(12)]
    return output([*before, *low, *after], START_S)


def of_four() -> Progress:
    return output([BEFORE, FALLING, LOW, AFTER], SLOW.start_s - BEFORE[1])


def answer(tracks: list[Track], progress: Progress | None = None) -> Attribution:
    return attribute(compare(tracks, CLASSES, NODES, SLOW, progress))


@pytest.mark.parametrize("progress", [of_four(), whole_output()])
def test_nvidias_timeline_with_slow_links_between_nodes_is_explained(progress: Progress) -> None:
    tracks = job(mixed=0.28, less=0.08)
    (found,) = find_degradations(tracks, CLASSES, float(WINDOWS * WINDOW_S)).degradations
    assert found.transport == "mixed"
    assert found.period.start_s == pytest.approx(SLOW.start_s, abs=WINDOW_S)
    cause = attribute(compare(tracks, CLASSES, NODES, found.period, progress))
    assert (cause.cause, cause.confidence) == (card.NETWORK, card.HIGH)
    assert cause.predicted == pytest.approx(0.086, abs=0.015)
    assert cause.explained is not None
    assert 0.8 <= cause.explained <= 1.4


@pytest.mark.parametrize("progress", [of_four(), whole_output()])
def test_the_same_dip_with_flat_bandwidth_is_outside_of_communication(progress: Progress) -> None:
    tracks = job(less=0.08)
    assert find_degradations(tracks, CLASSES, float(WINDOWS * WINDOW_S)).degradations == ()
    cause = answer(tracks, progress)
    assert (cause.cause, cause.confidence) == (card.OUTSIDE, card.MEDIUM)
    assert cause.longer == pytest.approx(0.07, abs=0.02)


def test_the_dip_is_found_in_the_output_alone() -> None:
    (dip,) = segment_progress(whole_output()).dips
    assert abs(dip.first - FIRST) <= 1
    assert abs(dip.end - LAST) <= 1


def test_without_an_output_the_dip_is_found_in_the_operations() -> None:
    tracks = job(less=0.08)
    (dip,) = segment_progress(progress_of(tracks[0])).dips
    assert abs(dip.first - FIRST) <= 1
    assert dip.depth == pytest.approx(-0.08, abs=0.01)


def test_the_arithmetic_is_that_of_the_published_case() -> None:
    assert slowdown(0.22, -0.28) == pytest.approx(0.0856, abs=0.0001)
    assert slowdown(0.22, 0) == 0


def test_a_small_share_of_slow_links_does_not_explain_a_large_dip() -> None:
    changes = Comparison(
        (ClassChange("mixed", -0.28, 0.02), ClassChange("nvlink", 0.0, 0.1)), 0.0, -0.2
    )
    cause = attribute(changes)
    assert cause.cause == card.UNKNOWN
    assert cause.explained == pytest.approx(0.0078 / 0.25, abs=0.001)
    assert "of the 25.0%" in cause.why


def test_links_inside_of_one_node_are_that_nodes() -> None:
    cause = answer(job(mixed=0.3, nodes=(0.0, 0.3), less=0.1))
    assert (cause.cause, cause.node) == (card.NVLINK, "n2")


def test_links_inside_of_all_nodes_are_nobodys() -> None:
    assert answer(job(nodes=(0.3, 0.3))).cause == card.UNKNOWN


def test_more_waiting_at_the_same_bandwidth_is_a_straggler() -> None:
    cause = answer(job(less=0.08, waiting_ns=9 * MS), of_four())
    assert cause.cause == card.STRAGGLER
    assert cause.explained is not None
    assert cause.explained >= 0.5


def test_without_an_output_the_operations_a_second_tell_with_less_confidence() -> None:
    cause = answer(job(less=0.08))
    assert (cause.cause, cause.confidence) == (card.OUTSIDE, card.LOW)
    assert answer(job(mixed=0.28, less=0.08)).confidence == card.MEDIUM


def test_a_job_that_is_as_ever_has_no_cause() -> None:
    assert answer(job()).cause == card.UNKNOWN


@pytest.mark.parametrize(
    ("classes", "cause", "confidence"),
    [
        ((ClassChange("net", -0.3, 0.3),), card.NETWORK, card.MEDIUM),
        ((ClassChange("mixed", -0.3, 0.3),), card.NETWORK, card.LOW),
        (
            (ClassChange("mixed", -0.3, 0.3), ClassChange("nvlink", -0.08, 0.1)),
            card.NETWORK,
            card.LOW,
        ),
        (
            (ClassChange("mixed", -0.3, 0.3), ClassChange("host", 0.01, 0.1)),
            card.NETWORK,
            card.MEDIUM,
        ),
        ((ClassChange("unknown", -0.3, 0.3),), card.UNKNOWN, card.LOW),
        ((ClassChange("mixed", -0.07, 0.3),), card.UNKNOWN, card.LOW),
        ((), card.UNKNOWN, card.LOW),
    ],
)
def test_the_table_is_followed(
    classes: tuple[ClassChange, ...], cause: str, confidence: str
) -> None:
    found = attribute(Comparison(classes, 0.0, None))
    assert (found.cause, found.confidence) == (cause, confidence)
    mixed = attribute(replace(Comparison(classes, 0.0, -0.1), mix="other sizes"))
    assert mixed.cause in (WORKLOAD, card.UNKNOWN)
