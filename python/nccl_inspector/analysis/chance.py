# SPDX-License-Identifier: Apache-2.0
"""How probable it is that chance alone gives what was counted."""

from math import exp, lgamma, log, log1p

_LAST = 1e-18  # share of the sum below which no term changes it


def binomial_tail(count: int, trials: int, share: float) -> float:
    """Return the probability of `count` or more successes in `trials`, each with chance `share`.

    By logarithms, because the coefficients of more than 1,029 trials are beyond a float.
    """
    if count <= 0 or share >= 1:
        return 1.0
    if count > trials or share <= 0:
        return 0.0
    found = 0.0
    for each in range(count, trials + 1):
        ways = lgamma(trials + 1) - lgamma(each + 1) - lgamma(trials - each + 1)
        value = exp(ways + each * log(share) + (trials - each) * log1p(-share))
        found += value
        if each > trials * share and value <= _LAST * found:
            break  # from the mean on, each term is smaller than the one before
    return min(found, 1.0)
