# SPDX-License-Identifier: Apache-2.0
"""Several Prometheis share the nodes. What they have of a job comes together in two ways.

They send all series to one VictoriaMetrics; and a global Prometheus federates the few series that
they have recorded for it. A job runs on the cluster. One Prometheus that scrapes all nodes and
evaluates the rules is what both are compared with. Every file is as `setup monitoring` makes it.
"""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from nccl_inspector.monitoring.bundle import make_bundle
from nccl_inspector.monitoring.site import make_site
from tests.sandbox import NODES, Cluster, wait_until
from tests.sandbox.prometheus import Sample, query
from tests.support.dashboard_queries import fill_in, panel_expressions, variable_expressions
from tests.support.past_prometheus import prometheus_of, rules_of
from tests.support.sandbox import jobs
from tests.support.victoria_metrics import victoria_metrics

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SHARDS = 3  # by a hash of the address, so one may have no node
RANKS, SLOW_RANK = 8, 5
SETTINGS = (
    "cluster=sandbox", "scrape_interval=1s", "record_interval=1s", "baseline_interval=1s",
    "baseline_window=10s", "baseline_offset=5s", "baseline_samples=3", "rate_window=10s",
    "alert_interval=1s", "late_window=10s", "late_for=3s", "very_late_for=3s",
)  # fmt: skip
# Lateness is measured in windows of 10 s, and the alert comes 3 s after.
WATCHED_S = 40
ARRIVED_S = 4  # for which samples may be on their way


@dataclass(frozen=True)
class Answers:
    """Where the same questions are asked."""

    alone: str
    shards: list[str]
    together: str
    above: str  # the global one
    job_id: int
    at: float

    def ask(self, url: str, expr: str, ago_s: float = 0) -> list[Sample]:
        # While vmalert asks, VictoriaMetrics lets a question wait for up to 10 s.
        return query(url, expr, self.at - ago_s, timeout=30)

    def agree(self, expr: str) -> bool:
        """Whether both have the same series of an expression, at one of three times.

        A figure close to a panel's threshold may be above it in one of them only.
        """
        return any(
            labels_of(self.ask(self.alone, expr, ago_s))
            == labels_of(self.ask(self.together, expr, ago_s))
            for ago_s in (0, 4, 8)
        )


def files_of(targets: list[str], words: list[str], more: str) -> dict[str, str]:
    """The files of one Prometheus; `more` goes to the end of its configuration."""
    bundle = make_bundle(make_site([*SETTINGS, *words]), list(NODES))
    files = {path.rpartition("/")[2]: text for path, text in bundle.items()}
    files["nccl-inspector-targets.yml"] = json.dumps([{"targets": targets}])
    files["prometheus.yml"] = (
        "global: {scrape_timeout: 1s, evaluation_interval: 1s}\n"
        f"{files['nccl-inspector-scrape.yml']}\n{more}"
    )
    return files


