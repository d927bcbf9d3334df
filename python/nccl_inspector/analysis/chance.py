# SPDX-License-Identifier: Apache-2.0
"""How probable it is that chance alone gives what was counted."""

from math import exp, lgamma, log, log1p

import numpy as np


def binomial_tail(count: int, trials: int, share: float) -> float:
    """Return the probability of `count` or more successes in `trials`, each with chance `share`.

    By logarithms, because the coefficients of more than 1,029 trials are beyond a float.
    """
    if count <= 0 or share >= 1:
        return 1.0
    if count > trials or share <= 0:
        return 0.0
    first = lgamma(trials + 1) - lgamma(count + 1) - lgamma(trials - count + 1)
    first += count * log(share) + (trials - count) * log1p(-share)
    more = np.arange(count, trials, dtype=float)
    steps = np.log((trials - more) / (more + 1)) + log(share) - log1p(-share)
    rest = first + np.cumsum(steps)
    return min(1.0, exp(min(first, 0.0)) + float(np.exp(np.minimum(rest, 0.0)).sum()))
