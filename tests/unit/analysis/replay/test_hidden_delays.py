# SPDX-License-Identifier: Apache-2.0
"""What chance adds to gaps that queueing hides has the distribution of what was hidden."""

import numpy as np
import pytest

from nccl_inspector.analysis.replay.arrays import Floats
from nccl_inspector.analysis.replay.hidden_delays import drawn


@pytest.mark.parametrize("often", [0.3, 0.9])
def test_what_is_drawn_is_distributed_as_what_was_hidden(often: float) -> None:
    """Delays of random length, of which queues of random length hide some (`often`: most)."""
    chance = np.random.default_rng(3)
    groups = chance.integers(0, 3, 60_000)
    delays: Floats = np.exp(0.6 * chance.standard_normal(len(groups))) * (1 + groups)
    queues: Floats = np.exp(0.6 * chance.standard_normal(len(groups))) * (1 + groups)
    queues *= np.where(chance.random(len(groups)) < often, 3.0, 0.1)
    hidden = delays <= queues
    found = drawn(
        groups[~hidden], delays[~hidden], groups[hidden], queues[hidden],
        chance.random(int(hidden.sum())),
    )  # fmt: skip
    assert (found <= queues[hidden]).all()
    for group in range(3):
        mine = groups[hidden] == group
        shares = (0.1, 0.5, 0.9, 0.99)
        assert np.quantile(found[mine], shares) == pytest.approx(
            np.quantile(delays[hidden][mine], shares), rel=0.12
        )


def test_nothing_is_drawn_from_beyond_a_group_or_a_bound() -> None:
    found = drawn(
        np.array([4, 4, 9]), np.array([5.0, 7.0, 100.0]), np.array([4, 4, 9]),
        np.array([6.0, 3.0, 50.0]), np.array([0.7, 0.7, 0.7]),
    )  # fmt: skip
    assert found.tolist() == [5.0, 0.0, 0.0]