@pytest.fixture(scope="module")
def answers(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    cluster, place = shared_cluster, tmp_path_factory.mktemp("rules")
    cluster.set_conf(interval="2s")
    layout = cluster.layout
    nodes = [f"{layout.address(node)}:{layout.exporter_port(node)}" for node in NODES]
    with ExitStack() as stack:
        victoria = stack.enter_context(victoria_metrics())
        rules = "rule_files: [nccl-inspector-rules.yml, nccl-inspector-alerts.yml]\n"
        files = files_of(nodes, [], rules)
        alone = stack.enter_context(prometheus_of(files))
        remote = f"{rules}remote_write: [{{url: '{victoria.url}/api/v1/write'}}]\n"
        shards = []
        for shard in range(SHARDS):
            words = ["role=shard", f"shards={SHARDS}", f"shard={shard}"]
            shards.append(stack.enter_context(prometheus_of(files_of(nodes, words, remote))))
        servers = [url.removeprefix("http://") for url in shards]
        above = stack.enter_context(prometheus_of(files_of(servers, ["role=global"], rules)))
        paths = [place / f"{name}.yml" for name in ("rules", "alerts")]
        for path in paths:
            path.write_text(files[f"nccl-inspector-{path.name}"])
        stack.enter_context(victoria.evaluating(paths))
        command = jobs.standin(
            cluster, "--seconds", str(WATCHED_S + 20), "--sizes", "1M,2M", "--compute-ms", "2",
            "--slow-rank", f"{SLOW_RANK}:40",
        )  # fmt: skip
        job_id = jobs.submit(
            cluster, "--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1",
            script=f"srun {command}",
        )  # fmt: skip
        counter = f'nccl_collective_operations_total{{slurm_job_id="{job_id}"}}'
        wait_until(lambda: len(ranks(query(alone, counter))) == RANKS, 30, "all ranks are there")
        time.sleep(WATCHED_S)
        at = time.time() - ARRIVED_S
        yield Answers(alone, shards, victoria.url, above, job_id, at)
        jobs.finish(cluster, job_id)
    cluster.reset()


def ranks(found: list[Sample]) -> set[str]:
    return {one.labels["rank"] for one in found}


def labels_of(found: list[Sample]) -> set[str]:
    """The labels of each series; VictoriaMetrics keeps the name of some that are computed."""
    return {json.dumps(one.labels | {"__name__": ""}, sort_keys=True) for one in found}


def names_of(found: list[Sample]) -> set[str]:
    return {one.labels["__name__"] for one in found}


def test_each_node_is_scraped_by_one_prometheus(answers: Answers) -> None:
    scraped = [{one.labels["instance"] for one in answers.ask(url, "up")} for url in answers.shards]
    every = {one.labels["instance"] for one in answers.ask(answers.alone, "up")}
    assert len(every) == len(NODES)
    assert set.union(*scraped) == every
    assert sum(map(len, scraped)) == len(every)


def test_all_series_are_in_the_one_storage(answers: Answers) -> None:
    expr = '{__name__=~"nccl_.+"}'
    alone, together = answers.ask(answers.alone, expr), answers.ask(answers.together, expr)
    assert len(alone) > 100
    assert names_of(together) == names_of(alone)
    assert labels_of(together) == labels_of(alone)


def test_dashboards_and_rules_have_the_same_series(answers: Answers) -> None:
    chosen = {
        "cluster": "sandbox", "job": str(answers.job_id), "slurm_job_id": str(answers.job_id),
        "node": "n3", "collective": "AllReduce", "comm_name": "standin_world",
        "message_size": "1-2MB", "__rate_interval": "10s", "__interval": "1s", "__range": "30s",
    }  # fmt: skip
    asked = dict(rules_of(answers.alone))
    for name, text in make_bundle(make_site(SETTINGS), ["n1"]).items():
        if name.endswith(".json"):
            board = json.loads(text)
            for where, expr in [*variable_expressions(board), *panel_expressions(board)]:
                asked[f"{name}: {where}"] = fill_in(expr, chosen)
    assert [where for where, expr in asked.items() if not answers.agree(expr)] == []
    assert sum(bool(answers.ask(answers.alone, expr)) for expr in asked.values()) >= 30


def test_the_alert_about_the_slow_rank_fires_in_all(answers: Answers) -> None:
    expr = 'ALERTS{alertstate="firing"}'
    alone = answers.ask(answers.alone, expr)
    late = [one.labels for one in alone if one.labels["alertname"] == "NcclStraggler"]
    assert [(one["slurm_job_id"], one["node"]) for one in late] == [(str(answers.job_id), "n3")]
    keys = "alertname", "slurm_job_id", "node", "gpu"
    for url in (answers.together, answers.above):
        assert {tuple(map(one.labels.get, keys)) for one in answers.ask(url, expr)} == {
            tuple(map(one.labels.get, keys)) for one in alone
        }


def test_a_global_prometheus_has_the_same_figures_of_the_job(answers: Answers) -> None:
    """The job is steady. So it does not matter that these are of some seconds before."""
    names = sorted({name for name, _ in rules_of(answers.alone) if name.startswith("job:")})
    assert len(names) >= 9
    differ = {}
    for name in names:
        expr = f'avg_over_time({name}{{slurm_job_id="{answers.job_id}"}}[15s])'
        alone, above = (
            {json.dumps(one.labels, sort_keys=True): one.value for one in answers.ask(url, expr)}
            for url in (answers.alone, answers.above)
        )
        near = {key: pytest.approx(value, rel=0.1, abs=0.02) for key, value in alone.items()}
        if above != near:
            differ[name] = (alone, above)
    assert differ == {}


def test_a_global_prometheus_has_few_series_of_the_job(answers: Answers) -> None:
    """No more than the page large-sites says."""
    own = f'slurm_job_id="{answers.job_id}"'
    kind, bucket = "collective, message_size, algo_proto", "comm_name, collective, message_size"

    def different(by: str, labels: str) -> int:
        metric = f"nccl_collective_operations_total{{{own}, {labels}}}"
        return len(answers.ask(answers.alone, f"count by ({by}) ({metric})"))

    several, one = 'n_nodes!="1"', 'n_nodes="1"'
    kinds = different(f"comm, {kind}", several)
    of_shard = 7 * kinds + different(bucket, several) + 2 * different(bucket, one) + 5
    of_shard += different("comm", several) + 3  # late processes that wait themselves
    shards = len(answers.ask(answers.above, f"shard:nccl_operations:rate{{{own}}}"))
    count = 'count({__name__=~"%s", %s})'
    (federated,) = answers.ask(answers.above, count % ("shard:nccl_.+", own))
    (nodes,) = answers.ask(answers.alone, count % ("nccl_.+", own))
    assert 1 < shards <= SHARDS
    assert 7 * kinds < federated.value <= shards * of_shard
    assert federated.value < nodes.value / 3  # of two nodes a shard, or of one


def test_a_job_that_has_ended_is_soon_gone_from_the_global_prometheus(
    shared_cluster: Cluster, answers: Answers
) -> None:
    own = f'{{__name__=~"(shard|job|rank):.+", slurm_job_id="{answers.job_id}"}}'
    assert answers.ask(answers.above, own)
    jobs.finish(shared_cluster, answers.job_id)
    # With the shards' times of the samples it would take five minutes.
    wait_until(lambda: not query(answers.above, own), 30, "no series of the job is left")
