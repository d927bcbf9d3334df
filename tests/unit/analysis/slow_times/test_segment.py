# SPDX-License-Identifier: Apache-2.0
"""The cut of a series into pieces, exactly."""

from itertools import combinations, pairwise
from math import log

import numpy as np
import pytest

from nccl_inspector.analysis.slow_times.line_columns import Floats
from nccl_inspector.analysis.slow_times.segment import (
    NOISE_MIN,
    PENALTY,
    SEGMENT_MIN,
    Segmentation,
    noise_of,
    running_median,
    segment_all,
)


def noisy(levels: list[tuple[int, float]], sigma: float = 0.01, seed: int = 1) -> Floats:
    rng = np.random.default_rng(seed)
    logs = np.concatenate([np.full(count, log(level)) for count, level in levels])
    found: Floats = np.exp(logs + rng.normal(0, sigma, len(logs)))
    return found


def cut(values: Floats, **words: float) -> Segmentation:
    (found,) = segment_all([values], **words)  # type: ignore[arg-type]
    return found


def all_cuts(count: int) -> list[tuple[int, ...]]:
    places = range(SEGMENT_MIN, count - SEGMENT_MIN + 1)
    some = [(0, *inner, count) for many in range(4) for inner in combinations(places, many)]
    return [one for one in some if all(b - a >= SEGMENT_MIN for a, b in pairwise(one))]


def cost(values: Floats, cuts: tuple[int, ...]) -> float:
    pieces = [values[a:b] for a, b in pairwise(cuts)]
    squares = sum(float(((piece - piece.mean()) ** 2).sum()) for piece in pieces)
    return squares + PENALTY * log(384) * len(pieces)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_cut_is_better(seed: int) -> None:
    values = noisy([(6, 1.0), (5, 0.85), (9, 1.1)], 0.03, seed)
    logs = np.log(values)
    scaled = (running_median(logs) - np.median(logs)) / max(noise_of(logs), NOISE_MIN)
    best = min(all_cuts(len(values)), key=lambda cuts: cost(scaled, cuts))
    assert cut(values).cuts == best


def test_a_dip_is_told_with_its_depth() -> None:
    found = cut(noisy([(40, 300), (12, 240), (60, 300)]))
    (dip,) = found.dips
    assert (dip.first, dip.end) == (40, 52)
    assert dip.depth == pytest.approx(-0.2, abs=0.01)
    assert dip.level == pytest.approx(240, rel=0.01)
    assert found.baseline == pytest.approx(300, rel=0.01)


def test_a_stair_down_is_one_dip() -> None:
    (dip,) = cut(noisy([(40, 300), (8, 250), (8, 200), (60, 300)])).dips
    assert (dip.first, dip.end) == (40, 56)


def test_what_is_high_for_a_short_time_is_not_the_baseline() -> None:
    assert cut(noisy([(10, 400), (100, 300)])).dips == ()


def test_a_job_that_was_slow_at_its_end_is_told_so() -> None:
    (dip,) = cut(noisy([(70, 300), (20, 260)])).dips
    assert (dip.first, dip.end) == (70, 90)


def test_less_than_five_percent_is_nothing() -> None:
    assert cut(noisy([(40, 300), (30, 290), (40, 300)], 0.003)).dips == ()


def test_single_spikes_and_two_beside_each_other_are_no_dip() -> None:
    values = noisy([(100, 300)])
    values[[20, 50, 51, 80, 82]] *= 0.6
    assert cut(values).dips == ()


def test_gaps_are_passed_over() -> None:
    values = noisy([(40, 300), (12, 240), (60, 300)])
    holes = np.insert(values, [0, 20, 46, 46], [np.nan, 0.0, np.nan, np.nan])
    (dip,) = cut(holes).dips
    assert (dip.first, dip.end) == (42, 56)


@pytest.mark.parametrize(("windows", "short"), [(0, True), (11, True), (12, False)])
def test_few_windows_are_too_few(windows: int, short: bool) -> None:
    assert cut(noisy([(windows, 300)])).too_short == short
    assert cut(np.append(noisy([(windows, 300)]), [np.nan] * 9)).too_short == short


def test_values_that_never_change_have_no_dip() -> None:
    assert cut(np.full(100, 300.0)).dips == ()


def test_noise_is_seen_through_steps_and_through_buckets() -> None:
    rng = np.random.default_rng(2)
    logs = rng.normal(0, 0.03, 1000)
    logs[500:] += 0.5
    assert noise_of(logs) == pytest.approx(0.03, rel=0.1)
    buckets = np.round(rng.normal(0, 0.012, 1000) / 0.031) * 0.031
    assert 0.005 < noise_of(buckets) < 0.02


def test_many_series_are_cut_as_each_alone() -> None:
    series = [noisy([(20 + seed, 300), (12, 240), (60, 300)], 0.02, seed) for seed in range(66)]
    series[3] = series[3][:5]
    assert segment_all(series) == [cut(values) for values in series]


def test_more_series_to_look_at_ask_for_more_evidence() -> None:
    values = noisy([(40, 300), (4, 270), (60, 300)], 0.025, 3)
    assert cut(values).dips
    assert not cut(values, looked_at=10**9).dips
