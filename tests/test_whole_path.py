"""One number's whole way on a real Slurm: sbatch, profiler, node_exporter, Prometheus, report.

One job of eight ranks with a planted slow one is run once; each test looks at one thing of it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from nccl_inspector.model import FINALIZED, FUNCS
from nccl_inspector.report import Report, build_report, load_summaries
from nccl_inspector.summary import NodeSummary
from tests import jobs, truth
from tests.cluster import JOB_USER, NODES, Cluster, NodeState, Sample, config, wait_until

RANKS = 8
SLOW_RANK = 5
INTERVAL_S = 2
LL_BYTES = 64 << 10  # below it the stand-in plays the protocol LL
IDENTITY = {"cluster", "slurm_job_id", "node", "gpu", "rank", "comm", "comm_name"}
COLLECTIVE = IDENTITY | {
    "version", "slurm_nodelist", "n_nodes", "nranks", "collective", "message_size", "algo_proto",
}  # fmt: skip
P2P = COLLECTIVE - {"collective", "algo_proto"} | {"p2p_operation"}
FAMILIES = {
    "nccl_bus_bandwidth_gbs": COLLECTIVE,
    "nccl_collective_exec_time_microseconds": COLLECTIVE,
    "nccl_collective_operations_total": COLLECTIVE,
    "nccl_collective_bytes_total": COLLECTIVE,
    "nccl_collective_busy_seconds_total": COLLECTIVE,
    "nccl_p2p_bus_bandwidth_gbs": P2P,
    "nccl_p2p_exec_time_microseconds": P2P,
    "nccl_p2p_operations_total": P2P,
    "nccl_p2p_bytes_total": P2P,
    "nccl_p2p_busy_seconds_total": P2P,
    "nccl_collective_inflight_seconds": IDENTITY,
    "nccl_communicator_last_sequence": IDENTITY,
    "nccl_communicator_operations_enqueued_total": IDENTITY,
    "nccl_communicator_operations_started_total": IDENTITY,
    "nccl_communicator_operations_completed_total": IDENTITY,
}
# What Prometheus puts to every series.
SCRAPE = {"__name__", "instance", "job"}

Task = tuple[str, str]  # node, GPU
Kind = tuple[str, str, int]  # communicator's name, function, size class


@dataclass(frozen=True)
class Journey:
    """What was seen of the job while it ran and after its end."""

    job_id: int
    state: str
    tasks: dict[int, Task]  # by rank: where Slurm put it
    live: list[Sample]  # an instant query while it ran
    joined: list[Sample]
    history: list[Sample]
    left: list[Sample]  # an instant query once it was over
    traces: list[str]
    nodes: dict[str, NodeState]
    summaries: dict[str, NodeSummary]
    report: Report
    text: str
    logs: dict[int, dict[Kind, list[truth.Record]]]  # by rank


def tasks_said(text: str) -> dict[int, Task]:
    """Node and physical GPU of every rank, from what the tasks printed of Slurm's variables."""
    found = re.findall(r"^task (\d+) (\w+) (\d+)$", text, re.MULTILINE)
    return {int(rank): (node, f"GPU{minor}") for rank, node, minor in found}


def travel(cluster: Cluster) -> Journey:
    command = jobs.standin(
        cluster, "--steps", "7", "--sizes", "256K,512K", "--slow-rank", f"{SLOW_RANK}:40"
    )
    who = "echo task $SLURM_PROCID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    job_id = jobs.submit(
        cluster, "--nccl-inspector=prom", "-N4", "--ntasks-per-node=2", "--gpus-per-task=1",
        script=f"srun sh -c '{who}; exec {command}'",
    )  # fmt: skip
    selector = f'{{slurm_job_id="{job_id}"}}'
    counter = f'nccl_collective_operations_total{{slurm_job_id="{job_id}"}}'

    def ranks() -> set[str]:
        found = (sample.labels for sample in cluster.query(counter))
        return {labels["rank"] for labels in found if labels["comm_name"] == "standin_world"}

    wait_until(lambda: len(ranks()) == RANKS, 15, "all ranks are in Prometheus", 0.2)
    live = cluster.query(selector)
    info = "on (slurm_job_id, node) group_left (user, partition) nccl_inspector_job_info"
    joined = cluster.query(f"sum by (slurm_job_id, node) ({counter}) * {info}")
    state = jobs.finish(cluster, job_id)
    wait_until(lambda: not cluster.query(selector), 10, "the job's series are stale", 0.1)
    cluster.wait_idle()
    report = build_report(load_summaries(job_id, cluster.layout.reports, None))
    directory = jobs.oplog(cluster, job_id)
    return Journey(
        job_id=job_id,
        state=state,
        tasks=tasks_said(jobs.output(cluster, job_id)),
        live=live,
        joined=joined,
        history=cluster.history(selector, 120),
        left=cluster.query(selector),
        traces=jobs.traces(cluster, job_id),
        nodes=cluster.node_states(),
        summaries=jobs.summaries(cluster, job_id),
        report=report,
        text=cluster.report(job_id).stdout,
        logs={rank: truth.by_kind(truth.read_log(directory, rank)) for rank in range(RANKS)},
    )


