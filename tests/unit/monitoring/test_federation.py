# SPDX-License-Identifier: Apache-2.0
"""Shards and a global server find the same about a job as one server that has all series."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from nccl_inspector.monitoring.bundle import render
from nccl_inspector.monitoring.site import make_site
from tests.support.federated_rules import SHARDS, federated_rules, spread
from tests.support.promtool import Expected, Labels, Series, failures, failures_of
from tests.support.rule_series import END_MIN, HEALTHY_MIN, Job

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
@pytest.mark.parametrize("case", VALUES)
def test_both_layouts_have_the_same_figures_of_a_job(
    tmp_path: Path, layout: str, case: str
) -> None:
    job, figures = VALUES[case]
    wanted = []
    for expr, value, labels in figures:
        near = f"max by ({', '.join(labels)}) (abs({expr} - {value!r}) < bool 1e-6)"
        wanted.append(Expected(CHANGED_MIN, near, [labels]))
    assert complaints(tmp_path, layout, job.series(OWN), wanted) == []


def late_within_nodes(late: int) -> list[Series]:
    """A job of eight ranks a node, whose communicators do not leave the node."""
    found = []
    for rank in range(16):
        node = f"n{rank // 8 + 1}"
        kind = {
            "node": node, "gpu": f"GPU{rank % 8}", "rank": str(rank % 8), "comm": node,
            "comm_name": "tp", "n_nodes": "1", "nranks": "8", "collective": "AllReduce",
            "message_size": "1-2MB", "algo_proto": "RING_SIMPLE",
        }  # fmt: skip
        busy = 3 if rank < late else 12  # seconds each minute
        for what, step in (("operations", 600), ("busy_seconds", busy)):
            name = f"nccl_collective_{what}_total"
            found.append(Series(name, OWN | kind, f"0+{step}x{END_MIN}"))
    return found


@pytest.mark.parametrize("layout", ["one server", "shards"])
def test_ranks_that_are_late_within_their_node_are_named(tmp_path: Path, layout: str) -> None:
    expr = "count by (node, gpu) (rank:nccl_collective_late:ratio > 0.14)"
    late = [{"node": "n1", "gpu": f"GPU{rank}"} for rank in range(2)]
    wanted = [Expected(CHANGED_MIN, expr, late)]
    assert complaints(tmp_path, layout, late_within_nodes(2), wanted) == []


@pytest.mark.parametrize("nodes", [4, 40])
def test_what_a_job_costs_a_global_server_does_not_grow_with_its_nodes(
    tmp_path: Path, nodes: int
) -> None:
    """The figures of the page large-sites."""
    job = Job(ranks=2 * nodes, throughput=(300, 300))
    kinds = buckets_of_node = 1  # of dp, and of tp
    each = 7 * kinds + 2 * buckets_of_node + (kinds + 2)
    marked = 2  # only one node marks the throughput
    expr = (
        'count({__name__=~"shard:nccl_.+", cluster="c", slurm_job_id="0"}) '
        f"== bool {SHARDS * each + marked}"
    )
    wanted = [Expected(CHANGED_MIN, expr, [{}])]
    assert complaints(tmp_path, "shards", job.series(OWN), wanted) == []


def test_a_shard_names_the_same_rank_while_none_is_late(tmp_path: Path) -> None:
    ever = "count_over_time(rank:nccl_collective_late:chosen[60m:1m])"
    parts = [{"cluster": f"c~{shard}"} for shard in range(SHARDS)]
    job = Job(ranks=2 * NODES, dp_ms={rank: 20 + rank % 5 / 10 for rank in range(40)})
    wanted = [Expected(END_MIN - 5, f"count by (cluster) ({ever}) == bool 1", parts)]
    assert complaints(tmp_path, "shards", job.series(OWN), wanted) == []


def test_a_hang_above_shards_says_where_the_ranks_are() -> None:
    alerts = render("alerts", make_site(["role=global"]))
    assert "range query" not in alerts
    assert "nccl_communicator_operations_enqueued_total" in alerts


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
    exprs = re.sub(r"(?m)^ *(#|summary:|rank called|On the servers).*$", "", above)
    assert re.findall(r"(?<![\w:])nccl_\w+", exprs) == []
