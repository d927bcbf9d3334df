"""`nccl-inspector estimate` is within 5 % of what a real job on the sandbox cluster costs."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from nccl_inspector.estimate.cost import Cost, add_up
from nccl_inspector.estimate.shape import Shape
from tests.sandbox import NODES, Cluster, prometheus, wait_until
from tests.sandbox.errors import ClusterError
from tests.support.sandbox import jobs

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

INTERVAL_S = 6
SAMPLED_S = 4  # all of it after the first whole interval
RANKS, GPUS_PER_NODE = 8, 2
COLLECTIVES = "allreduce,allgather,reducescatter"
SMALL = Shape(
    jobs=1, ranks=RANKS, gpus_per_node=GPUS_PER_NODE, ports=0, counters=False,
    comms=3, sizes=1, collectives=3, p2p=0,
    json=False, interval_s=INTERVAL_S, scrape_s=1, job_hours=1, days=1, job_id=1,
    cluster="sandbox", node="n1", comm_name="standin_cross0",
)  # fmt: skip
# Shapes with the stand-in's words for them: Sends and Recvs, and more kinds than have room.
PLAYED = {
    "three communicators": (SMALL, "world,node,cross", COLLECTIVES, "64K"),
    "sends and receives": (
        replace(SMALL, comms=1, sizes=3, p2p=3), "world", f"{COLLECTIVES},sendrecv",
        "64K,128K,256K",
    ),
    "more kinds than series": (
        replace(SMALL, sizes=6), "world,node,cross", COLLECTIVES, "64K,128K,256K,512K,1M,2M",
    ),
}  # fmt: skip
OURS = re.compile(r"(# (HELP|TYPE) )?nccl_|node_textfile_mtime_seconds\{")
EVERY_SERIES = '{__name__=~"nccl_.*|node_textfile_mtime_seconds"}'


def run_until_all_is_published(cluster: Cluster, words: tuple[str, str, str], steps: int) -> int:
    """A job that goes on; every kind of operation has been in a whole interval."""
    comms, ops, sizes = words
    command = jobs.standin(
        cluster, "--comms", comms, "--ops", ops, "--sizes", sizes, "--seconds", "150",
        "--rate", "400", "--compute-ms", "0",
    )  # fmt: skip
    job_id = jobs.submit(
        cluster, "--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1",
        script=f"exec srun {command}",
    )  # fmt: skip
    jobs.wait_for_operations(cluster, job_id, RANKS, steps)
    since = cluster.query("time()")[0].value
    written = f'min(nccl_inspector_last_write_timestamp_seconds{{slurm_job_id="{job_id}"}})'

    def is_whole() -> bool:
        found = cluster.query(written)
        return bool(found) and found[0].value > since + INTERVAL_S

    wait_until(is_whole, 6 * INTERVAL_S, "a whole interval is published", 0.2)
    return job_id


def far(said: float, real: float, what: str) -> list[str]:
    """What there is to say when an estimate is off by more than 5 %."""
    near = abs(said - real) <= 0.05 * real
    return [] if near else [f"{what}: estimated {said:.0f}, it is {real:.0f}"]


def used_bytes(cluster: Cluster, node: str) -> int:
    """What the files below a node's run directory take, on all its file systems."""
    places = ("/run/nccl-inspector", "/run/nccl-inspector/prom", "/run/nccl-inspector/control")
    space = cluster.node(node).run(["df", "-B1", "--output=used", *places])
    return sum(map(int, space.stdout.split()[1:]))


def stored_per_s(cluster: Cluster) -> float:
    """Samples of a scrape that Prometheus has kept, each node being scraped once a second.

    By scrapes and not by seconds: these few may have one scrape less of a node.
    """
    url, at = cluster.layout.prometheus_url(), cluster.query("time()")[0].value
    kept = prometheus.history(url, EVERY_SERIES, SAMPLED_S, at)
    scrapes = prometheus.history(url, 'up{job="nccl-inspector"}', SAMPLED_S, at)
    return len(kept) / len(scrapes) * len(NODES)


def differences(cluster: Cluster, cost: Cost) -> list[str]:
    """In what the estimate is off."""
    # A Prometheus that was ended and started meanwhile still has what it saw before: not of now.
    fresh = f"count(time() - timestamp({EVERY_SERIES}) < {SAMPLED_S})"
    series = cluster.query(fresh)[0].value
    found = far(cost.series, series, "series")
    found += far(cost.samples_per_s, stored_per_s(cluster), "samples a second")
    for node in NODES:
        page = cluster.node(node).metrics()
        own = [line for line in page.splitlines(keepends=True) if OURS.match(line)]
        found += far(cost.node_series, sum(not line.startswith("#") for line in own), "of a node")
        found += far(cost.scrape_bytes, sum(map(len, own)), "bytes a scrape")
        found += far(cost.tmpfs_bytes, used_bytes(cluster, node), "bytes of tmpfs")
    return found


@pytest.fixture
def uncounted(cluster: Cluster) -> Iterator[Cluster]:
    """Agents without counters: the nodes' are not alike, and tests/unit/estimate has them."""
    cluster.set_conf(interval=f"{INTERVAL_S}s", counters="0")
    for node in cluster.nodes.values():
        node.restart_agent()
    try:
        yield cluster
    finally:
        cluster.set_conf()
        for node in cluster.nodes.values():
            node.restart_agent()


@pytest.mark.parametrize("name", PLAYED)
def test_series_bytes_and_tmpfs_are_as_estimated(uncounted: Cluster, name: str) -> None:
    cluster = uncounted
    shape, *words = PLAYED[name]
    cost: Cost = add_up(shape)
    kinds = shape.comms * shape.sizes * (shape.collectives + shape.p2p)
    run_until_all_is_published(cluster, (words[0], words[1], words[2]), kinds)
    wrong: list[str] = []

    def right() -> bool:
        wrong[:] = differences(cluster, cost)
        return not wrong

    # Agents and processes write each at their own time; on a busy machine some are behind.
    with suppress(ClusterError):
        wait_until(right, 4 * INTERVAL_S, "the estimate", 1)
    assert wrong == []
