# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's published story of its Inspector, on the sandbox cluster: a training job runs well, its
network is constrained for a while (there 310 TFLOP/s a GPU fell to 268, by 13 %), and it runs well
again. The bandwidth between nodes falls, the one within nodes does not, and an alert says so.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

import pytest

from tests.sandbox import Cluster, prometheus
from tests.sandbox.prometheus import Sample
from tests.support.sandbox import jobs
from tests.support.sandbox.monitoring_rules import load_rules

pytestmark = [pytest.mark.long, pytest.mark.timeout(420)]

# Seconds after the ranks have met. Before: until the rules have a baseline, and for its while.
FROM_S, UNTIL_S, END_S = 32, 60, 80
RATE_MBS, THROTTLED_MBS = 40, 24
RANKS = 8
TRIES = 3
GAUGE = "nccl_bus_bandwidth_gbs"
# What a window shows that is written, published and scraped each second, and the gauge's own.
LAG_S = 5


@dataclass
class Story:
    """What was seen, by second after the ranks met."""

    met: float  # Unix time
    job_id: int
    bandwidths: list[Sample] = field(default_factory=list)
    operations: list[Sample] = field(default_factory=list)
    firing: dict[float, set[str]] = field(default_factory=dict)  # by Unix time of the look

    def chapter(self, number: int) -> tuple[float, float]:
        """Unix times between which nothing changed: before, meanwhile, after."""
        begin, end = ((15, FROM_S), (FROM_S, UNTIL_S), (UNTIL_S, END_S))[number]
        return self.met + begin + (LAG_S if number else 0), self.met + end

    def bandwidth_gbs(self, number: int, between_nodes: bool) -> float:
        """Median of what the fastest ranks of the AllGathers and ReduceScatters have."""
        begin, end = self.chapter(number)
        by_time: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for one in self.bandwidths:
            if begin < one.time < end and (one.labels["n_nodes"] != "1") == between_nodes:
                kind = (one.labels[name] for name in ("comm", "collective", "message_size"))
                by_time[(*kind, f"{one.time:.0f}")].append(one.value)
        return median(max(values) for values in by_time.values())

    def operations_a_second(self, number: int) -> float:
        """How many operations the job completed: its progress."""
        begin, end = self.chapter(number)
        by_series: dict[str, list[Sample]] = defaultdict(list)
        for one in self.operations:
            if begin < one.time < end:
                by_series[str(one.labels)].append(one)
        return sum(
            (own[-1].value - own[0].value) / (own[-1].time - own[0].time)
            for own in by_series.values()
        )

    def fired(self, begin: float, end: float) -> set[str]:
        """Alerts of the job that fired in a look between these times."""
        return {name for at, names in self.firing.items() if begin < at < end for name in names}


def look(cluster: Cluster, job_id: int) -> set[str]:
    """Alerts of the job that fire now."""
    return {
        one["labels"]["alertname"]
        for one in prometheus.alerts(cluster.layout.prometheus_url())
        if one["labels"].get("slurm_job_id") == str(job_id)
    }


def tell(cluster: Cluster) -> Story:
    cluster.set_conf(interval="1s")
    load_rules(cluster)
    command = jobs.standin(
        cluster, "--seconds", str(END_S), "--sizes", "256K,512K", "--rate", str(RATE_MBS),
        "--throttle", f"all:{THROTTLED_MBS}:{FROM_S}:{UNTIL_S}",
    )  # fmt: skip
    words = ("--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1")
    job_id = jobs.submit(cluster, *words, script=f"srun {command}")
    jobs.wait_for_operations(cluster, job_id, RANKS, least=1)
    story = Story(time.time(), job_id)
    while time.time() < story.met + END_S:
        story.firing[time.time()] = look(cluster, job_id)
        time.sleep(0.5)
    job, seconds = f'slurm_job_id="{job_id}"', END_S + 20
    kinds = f'{GAUGE}{{{job}, collective=~"AllGather|ReduceScatter"}}'
    story.bandwidths = cluster.history(kinds, seconds)
    completed = f"nccl_communicator_operations_completed_total{{{job}}}"
    story.operations = cluster.history(completed, seconds)
    jobs.finish(cluster, job_id)
    return story


def _undisturbed(cluster: Cluster) -> Story:
    """Tell it again where somebody else had the processors before the links were slowed.

    Before and after nothing is throttled: a first chapter that is slower than the last one is not
    of this job's doing, and everything is compared with it.
    """
    for _ in range(TRIES - 1):
        story = tell(cluster)
        if story.operations_a_second(0) > 0.9 * story.operations_a_second(2):
            return story
        cluster.reset()
    return tell(cluster)


@pytest.fixture(scope="module")
def story(shared_cluster: Cluster) -> Iterator[Story]:
    shared_cluster.reset()
    try:
        yield _undisturbed(shared_cluster)
    finally:
        shared_cluster.reset()


def test_the_job_is_slower_meanwhile_and_recovers(story: Story) -> None:
    before, meanwhile, after = (story.operations_a_second(number) for number in range(3))
    print(f"operations a second: {before:.0f}, {meanwhile:.0f}, {after:.0f}")
    # Others on the same processors cost progress too, so the recovery is from what it fell to.
    assert meanwhile < 0.92 * before
    assert after > 1.08 * meanwhile


def test_the_bandwidth_between_nodes_falls_as_the_links_do(story: Story) -> None:
    before, meanwhile, after = (story.bandwidth_gbs(number, True) for number in range(3))
    print(f"GB/s between nodes: {before:.4f}, {meanwhile:.4f}, {after:.4f}")
    assert meanwhile / before == pytest.approx(THROTTLED_MBS / RATE_MBS, rel=0.1)
    assert after / before == pytest.approx(1, rel=0.1)


def test_the_bandwidth_within_nodes_does_not(story: Story) -> None:
    before, meanwhile, after = (story.bandwidth_gbs(number, False) for number in range(3))
    print(f"GB/s within nodes: {before:.4f}, {meanwhile:.4f}, {after:.4f}")
    assert meanwhile / before == pytest.approx(1, rel=0.1)
    assert after / before == pytest.approx(1, rel=0.1)


def test_the_alert_suspects_the_network_and_clears(story: Story) -> None:
    begin, end = story.met + FROM_S, story.met + UNTIL_S
    network = "NcclNetworkSuspect"
    assert network not in story.fired(0, begin)
    assert network in story.fired(begin, end)
    assert network not in story.fired(end + 12, story.met + END_S)
    assert "NcclJobDegraded" not in story.fired(0, end), "the network explains it"
