"""Each alert fires on what it is for, and not on what looks like it.

This holds for one server that has all series, and for shards and a server that federates them.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.monitoring.site import make_site
from tests.support import rule_series
from tests.support.federated_rules import federated_rules, spread
from tests.support.promtool import Expected, Labels, Series, failures, failures_of, steady
from tests.support.rule_series import AFTER_MIN, END_MIN, HEALTHY_MIN, Job

# When a lasting change is an alert for certain.
SURE_MIN = HEALTHY_MIN + 20


Build = Callable[[Labels], list[Series]]

NETWORK = Job(dp_gbs=(40, 28), operations=(600, 520), throughput=(310, 268))
NVLINK = Job(tp_gbs=(300, 200), operations=(600, 500))
LATE = Job(dp_ms={0: 25, 1: 25, 2: 25, 3: 15})  # 10 ms of 100, ten times a second
UP = steady((END_MIN, 1))


def run(*several: Job) -> Build:
    """Jobs of one cluster."""

    def build(own: Labels) -> list[Series]:
        ids = [own | {"slurm_job_id": str(number)} for number in range(len(several))]
        return [one for job, who in zip(several, ids, strict=True) for one in job.series(who)]

    return build


def write(every_min: int, last_min: int) -> Build:
    return lambda own: [rule_series.written(own | {"slurm_job_id": "0"}, every_min, last_min)]


def textfile(values: str) -> Build:
    labels = {"instance": "n1:9100", "job": "nccl-inspector"}
    return lambda own: [Series("node_textfile_scrape_error", own | labels, values)]


SUSPECT = {"alertname": "NcclNetworkSuspect", "slurm_job_id": "0"}

FIRES: dict[str, tuple[Build, list[Labels]]] = {
    "the network, with the fall of throughput that NVIDIA published": (run(NETWORK), [SUSPECT]),
    "the network of a job that marks nothing": (run(replace(NETWORK, throughput=None)), [SUSPECT]),
    "the network of three jobs": (
        run(NETWORK, NETWORK, NETWORK),
        [SUSPECT | {"slurm_job_id": str(job)} for job in range(3)]
        + [{"alertname": "NcclFabricSuspect"}],
    ),
    "bandwidth within the nodes": (
        run(NVLINK), [{"alertname": "NcclJobDegraded", "slurm_job_id": "0"}],
    ),
    "bandwidth everywhere": (
        run(replace(NVLINK, dp_gbs=(40, 28))),
        [{"alertname": "NcclJobDegraded", "slurm_job_id": "0"}],
    ),
    "a network, while the bandwidth within the nodes comes and goes": (
        run(replace(NETWORK, tp_flaps=True)),
        [{"alertname": "NcclJobDegraded", "slurm_job_id": "0"}],
    ),
    "bandwidth, of an NCCL that does not tell the nodes of its communicators": (
        run(replace(NETWORK, nodes_known=False, tp_gbs=(300, 200))),
        [{"alertname": "NcclJobDegraded", "slurm_job_id": "0"}],
    ),
    "a rank that comes last": (
        run(LATE),
        [{"alertname": "NcclStraggler", "slurm_job_id": "0", "node": "n2", "gpu": "GPU1"}],
    ),
    "a late rank, for which the bandwidth of the others falls": (
        run(replace(LATE, dp_gbs_of={0: 20, 1: 20, 2: 20}, operations=(600, 400))),
        [{"alertname": "NcclStraggler", "slurm_job_id": "0", "node": "n2", "gpu": "GPU1"}],
    ),
    "an operation that does not end": (
        run(Job(inflight_s=(0, 600))), [{"alertname": "NcclJobHung", "slurm_job_id": "0"}],
    ),
    "a process that no longer writes": (
        write(1, HEALTHY_MIN),
        [{"alertname": "NcclInspectorStale", "slurm_job_id": "0", "node": "n1"}],
    ),
    "a first refused file": (
        lambda own: rule_series.rejected(own, steady((HEALTHY_MIN + 12, None), (23, 1))),
        [{"alertname": "NcclInspectorFilesRejected", "node": "n1", "reason": "syntax"}],
    ),
    "a first refused file, of an agent that began just before": (
        lambda own: rule_series.rejected(
            own, steady((HEALTHY_MIN + 12, None), (23, 1)), began_min=HEALTHY_MIN + 10
        ),
        [{"alertname": "NcclInspectorFilesRejected", "node": "n1", "reason": "syntax"}],
    ),
    "one more refused file": (
        lambda own: rule_series.rejected(own, steady((HEALTHY_MIN + 12, 4), (23, 5))),
        [{"alertname": "NcclInspectorFilesRejected", "node": "n1", "reason": "syntax"}],
    ),
    "a job that names its series anew all the time": (
        lambda own: rule_series.left_out(own, f"0x{HEALTHY_MIN - 1} 0+90x{AFTER_MIN}", "life"),
        [{"alertname": "NcclInspectorSeriesLeftOut", "slurm_job_id": "0", "reason": "life"}],
    ),
    "a job that is over its share": (
        lambda own: rule_series.left_out(own, f"0x{HEALTHY_MIN - 1} 0+7x{AFTER_MIN}", "share"),
        [{"alertname": "NcclInspectorSeriesLeftOut", "slurm_job_id": "0", "reason": "share"}],
    ),
    "a file that node_exporter cannot read": (
        textfile(steady((HEALTHY_MIN, 0), (AFTER_MIN, 1))),
        [{"alertname": "NcclTextfileRejected", "instance": "n1:9100"}],
    ),
    "an agent that makes no pass": (
        lambda own: rule_series.agent(own, up=UP, last_min=HEALTHY_MIN),
        [{"alertname": "NcclInspectorAgentDown", "node": "n1"}],
    ),
    "an agent whose series are gone": (
        lambda own: rule_series.agent(own, up=UP, gone_min=HEALTHY_MIN),
        [{"alertname": "NcclInspectorAgentDown", "node": "n1"}],
    ),
}  # fmt: skip

QUIET: dict[str, Build] = {
    "healthy": run(Job(throughput=(310, 310))),
    "slower collectives that cost the job nothing": run(replace(NETWORK, throughput=(310, 308))),
    "the same without marks": run(replace(NETWORK, throughput=None, operations=(600, 590))),
    "a job that does less, its bandwidth as ever": run(
        Job(operations=(600, 300), throughput=(310, 150))
    ),
    "a dip of five minutes": run(replace(NETWORK, dip_min=5)),
    "a fall to 85 %": run(replace(NETWORK, dp_gbs=(40, 34))),
    "a job too young for a baseline": run(
        replace(NETWORK, healthy_min=10, after_min=20)  # it lives for half an hour
    ),
    "a job that ends": run(Job(after_min=0, throughput=(310, 310))),
    "two suspect jobs are not the fabric": run(NETWORK, NETWORK),
    "a rank that is late by 2 % of the time": run(Job(dp_ms={3: 18})),
    "a rank that is late in few operations": run(replace(LATE, operations=(60, 60))),
    "all ranks slower alike": run(Job(dp_ms=dict.fromkeys(range(4), 40.0))),
    "a rank that does small operations besides": run(Job(small_rank=0)),
    "late for five minutes": run(replace(LATE, dip_min=5)),
    "one of two ranks is late": run(Job(ranks=2, dp_ms={0: 25, 1: 15})),
    "a rank whose counters stand still": run(Job(silent_rank=2)),
    "receives that have been posted for hours": run(Job(p2p_inflight_s=(7200, 9000))),
    "operations of fifty seconds": run(Job(inflight_s=(50, 50))),
    "a job that writes each quarter of an hour": write(15, END_MIN),
    "a process that pauses": write(4, END_MIN),
    "files refused long ago": lambda own: rule_series.rejected(own, steady((END_MIN, 3))),
    "files refused before Prometheus was away": lambda own: rule_series.rejected(
        own, steady((40, 7), (20, None), (20, 7)), away=range(40, 60)
    ),
    "a job of which nothing is left out": lambda own: rule_series.left_out(
        own, steady((END_MIN, 0)), "share"
    ),
    "a job of which something was left out once": lambda own: rule_series.left_out(
        own, steady((HEALTHY_MIN, 0), (AFTER_MIN, 40)), "life"
    ),
    "one bad scrape of the textfiles": textfile(steady((HEALTHY_MIN, 0), (2, 1), (33, 0))),
    "an agent that works": lambda own: rule_series.agent(own, up=UP),
    "an agent that is started anew": lambda own: rule_series.agent(
        own, up=UP, gone_min=END_MIN - 3
    ),
    "a cluster that is renamed": lambda own: rule_series.renamed(own, HEALTHY_MIN),
    "a node that is down": lambda own: rule_series.agent(
        own, up=steady((HEALTHY_MIN, 1), (AFTER_MIN, 0)), gone_min=HEALTHY_MIN
    ),
}
# Both jobs fire for themselves there; only the fabric may not.
ONLY = {"two suspect jobs are not the fabric": 'alertname="NcclFabricSuspect", '}

CASES = [*FIRES, *QUIET]


def firing(case: str, only: str = "") -> str:
    # A shard's part of a cluster has a name of its own.
    return f'ALERTS{{cluster=~"c{CASES.index(case)}(~.)?", {only}alertstate="firing"}}'


def expected(case: str) -> list[Expected]:
    """What fires when: before the change nothing, then exactly what is wanted."""
    if case in QUIET:
        ever = f"{firing(case, ONLY.get(case, ''))}[{END_MIN}m]"
        return [Expected(END_MIN, f"count by (alertname) (present_over_time({ever}))", [])]
    wanted = FIRES[case][1]
    names = sorted({name for one in wanted for name in one})
    expr = f"count by ({', '.join(names)}) ({firing(case)})"
    return [Expected(HEALTHY_MIN, expr, []), Expected(SURE_MIN + 5, expr, wanted)]


@pytest.fixture(
    scope="module", params=["one server", pytest.param("shards", marks=pytest.mark.long)]
)
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What promtool complains of; every case has a cluster of its own, and one run serves all."""
    series = [
        one
        for number, case in enumerate(CASES)
        for one in (QUIET.get(case) or FIRES[case][0])({"cluster": f"c{number}"})
    ]
    wanted = [one for case in CASES for one in expected(case)]
    folder = tmp_path_factory.mktemp("promtool")
    if request.param == "shards":
        return failures_of(folder, federated_rules(), spread(series), wanted)
    return failures(folder, make_site([]), series, wanted)


