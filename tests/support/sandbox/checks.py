# SPDX-License-Identifier: Apache-2.0
"""What is measured of jobs on the cluster, and what must hold of its nodes."""

import errno
import os
import re
from collections import Counter

from nccl_inspector.agent.counters.xid import KMSG
from tests.sandbox import Cluster, Node, wait_until
from tests.support import exposition
from tests.support.sandbox import jobs
from tests.support.sandbox.small_jobs import SMALL, run


def operations(cluster: Cluster, job_id: int) -> dict[int, Counter[str]]:
    """Operations by rank and communicator, as the node summaries have them."""
    table = {}
    for summary in jobs.summaries(cluster, job_id).values():
        for process in summary.processes:
            names = {comm.index: comm.name for comm in process.comms}
            assert process.facts.procid is not None
            counts = table[process.facts.procid] = Counter[str]()
            for key in process.keys:
                counts[names[key.comm]] += key.ops
    return table


def states(cluster: Cluster, job_id: int) -> list[str]:
    """How the processes of the job ended, as the node summaries have it."""
    return [
        process.facts.state
        for summary in jobs.summaries(cluster, job_id).values()
        for process in summary.processes
    ]


# A container has no kernel log. Then each node says so, which is true.
_NO_KERNEL_LOG = re.compile(rf"n[1-9]: no XIDs: {KMSG}: {os.strerror(errno.ENOENT)} ?")


def assert_nothing_missing(report: str) -> None:
    """The report lacks nothing that this machine can give."""
    _, _, missing = " ".join(report.split()).partition("MISSING ")
    rest, nodes = _NO_KERNEL_LOG.subn("", missing)
    assert missing == "nothing" or (nodes and not rest and not KMSG.exists()), report


def assert_next_job_is_measured(cluster: Cluster) -> None:
    """The node is as good as before."""
    job_id, state = run(cluster, *SMALL)
    assert state == "COMPLETED"
    assert jobs.summaries(cluster, job_id).keys() == {"n1"}
    assert_nothing_missing(jobs.report(cluster, job_id))


def series(node: Node, job_id: int) -> list[exposition.Series]:
    """The job's series in node_exporter's answer."""
    found = exposition.read_prom(node.metrics())
    return [one for one in found if one.labels.get("slurm_job_id") == str(job_id)]


def ranks(node: Node, job_id: int) -> set[tuple[str, str]]:
    """Rank and GPU of every series of the job that has operations."""
    name = "nccl_collective_operations_total"
    found = (one.labels for one in series(node, job_id) if one.name == name)
    return {(labels["rank"], labels["gpu"]) for labels in found}


def wait_for_ranks(node: Node, job_id: int, count: int) -> None:
    wait_until(lambda: len(ranks(node, job_id)) == count, 15, f"series of {count} ranks", 0.1)


# A file that goes between node_exporter's look at the directory and its look at the file, with its
# job or with the agent: it says so, and goes on with the next one.
GONE = re.compile(
    r"level=error .*/prom/(?:[0-9]+|nccl_inspector_agent)\.prom: no such file or directory"
)


def assert_exporter_is_well(node: Node) -> None:
    text = node.metrics()
    assert "node_textfile_scrape_error 0\n" in text
    errors = [
        one
        for one in exposition.read_prom(text)
        if one.name == "promhttp_metric_handler_errors_total"
    ]
    assert {one.labels["cause"] for one in errors} >= {"gathering", "encoding"}
    assert all(one.value == 0 for one in errors)
    log = node.exporter_log().splitlines()
    assert not [
        one for one in log if re.search("level=error|error gathering", one) and not GONE.search(one)
    ]


def assert_measured(cluster: Cluster, job_id: int) -> None:
    """Both ranks on n1 are in its report, which is a text that a terminal may show."""
    (summary,) = jobs.summaries(cluster, job_id).values()
    assert {process.facts.procid for process in summary.processes} == {0, 1}
    report = cluster.report(job_id)
    assert report.stderr == ""
    assert_nothing_missing(report.stdout)
    assert all(line.isprintable() for line in report.stdout.splitlines())


def raw_files(cluster: Cluster, job_id: int, ending: str) -> list[str]:
    """Names of the job's files on n1 that end so."""
    listing = cluster.node("n1").run_dir_listing()
    return [
        path.rpartition("/")[2]
        for path in listing
        if path.startswith(f"jobs/{job_id}/raw/nccl_") and path.endswith(ending)
    ]
