"""One number's whole way on a real Slurm: sbatch, profiler, node_exporter, Prometheus, report.

A job of eight ranks with a planted slow one is run once (tests/support/sandbox/watched_job.py);
each test looks at one thing of it. That its figures are true is in test_truth.py.
"""

import re

import pytest

from nccl_inspector.model.card import EXIT_CRITICAL, EXIT_WARNING
from tests.sandbox import JOB_USER, NODES, config
from tests.support import application_log
from tests.support.sandbox.checks import assert_nothing_missing
from tests.support.sandbox.watched_job import RANKS, SLOW_RANK, WatchedJob

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


# While it ran.


def test_the_job_is_unharmed(watched_job: WatchedJob) -> None:
    assert watched_job.state == "COMPLETED"


def test_all_ranks_are_live_in_prometheus(watched_job: WatchedJob) -> None:
    seen = {
        (labels["rank"], labels["node"], labels["gpu"])
        for labels in (sample.labels for sample in watched_job.live)
        if labels.get("comm_name") == "standin_world"
    }
    assert seen == {(str(rank), *task) for rank, task in watched_job.tasks.items()}
    assert len(seen) == len({(node, gpu) for _, node, gpu in seen}) == RANKS


@pytest.mark.parametrize(("name", "labels"), FAMILIES.items(), ids=FAMILIES.keys())
def test_a_family_has_every_label_of_the_design(
    watched_job: WatchedJob, name: str, labels: set[str]
) -> None:
    found = watched_job.family(name)
    assert {frozenset(sample.labels) for sample in found} == {frozenset(labels | SCRAPE)}
    assert {(sample.labels["node"], sample.labels["gpu"]) for sample in found} == set(
        watched_job.tasks.values()
    )


def test_a_counters_labels_say_what_is_true(watched_job: WatchedJob) -> None:
    logged = {
        (op["comm_name"], op["comm_rank"], op["func"], application_log.size_label(class_)): op
        for log in watched_job.logs.values()
        for (_, _, class_), ops in log.items()
        for op in ops
    }
    seen = set()
    for sample in watched_job.family("nccl_collective_operations_total"):
        own = sample.labels
        kind = own["comm_name"], int(own["rank"]), own["collective"], own["message_size"]
        if own["algo_proto"] == "GROUP":  # of Sends and Recvs, which the log has one by one
            assert {(*kind[:2], func) for func in ("Send", "Recv")} <= {one[:3] for one in logged}
            continue
        op = logged[kind]
        node, gpu = watched_job.tasks[op["rank"]]
        said = {name: own[name] for name in COLLECTIVE - {"version", "collective", "message_size"}}
        assert said == {
            "cluster": "sandbox",
            "slurm_job_id": str(watched_job.job_id),
            "slurm_nodelist": "n[1-4]",
            "node": node,
            "gpu": gpu,
            "rank": str(op["comm_rank"]),
            "comm": op["comm"],
            "comm_name": op["comm_name"],
            "n_nodes": str(op["n_nodes"]),
            "nranks": str(op["nranks"]),
            "algo_proto": "RING_LL" if op["bytes"] < LL_BYTES else "RING_SIMPLE",
        }
        assert own["instance"] == node
        assert re.fullmatch(r"v7\.[0-9]+", own["version"])
        seen.add(kind)
    assert seen == {kind for kind in logged if kind[2] not in application_log.P2P}


def test_the_jobs_information_joins_every_node(watched_job: WatchedJob) -> None:
    assert {sample.labels["node"] for sample in watched_job.joined} == set(NODES)
    for sample in watched_job.joined:
        assert (sample.labels["user"], sample.labels["partition"]) == (JOB_USER, "gpu")
        assert sample.value > 0


def test_gpu_information_has_the_uuid_of_the_gpu_that_slurm_gave(watched_job: WatchedJob) -> None:
    found = {
        (own["node"], own["gpu"]): (own["gpu_uuid"], own["pci_bus_id"].lower())
        for own in (sample.labels for sample in watched_job.family("nccl_gpu_info"))
    }
    assert found == {
        (node, gpu): (config.gpu_uuid(node, int(gpu[3:])), config.gpu_bus_id(int(gpu[3:])))
        for node, gpu in watched_job.tasks.values()
    }


# After its end.


def test_nothing_of_the_job_is_left(watched_job: WatchedJob) -> None:
    assert watched_job.traces == []
    assert watched_job.left == []
    assert all(state.idle for state in watched_job.nodes.values())


def test_the_report_names_the_planted_rank_with_its_node_and_gpu(watched_job: WatchedJob) -> None:
    node, gpu = watched_job.tasks[SLOW_RANK]
    assert node == "n3"
    text = " ".join(watched_job.text.split())
    verdict = text.partition("VERDICT DEGRADED (straggler), ")[2]
    assert verdict, watched_job.text
    assert verdict.partition(": ")[2].startswith(f"rank {SLOW_RANK} ({node} {gpu}) cost this job ")
    # On an idle machine the job loses three quarters of its time: critical. On one that is so busy
    # that all ranks are slow, the same 50 ms are a smaller share.
    assert watched_job.exit_code in (EXIT_WARNING, EXIT_CRITICAL)
    first = watched_job.card.stragglers[0]
    assert first.flagged
    assert (first.rank, first.node, first.gpu) == (f"rank {SLOW_RANK}", node, gpu)
    assert 30e6 < first.late_ns < 60e6
    assert_nothing_missing(watched_job.text)
