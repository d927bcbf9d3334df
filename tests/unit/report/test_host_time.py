# SPDX-License-Identifier: Apache-2.0
"""The section HOST: whose calls of NCCL take long on the host."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import pytest

from nccl_inspector.model.card import Card
from nccl_inspector.model.card_hosts import HostTimes
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import card_from_json, to_json
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded
from tests.support.boxes import MS, fixed_chance
from tests.support.synthetic.jobs import US, Job, through_summaries

NOON = datetime(2026, 8, 2, 12, tzinfo=UTC)
CALLS, RANKS = 1000, 4


def card_of(
    call_us: Mapping[int, int], late_ms: Mapping[int, float] = MappingProxyType({})
) -> Card:
    """Make the card of a job; how long a rank's calls take on its host, where it is measured."""
    late = {rank: ms * MS for rank, ms in late_ms.items()}
    job = Job(fixed_chance(1), RANKS, 2, sampled=True)
    group = job.group("world", range(RANKS))
    for _ in range(300):
        job.compute(20 * MS, late, 20 * US)
        job.collective(group, "AllReduce", 1 << 24, 4 * MS)
    processes = []
    for rank, one in enumerate(job.processes()):
        if rank in call_us:
            call_ns = CALLS * call_us[rank] * US
            facts = replace(
                one.facts, calls=CALLS, call_ns=call_ns, call_max_ns=5 * MS,
                launches=CALLS, launch_ns=call_ns // 4, launch_max_ns=2 * MS,
            )  # fmt: skip
            one = replace(one, facts=facts)
        processes.append(one)
    return build_card(Loaded(tuple(through_summaries(processes)), (0,), ()))


def hosts_of(card: Card) -> HostTimes:
    assert card.hosts is not None
    return card.hosts


def words(card: Card) -> str:
    return " ".join(render_text(card).split())


def test_who_takes_twice_as_long_as_the_middle_one_is_shown() -> None:
    card = card_of({0: 20, 1: 22, 2: 310, 3: 19})
    text = words(card)
    assert "the middle process 21.0 us a call)" in text
    assert "rank 2 n2 1000 310 us 5.00 ms" in text
    assert "rank 0 n1 1000" not in text
    assert "and 3 processes more" in text
    assert hosts_of(card).processes[0].process == "rank 2"
    assert card_from_json(to_json(card, NOON)).hosts == card.hosts
    assert "rank 2" in render_html(card, NOON).partition("HOST")[2]


def test_where_all_take_about_as_long_the_slowest_one_is_shown() -> None:
    text = words(card_of({0: 20, 1: 22, 2: 25, 3: 19}))
    assert "rank 2 n2 1000 25.0 us" in text
    assert "rank 1 n1 1000" not in text


def test_nothing_is_said_where_it_was_not_measured() -> None:
    card = card_of({})
    assert card.hosts is None
    assert "HOST" not in render_text(card)


@pytest.mark.parametrize("measured", [True, False])
def test_a_late_rank_has_its_calls_beside_its_peers(measured: bool) -> None:
    call_us = {0: 20, 1: 22, 2: 310, 3: 19} if measured else {}
    card = card_of(call_us, late_ms={2: 10.0})
    (late,) = (one for one in card.findings if one.rule == "straggler")
    told = [one for one in late.evidence if one.metric == "mean time of its host in a call of NCCL"]
    assert len(told) == measured
    if measured:
        assert (told[0].value, told[0].reference, told[0].count) == (310_000, 20_000, 3)
