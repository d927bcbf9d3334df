# SPDX-License-Identifier: Apache-2.0
"""When a dip of the job's own figure of progress says something, and when it is chance or habit."""

import numpy as np

from nccl_inspector.analysis.slow_times.progress import Progress
from nccl_inspector.model.card import Period

WINDOW_S, WINDOWS, START_S = 10, 200, 1_000_000


def progress(values: np.ndarray, apart_s: float = 10.0) -> Progress:
    return Progress("samples/s", START_S, WINDOW_S, apart_s, values)


def steady() -> np.ndarray:
    return np.full(WINDOWS, 50.0) + np.random.default_rng(1).normal(0, 0.5, WINDOWS)


def period(first: int, end: int) -> Period:
    return Period(START_S + first * WINDOW_S, START_S + end * WINDOW_S)


def test_one_dip_of_a_steady_figure_stands_out() -> None:
    values = steady()
    values[100:106] = 35.0
    assert progress(values).stands_out(period(100, 106))


def test_a_dip_that_comes_again_and_again_does_not() -> None:
    values = steady()
    for first in (20, 60, 100, 150):
        values[first : first + 4] = 36.0
    values[100:106] = 35.0
    assert not progress(values).stands_out(period(100, 106))


def test_two_readings_of_a_figure_that_varies_as_much_are_chance() -> None:
    values = np.random.default_rng(2).normal(50, 12, WINDOWS).clip(min=5)
    values[100:106] = 35.0
    apart_s = 30.0  # each reading fills three windows
    assert not progress(values, apart_s).stands_out(period(100, 106))
    values[100:160] = 30.0
    assert progress(values, apart_s).stands_out(period(100, 160))


def test_windows_without_a_reading_say_nothing() -> None:
    values = steady()
    values[100:106] = np.nan
    assert not progress(values).stands_out(period(100, 106))


def test_what_begins_with_the_first_or_lasts_to_the_last_figure_is_known_as_that() -> None:
    values = steady()
    values[:5] = values[195:] = np.nan
    found = progress(values)
    assert found.is_at_start(period(4, 12))
    assert not found.is_at_start(period(7, 12))
    assert found.is_at_end(period(180, 195))
    assert not found.is_at_end(period(180, 193))
