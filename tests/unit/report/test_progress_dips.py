# SPDX-License-Identifier: Apache-2.0
"""What the job's own figure of progress adds to the causes of a slow time, or tells by itself."""

from dataclasses import replace

import pytest

from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    INFO,
    LOW,
    NETWORK,
    OUTSIDE,
    WARNING,
    Evidence,
    Finding,
    Period,
)
from nccl_inspector.report.progress_dips import join_progress

WALL_S, COST_MIN = 1800.0, 0.01
DIP = Finding(
    rules.SLOW_OUTSIDE.id, WARNING, LOW, "", "", Period(1000.0, 1080.0),
    evidence=(Evidence("throughput", "change of samples/s", -0.5, "share"),),
)  # fmt: skip


def stop(start_s: float, end_s: float, cost_s: float) -> Finding:
    """Return a stop of all ranks that is taken for a part of the program."""
    return Finding(rules.SLOW_OUTSIDE.id, INFO, LOW, "", "", Period(start_s, end_s), cost_s=cost_s)


def told(*causes: Finding) -> list[tuple[str, int]]:
    """Return severity and number of evidence of what is told, the costliest first."""
    found = join_progress([(OUTSIDE, one) for one in causes], [(OUTSIDE, DIP)], WALL_S, COST_MIN)
    return [(one.severity, len(one.evidence)) for _, one in found]


def test_a_dip_that_nothing_explains_is_a_warning() -> None:
    assert told() == [(WARNING, 1)]


@pytest.mark.parametrize(
    "cause", [stop(1010.0, 1075.0, 20.0), stop(1040.0, 1075.0, 30.0), stop(1048.0, 1087.0, 29.0)]
)
def test_a_stop_that_is_most_of_a_dip_or_cost_most_of_it_is_the_same_thing(cause: Finding) -> None:
    assert told(cause) == [(INFO, 1)]


@pytest.mark.parametrize(
    "cause", [stop(1040.0, 1055.0, 12.0), stop(1070.0, 1110.0, 30.0), stop(400.0, 1400.0, 40.0)]
)
def test_a_short_stop_and_one_at_another_time_explain_no_dip(cause: Finding) -> None:
    assert sorted(told(cause)) == sorted([(INFO, 0), (WARNING, 1)])


def slow_network(start_s: float, end_s: float, cost_s: float) -> Finding:
    """Return slow transfers."""
    return Finding(
        rules.SLOW_NETWORK.id, WARNING, LOW, "", "", Period(start_s, end_s), cost_s=cost_s
    )


def kinds_told(*causes: Finding) -> list[str]:
    """Return the kinds of cause that are told where the time lines explain the dip by transfers."""
    dip = [(NETWORK, replace(DIP, rule=rules.SLOW_NETWORK.id))]
    found = join_progress([(NETWORK, one) for one in causes], dip, WALL_S, COST_MIN)
    return [kind for kind, _ in found]


def test_a_network_that_gets_slower_all_the_time_explains_the_dip_at_its_worst() -> None:
    assert kinds_told(slow_network(100.0, 1800.0, 40.0)) == [NETWORK]


def test_a_dip_that_slow_transfers_explain_is_not_outside_communication() -> None:
    assert kinds_told() == [NETWORK]