@pytest.fixture(scope="module")
def journey(shared_cluster: Cluster) -> Iterator[Journey]:
    # Longer than between two scrapes, so that Prometheus sees every window.
    shared_cluster.set_conf(interval=f"{INTERVAL_S}s")
    try:
        yield travel(shared_cluster)
    finally:
        shared_cluster.reset()


def named(samples: list[Sample], name: str) -> list[Sample]:
    return [sample for sample in samples if sample.labels["__name__"] == name]


# While it ran.


def test_the_job_is_unharmed(journey: Journey) -> None:
    assert journey.state == "COMPLETED"


def test_all_ranks_are_live_in_prometheus(journey: Journey) -> None:
    seen = {
        (labels["rank"], labels["node"], labels["gpu"])
        for labels in (sample.labels for sample in journey.live)
        if labels.get("comm_name") == "standin_world"
    }
    assert seen == {(str(rank), *task) for rank, task in journey.tasks.items()}
    assert len(seen) == len({(node, gpu) for _, node, gpu in seen}) == RANKS


@pytest.mark.parametrize(("name", "labels"), FAMILIES.items(), ids=FAMILIES.keys())
def test_a_family_has_every_label_of_the_design(
    journey: Journey, name: str, labels: set[str]
) -> None:
    found = named(journey.history, name)
    assert {frozenset(sample.labels) for sample in found} == {frozenset(labels | SCRAPE)}
    assert {(sample.labels["node"], sample.labels["gpu"]) for sample in found} == set(
        journey.tasks.values()
    )


def test_a_counters_labels_say_what_is_true(journey: Journey) -> None:
    checked = 0
    for sample in named(journey.history, "nccl_collective_operations_total"):
        own = sample.labels
        comm_name, rank = own["comm_name"], int(own["rank"])
        # World: all; node<i>: those of one node; cross<i>: those with one place in their nodes.
        global_rank = {
            "standin_w": lambda rank, _: rank,
            "standin_n": lambda rank, number: 2 * number + rank,
            "standin_c": lambda rank, number: 2 * rank + number,
        }[comm_name[:9]](rank, int(comm_name[-1]) if comm_name[-1].isdigit() else 0)
        logged = [
            op for ops in journey.logs[global_rank].values() for op in ops
            if op["comm_name"] == comm_name and op["func"] == own["collective"]
            and truth.size_label(truth.size_class(op["bytes"])) == own["message_size"]
        ]  # fmt: skip
        op = logged[0]
        assert own["comm"] == op["comm"]
        assert (rank, own["nranks"], own["n_nodes"]) == (
            op["comm_rank"], str(op["nranks"]), str(op["n_nodes"]),
        )  # fmt: skip
        assert (own["node"], own["gpu"]) == journey.tasks[global_rank]
        assert own["instance"] == own["node"]
        assert own["cluster"] == "sandbox"
        assert own["slurm_job_id"] == str(journey.job_id)
        assert own["slurm_nodelist"] == "n[1-4]"
        assert own["algo_proto"] == ("RING_LL" if op["bytes"] < LL_BYTES else "RING_SIMPLE")
        assert re.fullmatch(r"v7\.[0-9]+", own["version"])
        checked += 1
    assert checked >= RANKS * 3 * 3 * 2


def test_the_jobs_information_joins_every_node(journey: Journey) -> None:
    assert {sample.labels["node"] for sample in journey.joined} == set(NODES)
    for sample in journey.joined:
        assert (sample.labels["user"], sample.labels["partition"]) == (JOB_USER, "gpu")
        assert sample.value > 0


def test_gpu_information_has_the_uuid_of_the_gpu_that_slurm_gave(journey: Journey) -> None:
    found = {
        (own["node"], own["gpu"]): (own["gpu_uuid"], own["pci_bus_id"].lower())
        for own in (sample.labels for sample in named(journey.history, "nccl_gpu_info"))
    }
    assert found == {
        (node, gpu): (config.gpu_uuid(node, int(gpu[3:])), config.gpu_bus_id(int(gpu[3:])))
        for node, gpu in journey.tasks.values()
    }


# Bandwidth truth, live.


def windows(journey: Journey, task: Task) -> list[tuple[float, float]]:
    """Scrape times of each two successive writes of a task's file: counters of the first are
    where the gauges of the second begin."""
    own = [
        sample
        for sample in named(journey.history, "nccl_inspector_last_write_timestamp_seconds")
        if (sample.labels["node"], sample.labels["gpu"]) == task
    ]
    first: dict[float, float] = {}  # by time of writing
    for sample in own:
        first.setdefault(sample.value, sample.time)
    writes = sorted(first.items())
    return [
        (before[1], after[1])
        for before, after in pairwise(writes)
        if after[0] - before[0] < 1.5 * INTERVAL_S  # else a write was not scraped
    ]


def values(journey: Journey, task: Task, name: str) -> dict[float, dict[tuple[str, ...], float]]:
    """By time of the scrape and kind of operation."""
    table: dict[float, dict[tuple[str, ...], float]] = defaultdict(dict)
    for sample in named(journey.history, name):
        own = sample.labels
        if (own["node"], own["gpu"]) == task:
            func = own.get("collective") or own["p2p_operation"]
            table[sample.time][own["comm_name"], func, own["message_size"]] = sample.value
    return table


