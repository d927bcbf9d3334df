"""What Prometheus, the node summaries and the report say is what the application itself logged."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import pytest

from nccl_inspector.model.process import FINALIZED, FUNCS
from tests.support import application_log
from tests.support.sandbox.watched_job import INTERVAL_S, RANKS, Task, WatchedJob

# Together they take longer than `make test` has for one subject.
pytestmark = pytest.mark.long

# Of our own making, from Sends and Recvs of one call: the stand-in logs those one by one.
GROUPS = frozenset({"AlltoAll", "SendRecv"})

Label = tuple[str, str, str]  # communicator's name, function, message size


# Live, in Prometheus.


def windows(watched_job: WatchedJob, task: Task) -> list[tuple[float, float]]:
    """Scrape times of each two successive writes of a task's file: counters of the first are
    where the gauges of the second begin."""
    first: dict[float, float] = {}  # by time of writing
    for sample in watched_job.family("nccl_inspector_last_write_timestamp_seconds"):
        if (sample.labels["node"], sample.labels["gpu"]) == task:
            first.setdefault(sample.value, sample.time)
    writes = sorted(first.items())
    return [
        (before[1], after[1])
        for before, after in pairwise(writes)
        if after[0] - before[0] < 1.5 * INTERVAL_S  # else a write was not scraped
    ]


def values(watched_job: WatchedJob, task: Task, name: str) -> dict[float, dict[Label, float]]:
    """By time of the scrape and kind of operation."""
    table: dict[float, dict[Label, float]] = defaultdict(dict)
    for sample in watched_job.family(name):
        own = sample.labels
        if (own["node"], own["gpu"]) == task:
            func = own.get("collective") or own["p2p_operation"]
            table[sample.time][own["comm_name"], func, own["message_size"]] = sample.value
    return table


@pytest.mark.parametrize("family", ["collective", "p2p"])
def test_live_bandwidth_is_within_2_percent_of_the_applications_own_log(
    watched_job: WatchedJob, family: str
) -> None:
    gauge = "nccl_bus_bandwidth_gbs" if family == "collective" else "nccl_p2p_bus_bandwidth_gbs"
    checked, worst = set(), 0.0
    for rank, task in watched_job.tasks.items():
        counts = values(watched_job, task, f"nccl_{family}_operations_total")
        gauges = values(watched_job, task, gauge)
        logged = {
            (comm, func, application_log.size_label(class_)): ops
            for (comm, func, class_), ops in watched_job.logs[rank].items()
        }
        for before, after in windows(watched_job, task):
            for kind, count in counts[after].items():
                if kind[1] in GROUPS:
                    continue
                done = int(counts[before].get(kind, 0))
                ops = logged[kind][done : int(count)]
                assert (kind in gauges[after]) == bool(ops)
                if ops:
                    error = gauges[after][kind] / application_log.geometric_gbs(ops) - 1
                    worst = max(worst, abs(error))
                    assert abs(error) < 0.02, (rank, kind, len(ops))
                    checked.add((rank, kind))
    print(f"{len(checked)} kinds of operation, largest error {worst:.2%}")
    # A rank is in three communicators, with two sizes of three collectives, or of Send and Recv.
    assert len(checked) == RANKS * 3 * 2 * (3 if family == "collective" else 2)


@pytest.mark.parametrize("family", ["collective", "p2p"])
def test_live_counters_are_the_applications_own_log(watched_job: WatchedJob, family: str) -> None:
    checked = 0
    for rank, task in watched_job.tasks.items():
        table = {
            what: values(watched_job, task, f"nccl_{family}_{what}_total")
            for what in ("operations", "bytes", "busy_seconds")
        }
        for (comm, func, class_), ops in watched_job.logs[rank].items():
            kind = comm, func, application_log.size_label(class_)
            for time in table["operations"]:
                if kind in table["operations"][time]:
                    done = ops[: int(table["operations"][time][kind])]
                    assert table["bytes"][time][kind] == sum(op["bytes"] for op in done)
                    busy_s = application_log.busy_ns(done) / 1e9
                    assert table["busy_seconds"][time][kind] == pytest.approx(busy_s, abs=1e-3)
                    checked += 1
    assert checked


# After the end.


def test_the_summaries_have_every_operation_of_the_log(watched_job: WatchedJob) -> None:
    seen = set()
    for node, summary in watched_job.summaries.items():
        for process in summary.processes:
            rank = process.facts.procid
            assert rank is not None
            assert watched_job.tasks[rank] == (node, process.gpus[0].label)
            assert process.facts.state == FINALIZED
            assert not process.flags
            assert set(process.dropped) == {0}
            names = {comm.index: comm.name for comm in process.comms}
            keys = {
                (names[key.comm], FUNCS[key.func], key.size_class): key
                for key in process.keys
                if FUNCS[key.func] not in GROUPS
            }
            assert keys.keys() == watched_job.logs[rank].keys()
            for kind, ops in watched_job.logs[rank].items():
                key = keys[kind]
                assert (key.ops, key.bytes) == (len(ops), sum(op["bytes"] for op in ops))
                assert key.busy_ns == application_log.busy_ns(ops)
            seen.add(rank)
    assert seen == set(range(RANKS))


def last_times(mine: Sequence[list[application_log.Record]]) -> list[application_log.Record]:
    """Of each operation the record of the rank that came last; `mine` by rank, all operations."""
    return [min(ops, key=application_log.time_ns) for ops in zip(*mine, strict=True)]


def test_the_reports_bandwidth_is_within_2_percent_of_the_applications_own_log(
    watched_job: WatchedJob,
) -> None:
    checked = set()
    comms = {comm.id: comm for comm in watched_job.card.communicators}
    for one in watched_job.card.operations:
        comm = comms[one.communicator]
        kind = comm.name, one.func, one.size_class
        if one.func in GROUPS:
            continue
        mine = [log[kind] for log in watched_job.logs.values() if kind in log]
        if (
            one.func in application_log.P2P
        ):  # which of a Send and its Recv waits is not followed here
            together = [op for ops in mine for op in ops]
            low, high = (
                min(map(application_log.time_ns, together)),
                application_log.median_range_ns(together)[1],
            )
        else:
            low, high = application_log.median_range_ns(last_times(mine))
        assert 0.98 * low <= one.time_ns <= 1.02 * high, kind
        bus_bytes = mine[0][0]["bytes"] * application_log.factor(one.func, comm.nranks)
        assert one.bus_gbs is not None
        assert 0.98 * bus_bytes / high <= one.bus_gbs <= 1.02 * bus_bytes / low, kind
        checked.add(kind)
    assert checked == {kind for log in watched_job.logs.values() for kind in log}
