# SPDX-License-Identifier: Apache-2.0
"""Who is behind a slow transport: a node, a pair, or nobody that can be told."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from nccl_inspector.analysis.straggler.culprit import (
    NODE,
    PAIR,
    UNDETERMINED,
    SlowPlace,
    describe_culprit,
    find_culprit,
)
from nccl_inspector.analysis.transport.timed_paths import (
    Path,
    compare,
    time_communicators,
    time_network,
    time_pairs,
)
from nccl_inspector.model.card import HIGH, LOW, MEDIUM
from nccl_inspector.model.net import Net
from tests.support.boxes import MS, fixed_chance
from tests.support.synthetic.jobs import FACTS, US, Job, join, through_summaries

NODES = 4
RANKS = 2 * NODES


def job_of(
    groups: Iterable[tuple[int, ...]], slow: dict[frozenset[str], float], sends: bool = False
) -> Job:
    """Return a job of two ranks a node; paths over all nodes of a key of `slow` take so long."""
    job = Job(fixed_chance(1), RANKS, 2)
    found = [job.group(f"dp{number}", members) for number, members in enumerate(groups)]

    def factor(*ranks: int) -> float:
        nodes = {job.node_of(rank) for rank in ranks}
        return max((by for over, by in slow.items() if over <= nodes), default=1.0)

    for _ in range(40):
        job.compute(20 * MS, {}, 20 * US)
        for group in found:
            if not sends:
                time_ns = 4 * MS * factor(*group.members)
                job.collective(group, "AllReduce", 1 << 24, time_ns)
                continue
            for sender, receiver in zip(group.members, group.members[1:], strict=False):
                job.send(group, sender, receiver, 1 << 22, MS * factor(sender, receiver))
    return job


def culprit_of(job: Job, known_slow: bool = False) -> SlowPlace | None:
    summaries = through_summaries(job.processes())
    pairs = [(one.head.node, process) for one in summaries for process in one.processes]
    return find_culprit(
        {
            "network": compare(time_network(pairs)),
            "sends": compare(time_pairs(pairs)),
            "communicators": compare(time_communicators(join(summaries))),
        },
        known_slow,
    )


# Rank 0 and 1 are on n1, and so on: every two nodes share a group.
PAIRS = [(2 * a, 2 * b) for a in range(NODES) for b in range(a + 1, NODES)]


@pytest.mark.parametrize("node", range(NODES))
def test_the_node_that_slow_communicators_share_is_named(node: int) -> None:
    name = f"n{node + 1}"
    found = culprit_of(job_of(PAIRS, {frozenset({name}): 2.0}))
    assert found is not None
    assert (found.kind, found.nodes, found.confidence) == (NODE, (name,), MEDIUM)
    finding = describe_culprit(found, "net")
    assert finding.title == f"node {name}: net transport slow"
    assert finding.evidence[0].value == pytest.approx(2.0, rel=0.1)


def test_the_node_is_named_where_larger_communicators_leave_it_out() -> None:
    groups = [(0, 2, 4), (1, 3, 7), (0, 4, 6), (3, 5, 7)]
    found = culprit_of(job_of(groups, {frozenset({"n2"}): 1.5}))
    assert found is not None
    assert (found.kind, found.nodes) == (NODE, ("n2",))


def test_a_slow_pair_is_named_from_sends() -> None:
    groups = [tuple(range(0, RANKS, 2)), tuple(range(1, RANKS, 2)), (0, 4), (2, 6), (0, 6)]
    found = culprit_of(job_of(groups, {frozenset({"n2", "n3"}): 3.0}, sends=True))
    assert found is not None
    assert (found.kind, found.nodes) == (PAIR, ("n2", "n3"))
    assert describe_culprit(found, "net").title == "path between n2 - n3: net transport slow"


def test_a_node_of_which_only_some_paths_are_slow_is_not_accused() -> None:
    ratios = {("n1", "n2"): 2.0, ("n1", "n3"): 1.0, ("n2", "n3"): 1.0}
    found = find_culprit({"sends": [Path(frozenset(two), by, "-") for two, by in ratios.items()]})
    assert found is not None
    assert (found.kind, found.nodes) == (PAIR, ("n1", "n2"))


def test_a_node_that_is_within_the_spread_of_the_others_is_not_accused() -> None:
    nodes = [f"n{number}" for number in range(8)]
    uneven = [Path(frozenset({node}), 1 + 0.08 * n, node) for n, node in enumerate(nodes)]
    assert find_culprit({"communicators": uneven}) is None
    even = [Path(frozenset({node}), 1 + 0.01 * n, node) for n, node in enumerate(nodes)]
    even[7] = Path(frozenset({"n7"}), 1.3, "n7")
    found = find_culprit({"communicators": even})
    assert found is not None
    assert found.nodes == ("n7",)


def test_what_a_ring_carries_on_hides_no_pair() -> None:
    ratios = {
        ("n1", "n2"): (1.04, 1.08, 1.89, 1.89),
        ("n1", "n3"): (0.98, 1.0),
        ("n1", "n4"): (1.48, 1.5),
        ("n2", "n3"): (4.24, 4.26),
        ("n2", "n4"): (0.98, 1.0),
        ("n3", "n4"): (1.02, 1.03, 1.48, 1.5),
    }
    seen = [Path(frozenset(two), one, "-") for two, found in ratios.items() for one in found]
    found = find_culprit({"sends": seen})
    assert found is not None
    assert (found.kind, found.nodes) == (PAIR, ("n2", "n3"))


def test_two_paths_that_differ_by_little_accuse_nobody() -> None:
    two = [Path(frozenset({"n1"}), 1.0, "-"), Path(frozenset({"n2"}), 1.25, "-")]
    assert find_culprit({"communicators": two}) is None


def test_short_messages_are_not_compared() -> None:
    job = job_of(PAIRS, {frozenset({"n2"}): 2.0})
    short = [
        replace(one, keys=tuple(key._replace(size_class=12) for key in one.keys))
        for one in job.processes()
    ]
    assert time_communicators(join(through_summaries(short))) == []


def test_a_late_end_of_a_pair_is_no_slow_path() -> None:
    job = Job(fixed_chance(2), RANKS, 2)
    groups = [job.group("pp", pair) for pair in PAIRS]
    for _ in range(40):
        for group in groups:
            late = {2: 5.0 * MS} if 2 in group.members else {}
            job.compute(MS, late, 20 * US)
            job.send(group, group.members[0], group.members[1], 1 << 22, MS)
    assert culprit_of(job) is None


@pytest.mark.parametrize("known_slow", [False, True])
def test_rings_over_all_nodes_tell_of_nobody(known_slow: bool) -> None:
    rings = [tuple(range(0, RANKS, 2)), tuple(range(1, RANKS, 2))]
    found = culprit_of(job_of(rings, {frozenset({"n2"}): 2.0}), known_slow)
    if not known_slow:
        assert found is None
        return
    assert found is not None
    assert (found.kind, found.nodes, found.confidence) == (UNDETERMINED, (), LOW)
    assert describe_culprit(found, "net").title == "net transport slow, entity not determinable"


def test_nodes_that_are_always_together_are_both_named_as_possible() -> None:
    groups = [(0, 2), (1, 3), (4, 6), (5, 7)]
    found = culprit_of(job_of(groups, {frozenset({"n1"}): 2.0}))
    assert found is not None
    assert found.kind in (PAIR, UNDETERMINED)
    assert {*found.nodes, *found.others} == {"n1", "n2"}


def test_a_healthy_job_accuses_nobody() -> None:
    assert culprit_of(job_of(PAIRS, {})) is None
    assert culprit_of(job_of(PAIRS, {}, sends=True)) is None


def test_two_sources_that_agree_make_it_sure_and_others_unsure() -> None:
    def paths(slow: str) -> list[Path]:
        pairs = [("a", "b"), ("a", "c"), ("b", "c"), ("a", "d"), ("b", "d"), ("c", "d")]
        return [Path(frozenset(two), 2.0 if slow in two else 1.0, "-") for two in pairs]

    one = find_culprit({"sends": paths("a"), "communicators": paths("a")})
    other = find_culprit({"sends": paths("a"), "communicators": paths("b")})
    assert one is not None
    assert other is not None
    assert (one.nodes, one.confidence) == (("a",), HIGH)
    assert (other.nodes, other.confidence) == (("a",), LOW)


def test_network_detail_names_the_pair_whose_steps_are_long_on_the_wire() -> None:
    job = job_of([tuple(range(0, RANKS, 2))], {})
    processes = []
    for process in job.processes():
        rank = process.facts.procid or 0
        if rank % 2 == 0:
            peers = [peer for peer in range(NODES) if peer != rank // 2]
            nets = tuple(
                Net(0, peer, 1, 100, 0, 0, (900 if {rank // 2, peer} == {1, 2} else 100) * MS, 0)
                for peer in peers
            )
            process = replace(process, nets=nets)
        processes.append(process)
    pairs = [(process.facts.node, process) for process in processes]
    found = find_culprit({"network": compare(time_network(pairs))})
    assert FACTS.node == "n1"
    assert found is not None
    assert (found.kind, found.nodes) == (PAIR, ("n2", "n3"))
