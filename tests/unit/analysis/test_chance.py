# SPDX-License-Identifier: Apache-2.0
"""How probable it is that chance alone gives what was counted."""

from fractions import Fraction
from math import comb

import pytest

from nccl_inspector.analysis.chance import binomial_tail


@pytest.mark.parametrize("trials", [1, 7, 60, 2_000])
@pytest.mark.parametrize("share", [Fraction(1, 32), Fraction(1, 2), Fraction(9, 10)])
def test_it_is_what_exact_numbers_give(trials: int, share: Fraction) -> None:
    for count in {0, 1, trials // 3, trials}:
        exact = sum(
            comb(trials, each) * share**each * (1 - share) ** (trials - each)
            for each in range(count, trials + 1)
        )
        assert binomial_tail(count, trials, float(share)) == pytest.approx(float(exact), rel=1e-6)


def test_more_than_there_were_and_certainty() -> None:
    assert binomial_tail(3, 2, 0.5) == 0
    assert binomial_tail(1, 5, 0.0) == 0
    assert binomial_tail(5, 5, 1.0) == 1


def test_as_many_as_a_long_job_has_are_no_error() -> None:
    assert binomial_tail(400_000, 2_000_000, 1 / 8) < 1e-9
    assert binomial_tail(10_000, 2_000_000, 1 / 8) == pytest.approx(1)
