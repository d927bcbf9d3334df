"""What the dashboards ask has an answer, and what should alert does, in a real Prometheus.

One job with a late rank and one that hangs run on the sandbox cluster with the bundle's rules; each
expression of our dashboards and of the one that NVIDIA publishes must return series meanwhile.
"""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nccl_inspector.monitoring.bundle import make_bundle, write_bundle
from nccl_inspector.monitoring.site import make_site
from tests.sandbox import Cluster, prometheus, wait_until
from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import NODES, REPO
from tests.support.dashboard_queries import (
    fill_in,
    panel_expressions,
    variable_expressions,
    vendor_expressions,
)
from tests.support.sandbox import jobs
from tests.support.sandbox.monitoring_rules import SHORT_WINDOWS, load_rules

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SLOW_RANK, SLOW_PLACE = 5, ("n3", "GPU1")
HANGING_RANK = 1
# What Prometheus itself adds to every target.
SCRAPE = {"up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_series_added"}
SCRAPE |= {"scrape_samples_post_metric_relabeling"}
CALL = 'from nccl_inspector import mark; mark(314, "TFLOP/s/GPU")'
MARK = f"PYTHONPATH={REPO}/python python3 -c '{CALL}'"

Expressions = dict[str, str]  # by dashboard and panel, or variable


def all_expressions() -> Expressions:
    """Every expression of our dashboards and of NVIDIA's, with its variables."""
    found = {}
    for name, text in make_bundle(make_site(SHORT_WINDOWS), []).items():
        if name.endswith(".json"):
            board = json.loads(text)
            for where, expr in [*variable_expressions(board), *panel_expressions(board)]:
                found[f"{name}: {where}"] = expr
    for number, (where, expr) in enumerate(vendor_expressions()):
        found[f"NVIDIA's {number}: {where}"] = expr
    return found


@dataclass
class Seen:
    """What Prometheus answered."""

    series: dict[str, int] = field(default_factory=dict)  # by expression, the most
    alerts: list[dict[str, dict[str, str]]] = field(default_factory=list)
    job_id: int = 0
    hung_id: int = 0


@pytest.fixture(scope="module")
def seen(shared_cluster: Cluster) -> Iterator[Seen]:
    """Both jobs, run until everything has been seen or a minute has passed."""
    cluster = shared_cluster
    cluster.reset()
    load_rules(cluster)
    try:
        yield look(cluster)
    finally:
        cluster.reset()


def look(cluster: Cluster) -> Seen:
    late = jobs.standin(cluster, "--seconds", "200", "--slow-rank", f"{SLOW_RANK}:40")
    hung = jobs.standin(
        cluster, *jobs.QUICK, "--steps", "100000", "--hang", f"{HANGING_RANK}", "--timeout", "0"
    )
    words = ("--nccl-inspector=prom", "--ntasks-per-node=2", "--mem=500")
    found = Seen()
    found.job_id = jobs.submit(
        cluster, *words, "-N4", "--gpus-per-task=1", script=f"{MARK}\nsrun {late}"
    )
    found.hung_id = jobs.submit(cluster, *words, "-N2", "--gpus-per-task=1", script=f"srun {hung}")
    values = {
        "cluster": "sandbox", "job": str(found.job_id), "jobid": str(found.job_id), "node": "n3",
        "comm_name": ".*", "message_size": ".*", "collective": "AllReduce",
        "__rate_interval": "6s", "__range": "60s",
    }  # fmt: skip
    missing = all_expressions()

    def everything() -> bool:
        for where, expr in list(missing.items()):
            found.series[where] = len(cluster.query(fill_in(expr, values)))
            if found.series[where]:
                del missing[where]
        found.alerts = prometheus.alerts(cluster.layout.prometheus_url())
        names = {one["labels"]["alertname"] for one in found.alerts}
        return not missing and {"NcclStraggler", "NcclJobHung"} <= names

    with suppress(ClusterError):  # the tests say what is missing
        wait_until(everything, 90, "every expression has series, and both alerts fire", 1)
    return found


@pytest.mark.parametrize("where", all_expressions())
def test_an_expression_returns_series(seen: Seen, where: str) -> None:
    assert seen.series[where] > 0


@pytest.fixture
def own_prometheus(shared_cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """A Prometheus of its own with the rendered files and nothing else; its address."""
    other_names = ["label_cluster=site", "label_job=jobid", "label_node=host", "cluster=alpha"]
    site = make_site([*SHORT_WINDOWS[1:], *other_names])
    write_bundle(tmp_path, make_bundle(site, []))
    folder = tmp_path / "prometheus"
    layout = shared_cluster.layout
    targets = [layout.exporter_url(node).removeprefix("http://") for node in NODES]
    (folder / "nccl-inspector-targets.yml").write_text(json.dumps([{"targets": targets}]))
    rules = ["nccl-inspector-rules.yml", "nccl-inspector-alerts.yml"]
    scrape = (folder / "nccl-inspector-scrape.yml").read_text()
    config = folder / "prometheus.yml"
    config.write_text(f"rule_files: {json.dumps(rules)}\n{scrape}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    process = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(10)


def test_a_prometheus_with_the_rendered_files_scrapes_with_the_sites_names(
    seen: Seen, own_prometheus: str
) -> None:
    late = f'max by (site, host) (rank:nccl_collective_late:ratio{{jobid="{seen.job_id}"}}) > 0.05'
    found: list[prometheus.Sample] = []

    def named() -> bool:
        nonlocal found
        with suppress(ClusterError):  # it is not up yet
            found = prometheus.query(own_prometheus, late)
        return bool(found)

    wait_until(named, 40, "the late rank, by the rules", 0.5)
    assert [one.labels for one in found] == [{"site": "alpha", "host": SLOW_PLACE[0]}]
    names = prometheus.query(own_prometheus, 'count by (__name__) ({job="nccl-inspector"})')
    others = {one.labels["__name__"] for one in names if "nccl_" not in one.labels["__name__"]}
    assert others <= SCRAPE | {"node_textfile_scrape_error"}
    old = prometheus.query(own_prometheus, '{__name__=~"nccl_.+", slurm_job_id!=""}')
    assert old == []


def alert(seen: Seen, name: str, job_id: int) -> list[dict[str, dict[str, str]]]:
    return [
        one
        for one in seen.alerts
        if one["labels"]["alertname"] == name and one["labels"]["slurm_job_id"] == str(job_id)
    ]


def test_the_straggler_is_named_with_its_node_and_gpu(seen: Seen) -> None:
    found = alert(seen, "NcclStraggler", seen.job_id)
    assert [(one["labels"]["node"], one["labels"]["gpu"]) for one in found] == [SLOW_PLACE]
    assert (
        f"Job {seen.job_id}: its other ranks wait for n3 GPU1 "
        in found[0]["annotations"]["summary"]
    )


def test_a_hang_is_one_alert_that_names_who_called_nothing(seen: Seen) -> None:
    (found,) = alert(seen, "NcclJobHung", seen.hung_id)
    said = found["annotations"]["description"]
    assert f"(rank {HANGING_RANK} of standin_world) did not come to what" in said
    assert said.count("(rank ") == 1


def test_a_healthy_cluster_has_no_other_alert_of_a_job(seen: Seen) -> None:
    of_jobs = {
        (one["labels"]["alertname"], int(one["labels"]["slurm_job_id"]))
        for one in seen.alerts
        if "slurm_job_id" in one["labels"]
    }
    assert of_jobs == {
        ("NcclStraggler", seen.job_id),
        ("NcclJobHung", seen.hung_id),
    }
