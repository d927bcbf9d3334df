# SPDX-License-Identifier: Apache-2.0
"""How surely a degradation is found, and how seldom one that is not there: seeded trials."""

from dataclasses import dataclass

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times.degradation import find_degradations
from nccl_inspector.analysis.slow_times.line_columns import columns_of
from nccl_inspector.analysis.slow_times.series import make_tracks
from tests.support.synthetic.lines import START_S, WINDOW_S, Made, carried, lines_of, noise, slower

WINDOWS, DIP, RANKS = 360, 12, 4


@dataclass(frozen=True, slots=True)
class Rates:
    """`found` and `in_place` (start within one window): shares of the trials with a dip.

    `false`: windows in degradations that are not there, per 1,000 of healthy trials.
    """

    found: float
    in_place: float
    false: float


def periods(rng: np.random.Generator, first: int | None, sigma: float, depth: float) -> list[float]:
    """Return the first window and the number of windows of each degradation, in turn."""
    times = rng.uniform(5e6, 50e6) * np.exp(noise(rng, WINDOWS, sigma))
    if first is not None:
        times = slower(times, first, first + DIP, depth)
    lines = carried(lines_of(rng, Made(times, ranks=RANKS)))
    tracks = make_tracks([columns_of(line, member) for member, line in lines], {7: RANKS})
    found = find_degradations(tracks, {7: "mixed"}, WINDOWS * WINDOW_S).degradations
    return [
        value
        for one in found
        for value in (
            (one.period.start_s - START_S) / WINDOW_S,
            (one.period.end_s - one.period.start_s) / WINDOW_S,
        )
    ]


def trials(count: int, healthy: int, sigma: float, depth: float, seed: int) -> Rates:
    """Return what is found in `count` jobs with a dip and in `healthy` without."""
    rng = np.random.default_rng(seed)
    found = in_place = 0
    for _ in range(count):
        first = int(rng.integers(20, WINDOWS - DIP - 20))
        seen = periods(rng, first, sigma, depth)
        hits = [at for at, length in zip(seen[::2], seen[1::2], strict=True)
                if at < first + DIP and at + length > first]  # fmt: skip
        found += bool(hits)
        in_place += any(abs(at - first) <= 1 for at in hits)
    false = sum(sum(periods(rng, None, sigma, depth)[1::2]) for _ in range(healthy))
    return Rates(found / count, in_place / count, 1000 * false / max(healthy * WINDOWS, 1))


@pytest.mark.long
def test_ten_percent_for_two_minutes_is_found_quickly_tried() -> None:
    rates = trials(40, 0, sigma=0.03, depth=0.1, seed=5)
    assert rates.found >= 0.95
    assert rates.in_place >= 0.9


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sigma", "depth", "false_max"), [(0.015, 0.1, 0.5), (0.03, 0.1, 0.5), (0.06, 0.2, 1.0)]
)
def test_a_dip_is_found_where_it_is_and_none_where_there_is_none(
    sigma: float, depth: float, false_max: float
) -> None:
    rates = trials(400, 400, sigma, depth, seed=17)
    print(f"noise {sigma:.1%}, dip {depth:.0%}: {rates}")
    assert rates.found >= 0.95
    assert rates.in_place >= 0.95
    assert rates.false <= false_max
