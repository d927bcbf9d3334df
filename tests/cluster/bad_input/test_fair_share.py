# SPDX-License-Identifier: Apache-2.0
"""One honest job beside fourteen hostile ones of one user, with node_exporter and Prometheus."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from nccl_inspector.agent.publish import NODE_BYTES_MAX
from nccl_inspector.estimate.cost import head_series_max
from tests.sandbox import OTHER_USER, Cluster, Node, prometheus, wait_until
from tests.support.estimated_jobs import SHAPE
from tests.support.hostile_pages import full_box, page_text
from tests.support.sandbox import hostile_program, jobs
from tests.support.sandbox.checks import assert_exporter_is_well, wait_for_ranks
from tests.support.sandbox.small_jobs import ENDLESS

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

# With a GPU of their own, which bounds their series, and without one.
WITH_GPU, WITHOUT_GPU = 6, 8
ATTACK_S = 40
AGENT_S = 5  # as usual
# A scrape each second takes a value that was written up to a second ago and published within the
# agent's interval; a pass beside the enemies takes up to 2 s of CPU time on a node with two cores.
OLDEST_S = 2 * (AGENT_S + 2)
OPERATIONS = "nccl_collective_operations_total"
SIGNAL = "nccl_inspector_job_inflight_seconds"


@dataclass
class Attack:
    """The jobs on n1."""

    cluster: Cluster
    node: Node
    honest: int
    enemies: list[int]


def is_at_work(cluster: Cluster, job_id: int) -> bool:
    return "at work" in jobs.output(cluster, job_id, OTHER_USER)


def start_enemies(cluster: Cluster) -> list[int]:
    home = cluster.home(OTHER_USER)
    program, box, page = (home / name for name in ("enemy.py", "enemy.box", "enemy.prom"))
    program.write_bytes(Path(hostile_program.__file__).read_bytes())
    box.write_bytes(full_box())
    page.write_bytes(page_text(300))
    for path in (program, box, page):
        path.chmod(0o644)
    found = []
    for number in range(WITH_GPU + WITHOUT_GPU):
        gpus, files = (["--gpus=1"], 4) if number < WITH_GPU else ([], 1)
        raw = "/run/nccl-inspector/jobs/$SLURM_JOB_ID/raw"
        found.append(
            jobs.submit(
                cluster, "--nccl-inspector=prom", "--nodelist=n1", "-n1", "--mem=50", *gpus,
                script=f"exec /usr/bin/python3 {program} {raw} {box} {page} {files}",
                user=OTHER_USER,
            )
        )  # fmt: skip
    for job_id in found:
        wait_until(
            partial(is_at_work, cluster, job_id),
            60, f"enemy {job_id} at work", 0.2,
        )  # fmt: skip
    return found


@pytest.fixture(scope="module")
def attack(shared_cluster: Cluster) -> Iterator[Attack]:
    cluster, node = shared_cluster, shared_cluster.node("n1")
    cluster.set_conf(agent_interval=f"{AGENT_S}s")
    node.restart_agent()
    try:
        honest = jobs.submit(
            cluster, "--nccl-inspector=prom", "--nodelist=n1", "--mem=500", "-n2",
            "--gpus-per-task=1", script=f"srun {jobs.standin(cluster, *ENDLESS)}",
        )  # fmt: skip
        wait_for_ranks(node, honest, 2)
        yield Attack(cluster, node, honest, start_enemies(cluster))
    finally:
        cluster.reset()
        node.restart_agent()


def test_the_honest_job_is_in_every_scrape_and_prometheus_head_is_bounded(attack: Attack) -> None:
    cluster, of_job = attack.cluster, f'slurm_job_id="{attack.honest}"'
    end_s = cluster.query("time()")[0].value + ATTACK_S
    wait_until(lambda: cluster.query("time()")[0].value > end_s, ATTACK_S + 30, "attack", 0.5)

    def samples(selector: str) -> list[prometheus.Sample]:
        return prometheus.history(cluster.layout.prometheus_url(), selector, ATTACK_S, end_s)

    of_operations = samples(f"{OPERATIONS}{{{of_job}}}")
    target = of_operations[0].labels["instance"]
    answered = {one.time for one in samples(f'up{{instance="{target}"}}') if one.value == 1}
    assert len(answered) >= 0.9 * ATTACK_S, "node_exporter answers within a second"
    for found in (of_operations, samples(f"{SIGNAL}{{{of_job}}}")):
        counts = Counter(one.time for one in found)
        assert set(counts) == answered
        assert len(set(counts.values())) == 1, "as many series in each scrape"

    written = samples(f"nccl_inspector_last_write_timestamp_seconds{{{of_job}}}")
    assert max(one.time - one.value for one in written) <= OLDEST_S

    stated = head_series_max(replace(SHAPE, ranks=1, gpus_per_node=1))
    for job_id in attack.enemies[:WITH_GPU]:
        every = f'count(last_over_time({{slurm_job_id="{job_id}"}}[10m]))'
        (count,) = cluster.query(every)
        assert 300 < count.value <= stated

    sizes = attack.node.run(["sh", "-c", "cat /run/nccl-inspector/prom/[0-9]*.prom | wc -c"]).stdout
    assert int(sizes) <= NODE_BYTES_MAX
    assert_exporter_is_well(attack.node)