@pytest.mark.parametrize("family", ["collective", "p2p"])
def test_live_bandwidth_is_within_2_percent_of_the_applications_own_log(
    journey: Journey, family: str
) -> None:
    gauge = "nccl_bus_bandwidth_gbs" if family == "collective" else "nccl_p2p_bus_bandwidth_gbs"
    checked, worst = set(), 0.0
    for rank, task in journey.tasks.items():
        counts = values(journey, task, f"nccl_{family}_operations_total")
        gauges = values(journey, task, gauge)
        logged = {
            (comm, func, truth.size_label(class_)): ops
            for (comm, func, class_), ops in journey.logs[rank].items()
        }
        for before, after in windows(journey, task):
            for kind, count in counts[after].items():
                done = int(counts[before].get(kind, 0))
                ops = logged[kind][done : int(count)]
                assert (kind in gauges[after]) == bool(ops)
                if ops:
                    error = gauges[after][kind] / truth.geometric_gbs(ops) - 1
                    worst = max(worst, abs(error))
                    assert abs(error) < 0.02, (rank, kind, len(ops))
                    checked.add((rank, kind))
    print(f"{len(checked)} kinds of operation, largest error {worst:.2%}")
    # A rank is in three communicators, with two sizes of three collectives, or of Send and Recv.
    assert len(checked) == RANKS * 3 * 2 * (3 if family == "collective" else 2)


@pytest.mark.parametrize("family", ["collective", "p2p"])
def test_live_counters_are_the_applications_own_log(journey: Journey, family: str) -> None:
    checked = 0
    for rank, task in journey.tasks.items():
        table = {
            what: values(journey, task, f"nccl_{family}_{what}_total")
            for what in ("operations", "bytes", "busy_seconds")
        }
        for (comm, func, class_), ops in journey.logs[rank].items():
            kind = comm, func, truth.size_label(class_)
            for time in table["operations"]:
                if kind in table["operations"][time]:
                    done = ops[: int(table["operations"][time][kind])]
                    assert table["bytes"][time][kind] == sum(op["bytes"] for op in done)
                    busy_s = truth.busy_ns(done) / 1e9
                    assert table["busy_seconds"][time][kind] == pytest.approx(busy_s, abs=1e-3)
                    checked += 1
    assert checked


# After its end.


def test_nothing_of_the_job_is_left(journey: Journey) -> None:
    assert journey.traces == []
    assert journey.left == []
    assert all(state.idle for state in journey.nodes.values())


def test_the_summaries_have_every_operation_of_the_log(journey: Journey) -> None:
    seen = set()
    for node, summary in journey.summaries.items():
        for process in summary.processes:
            rank = process.facts.procid
            assert rank is not None
            assert journey.tasks[rank] == (node, process.gpus[0].label)
            assert process.facts.state == FINALIZED
            assert not process.flags
            assert set(process.dropped) == {0}
            names = {comm.index: comm.name for comm in process.comms}
            keys = {(names[k.comm], FUNCS[k.func], k.size_class): k for k in process.keys}
            assert keys.keys() == journey.logs[rank].keys()
            for kind, ops in journey.logs[rank].items():
                key = keys[kind]
                assert (key.ops, key.bytes) == (len(ops), sum(op["bytes"] for op in ops))
                assert key.busy_ns == truth.busy_ns(ops)
            seen.add(rank)
    assert seen == set(range(RANKS))


def test_the_reports_bandwidth_is_within_2_percent_of_the_applications_own_log(
    journey: Journey,
) -> None:
    checked = set()
    for comm in journey.report.communicators:
        for one in comm.figures:
            kind = comm.name, one.func, one.size_class
            mine = [log[kind] for log in journey.logs.values() if kind in log]
            if one.func in truth.P2P:
                mine = [[op for ops in mine for op in ops]]
            # T: the least of the ranks' medians.
            low = min(truth.median_range_ns(ops)[0] for ops in mine)
            high = min(truth.median_range_ns(ops)[1] for ops in mine)
            assert 0.98 * low <= one.time_ns <= 1.02 * high, kind
            bus_bytes = mine[0][0]["bytes"] * truth.factor(one.func, comm.nranks)
            assert 0.98 * bus_bytes / high <= one.bus_gbs <= 1.02 * bus_bytes / low, kind
            checked.add(kind)
    assert checked == {kind for log in journey.logs.values() for kind in log}


def test_the_report_names_the_planted_rank_with_its_node_and_gpu(journey: Journey) -> None:
    node, gpu = journey.tasks[SLOW_RANK]
    assert node == "n3"
    assert f"VERDICT  STRAGGLER: rank {SLOW_RANK} ({node}, {gpu}) came late" in journey.text
    first = journey.report.named[0]
    assert (first.place.procid, first.place.node, first.place.gpu) == (SLOW_RANK, node, gpu)
    assert 30e6 < first.late_ns < 60e6
    assert "MISSING  nothing" in journey.text
