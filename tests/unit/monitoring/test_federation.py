# SPDX-License-Identifier: Apache-2.0
"""Shards and a global server find the same about a job as one server that has all series."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest

from nccl_inspector.monitoring.bundle import render
from nccl_inspector.monitoring.site import make_site
from tests.sandbox.layout import REPO
from tests.support.federated_rules import SHARDS, federated_rules, spread
from tests.support.promtool import Expected, Labels, Series, counter, failures, failures_of
from tests.support.rule_series import AFTER_MIN, END_MIN, HEALTHY_MIN, Job

# Together they take longer than `make test` has for one subject.
pytestmark = pytest.mark.long

OWN = {"cluster": "c", "slurm_job_id": "0"}
DP, TP = OWN | {"comm_name": "dp"}, OWN | {"comm_name": "tp"}
NODES = 20
# When all windows but those of the baselines are after the change.
CHANGED_MIN = HEALTHY_MIN + 10
# Node n2 is whole on a shard of its own, or shares it with nine others.
LATE_NODE = {2: 10.0, 3: 10.0}
EARLY = {0: 200.0}

# Ten operations a second, of 20 ms in dp and of 1 ms in tp, which only waits in dp make longer.
VALUES: dict[str, tuple[Job, list[tuple[str, float, Labels]]]] = {
    "four ranks, one late": (
        Job(dp_ms={3: 10}, dp_gbs_of={3: 44}, throughput=(300, 150)),
        [
            ('job:nccl_bus_bandwidth_gbs:transfer{comm_name="dp"}', 44, DP),
            ('job:nccl_bus_bandwidth_gbs:transfer{comm_name="tp"}', 300, TP),
            ('job:nccl_collective_busy_seconds:rate{comm_name="dp"}', 0.7, DP),
            ('job:nccl_collective_busy_seconds:rate{comm_name="tp"}', 0.04, TP),
            ("job:nccl_operations:rate", 80, OWN),
            ("job:nccl_throughput:avg", 150, OWN),
            ('job:nccl_progress:ratio{by="throughput"}', 0.5, OWN),
            ('job:nccl_bandwidth:ratio{scope="network"}', 1.1, OWN),
            ('job:nccl_bandwidth:ratio{scope="node"}', 1, OWN),
            ('max(rank:nccl_collective_late:ratio{rank="3"})', 0.1, {}),
            ("job:nccl_collective_waiting:ratio", 1 - 0.44 / 0.74, OWN),
        ],
    ),
    "forty ranks, one late": (
        Job(ranks=2 * NODES, dp_ms={7: 10}),
        [
            ("job:nccl_operations:rate", 800, OWN),
            ('max(rank:nccl_collective_late:ratio{rank="7"})', 0.1, {}),
            ("job:nccl_collective_waiting:ratio", 1 - 4.4 / 8.3, OWN),
        ],
    ),
    "forty ranks, one early": (
        Job(ranks=2 * NODES, dp_ms=EARLY),
        [("max(rank:nccl_collective_late:ratio)", 0, {})],
    ),
    "four ranks, one early": (
        Job(dp_ms=EARLY),
        [("max(rank:nccl_collective_late:ratio)", 0, {})],
    ),
    "both ranks of the only node of a shard late": (
        Job(ranks=6, dp_ms=LATE_NODE),
        [('max(rank:nccl_collective_late:ratio{node="n2"})', 0.1, {})],
    ),
    "both ranks of a node late, among twenty nodes": (
        Job(ranks=2 * NODES, dp_ms=LATE_NODE),
        [('max(rank:nccl_collective_late:ratio{node="n2"})', 0.1, {})],
    ),
    "operations that only one rank does": (
        Job(ranks=2 * NODES, small_rank=0),
        [
            ("max(rank:nccl_collective_late:ratio)", 0, {}),
            ("job:nccl_collective_waiting:ratio", 0, OWN),
        ],
    ),
}


def complaints(
    folder: Path, layout: str, series: Iterable[Series], wanted: list[Expected]
) -> list[str]:
    """What promtool says of the rules in that layout."""
    if layout == "shards":
        return failures_of(folder, federated_rules(), spread(series), wanted)
    return failures(folder, make_site([]), series, wanted)


@pytest.mark.parametrize("layout", ["one server", "shards"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(one, marks=[pytest.mark.long] if "twenty" in one or "forty" in one else [])
        for one in VALUES
    ],
)
def test_both_layouts_have_the_same_figures_of_a_job(
    tmp_path: Path, layout: str, case: str
) -> None:
    job, figures = VALUES[case]
    wanted = []
    for expr, value, labels in figures:
        near = f"max by ({', '.join(labels)}) (abs({expr} - {value!r}) < bool 1e-6)"
        wanted.append(Expected(CHANGED_MIN, near, [labels]))
    assert complaints(tmp_path, layout, job.series(OWN), wanted) == []


def late_within_nodes(
    late: int, nodes: int = 2, late_s: tuple[float, ...] = (3,)
) -> Iterator[Series]:
    """A job of eight ranks a node, whose communicators do not leave the node.

    On each node `late` ranks are late. They are busy for the seconds of `late_s` in a minute, each
    for four minutes in turn, and each rank begins with another one. The others are busy for 12 s.
    """
    for rank in range(8 * nodes):
        node, local = f"n{rank // 8 + 1}", rank % 8
        kind = {
            "node": node, "gpu": f"GPU{local}", "rank": str(local), "comm": node,
            "comm_name": "tp", "n_nodes": "1", "nranks": "8", "collective": "AllReduce",
            "message_size": "1-2MB", "algo_proto": "RING_SIMPLE",
        }  # fmt: skip
        turns = islice(cycle(late_s), rank, rank + END_MIN // 4) if local < late else [12.0] * 20
        busy = counter(*((4, step) for step in turns))
        yield Series("nccl_collective_operations_total", OWN | kind, f"0+600x{END_MIN}")
        yield Series("nccl_collective_busy_seconds_total", OWN | kind, busy)


@pytest.mark.parametrize("layout", ["one server", "shards"])
def test_ranks_that_are_late_within_their_node_are_named(tmp_path: Path, layout: str) -> None:
    expr = "count by (node, gpu) (abs(rank:nccl_collective_late:ratio - 0.15) < 1e-6)"
    late = [{"node": node, "gpu": gpu} for node in ("n1", "n2") for gpu in ("GPU0", "GPU1")]
    wanted = [Expected(CHANGED_MIN, expr, late)]
    assert complaints(tmp_path, layout, late_within_nodes(2), wanted) == []


def late_in_turns(ms: Mapping[int, Iterable[tuple[int, float]]]) -> list[Series]:
    """A job of forty ranks; after the change some take these ms in dp, each for some minutes."""
    found = []
    for one in Job(ranks=2 * NODES).series(OWN):
        rank, values = int(one.labels["rank"]), one.values
        is_busy = one.name == "nccl_collective_busy_seconds_total"
        if rank in ms and is_busy and one.labels["comm_name"] == "dp":
            after = [(minutes, 600 * mean / 1000) for minutes, mean in ms[rank]]
            values = counter((HEALTHY_MIN, 600 * 20 / 1000), *after)
        found.append(replace(one, values=values))
    return found


STRAGGLERS = 'ALERTS{alertname="NcclStraggler", alertstate="firing"}'


@pytest.mark.parametrize("layout", ["one server", "shards"])
def test_a_node_is_named_whose_ranks_take_turns_at_being_the_latest(
    tmp_path: Path, layout: str
) -> None:
    turns = [(4, 8.0), (4, 12.0)] * 5
    series = late_in_turns({2: turns, 3: turns[1:]})
    expr, node = f"count by (node) ({STRAGGLERS}) > bool 0", [{"node": "n2"}]
    wanted = [Expected(HEALTHY_MIN + minute, expr, node) for minute in range(16, 32, 3)]
    assert complaints(tmp_path, layout, series, wanted) == []


@pytest.mark.parametrize("layout", ["one server", "shards"])
def test_ranks_are_named_that_take_turns_at_being_the_latest_within_nodes(
    tmp_path: Path, layout: str
) -> None:
    series = late_within_nodes(3, nodes=4, late_s=(2, 3, 4))
    wanted = [Expected(minute, f"count({STRAGGLERS}) >= bool {3 * SHARDS}", [{}])
              for minute in range(40, 60, 3)]  # fmt: skip
    assert complaints(tmp_path, layout, series, wanted) == []


# Ranks 2 and 6 are on one shard. Late by 10 ms is a tenth of the time.
@pytest.mark.parametrize("layout", ["one server", "shards"])
@pytest.mark.parametrize(
    ("first_ms", "other_ms", "late"),
    [(14, 6, 0.14), pytest.param(16, 14.5, 0.055, marks=pytest.mark.long)],
)
def test_a_rank_that_becomes_later_than_another_one_is_named(
    tmp_path: Path, layout: str, first_ms: float, other_ms: float, late: float
) -> None:
    series = late_in_turns({2: [(AFTER_MIN, first_ms)], 6: [(12, 20), (AFTER_MIN - 12, other_ms)]})
    near = f'abs(max(rank:nccl_collective_late:ratio{{rank="6"}}) - {late}) < bool 1e-6'
    assert complaints(tmp_path, layout, series, [Expected(END_MIN - 5, near, [{}])]) == []


def test_a_shard_that_does_not_answer_is_no_alert_about_a_job(tmp_path: Path) -> None:
    stays, goes = Job().series(OWN), Job(after_min=0).series(OWN)
    series = [there if there.labels["node"] == "n2" else gone
              for there, gone in zip(stays, goes, strict=True)]  # fmt: skip
    before = 'count(shard:nccl_operations:rate{cluster="c"}) == bool 2'
    after = before.replace("2", "1")
    wanted = [
        Expected(HEALTHY_MIN, before, [{}]),
        *[Expected(HEALTHY_MIN + minute, after, [{}]) for minute in (12, 30)],
        *[Expected(minute, 'ALERTS{alertstate="firing"}', []) for minute in range(45, 80, 5)],
    ]
    assert complaints(tmp_path, "shards", series, wanted) == []


def federated(communicators: int, names: int, kinds: int) -> int:
    """How many series of a job a shard has for the global server; one name is within nodes.

    Of each communicator of several nodes and each name, there are so many kinds.
    """
    return 7 * communicators * kinds + (names + 1) * kinds + 5


def test_the_page_says_how_many_series_of_a_job_are_federated(tmp_path: Path) -> None:
    """It grows with communicators and kinds as the page says, whose example is larger."""
    series = []
    for one in Job(ranks=16).series(OWN):
        second = one.labels | {"comm": one.labels["comm"] + "2"}
        for labels in (one.labels, second):
            sizes = ["1-2MB", "2-4MB", "4-8MB"] if "message_size" in labels else [""]
            series += [
                replace(one, labels=labels | ({"message_size": size} if size else {}))
                for size in sizes
            ]
    for node in ("n1", "n2"):  # on each shard
        place = OWN | {"node": node, "gpu": "GPU0"}
        for name in ("inspector_last_write", "communicator_last_progress"):
            series.append(Series(f"nccl_{name}_timestamp_seconds", place, f"0+60x{END_MIN}"))
    expr = (
        'count({__name__=~"shard:nccl_.+", cluster="c", slurm_job_id="0"}) '
        f"== bool {SHARDS * federated(communicators=2, names=2, kinds=3)}"
    )
    assert complaints(tmp_path, "shards", series, [Expected(CHANGED_MIN, expr, [{}])]) == []
    page = (REPO / "packaging/doc/large-sites.md").read_text()
    assert f"these are {3 * federated(communicators=9, names=3, kinds=6):,} series" in page


@pytest.mark.parametrize("nodes", [4, pytest.param(40, marks=pytest.mark.long)])
def test_what_a_job_costs_a_global_server_does_not_grow_with_its_nodes(
    tmp_path: Path, nodes: int
) -> None:
    job = Job(ranks=2 * nodes, throughput=(300, 300), inflight_s=(20, 20))
    each = federated(communicators=1, names=2, kinds=1)
    marked = 2  # only one node marks the throughput
    not_here = 1  # when a process wrote
    expr = (
        'count({__name__=~"shard:nccl_.+", cluster="c", slurm_job_id="0"}) '
        f"== bool {SHARDS * (each - not_here) + marked}"
    )
    wanted = [Expected(CHANGED_MIN, expr, [{}])]
    assert complaints(tmp_path, "shards", job.series(OWN), wanted) == []


def test_a_shard_names_the_same_rank_while_none_is_late(tmp_path: Path) -> None:
    ever = "count_over_time(rank:nccl_collective_late:chosen[60m:1m])"
    parts = [{"cluster": f"c~{shard}"} for shard in range(SHARDS)]
    job = Job(ranks=2 * NODES, dp_ms={rank: 20 + rank % 5 / 10 for rank in range(40)})
    wanted = [Expected(END_MIN - 5, f"count by (cluster) ({ever}) == bool 1", parts)]
    assert complaints(tmp_path, "shards", job.series(OWN), wanted) == []


def test_each_alert_is_either_of_a_shard_or_above() -> None:
    names = {
        role: re.findall(r"alert: (\w+)", render("alerts", make_site(words)))
        for role, words in {
            "all": [], "shard": ["role=shard", "shards=2"], "global": ["role=global"]
        }.items()
    }  # fmt: skip
    assert names["global"] + names["shard"] == names["all"]
    assert "NcclStraggler" in names["global"]


def test_rules_above_shards_use_only_what_shards_record() -> None:
    shard, site = make_site(["role=shard", "shards=2"]), make_site(["role=global"])
    recorded = set(re.findall(r"record: (\S+)", render("rules", shard)))
    above = render("rules", site) + render("alerts", site)
    asked = set(re.findall(r"shard:[\w:]+", above))
    assert asked == {name for name in recorded if name.startswith("shard:")}
    exprs = re.sub(r"(?m)^ *(#|summary:).*$", "", above)
    assert re.findall(r"(?<![\w:])nccl_\w+", exprs) == []