def of_case(said: list[str], case: str) -> list[str]:
    mark = re.compile(rf'cluster=~\\*"c{CASES.index(case)}\(')
    return [one for one in said if mark.search(one)]


@pytest.mark.parametrize("case", FIRES)
def test_an_alert_fires_and_no_other(said: list[str], case: str) -> None:
    assert of_case(said, case) == []


@pytest.mark.parametrize("case", QUIET)
def test_a_near_miss_is_quiet(said: list[str], case: str) -> None:
    assert of_case(said, case) == []


def test_promtool_ran_and_said_nothing_else(said: list[str]) -> None:
    assert said == []


def test_with_the_agents_own_endpoint_one_that_does_not_answer_is_an_alert(tmp_path: Path) -> None:
    up = steady((HEALTHY_MIN, 1), (AFTER_MIN, 0))
    series = rule_series.agent({"cluster": "c0"}, up=up, gone_min=HEALTHY_MIN)
    wanted = [{"alertname": "NcclInspectorAgentDown", "node": "n1"}]
    expr = 'count by (alertname, node) (ALERTS{alertstate="firing"})'
    site = make_site(["source=http"])
    assert failures(tmp_path, site, series, [Expected(SURE_MIN, expr, wanted)]) == []


def test_a_node_that_is_no_longer_a_target_of_the_agents_own_endpoint_is_quiet(
    tmp_path: Path,
) -> None:
    up = f"1+0x{HEALTHY_MIN - 1} stale"
    series = rule_series.agent({"cluster": "c0"}, up=up, gone_min=HEALTHY_MIN)
    ever = f'count(present_over_time(ALERTS{{alertstate="firing"}}[{END_MIN}m]))'
    assert (
        failures(tmp_path, make_site(["source=http"]), series, [Expected(END_MIN, ever, [])]) == []
    )
