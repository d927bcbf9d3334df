# SPDX-License-Identifier: Apache-2.0
"""Add up the files of a node: on the node, for all nodes, and in a Prometheus."""

from dataclasses import dataclass
from math import ceil

from nccl_inspector.agent.admission import LEFT_OUT
from nccl_inspector.agent.publish import NODE_BYTES_MAX
from nccl_inspector.agent.series_budget import FORGET_S, series_limit
from nccl_inspector.agent.signals import STATES
from nccl_inspector.box.layout import (
    COMM,
    HIST,
    KEY,
    LABEL,
    LINE,
    NET,
    OP,
    PEER,
    SAMPLE,
    SAMPLE_KIND,
    SKEW,
    UNION,
)
from nccl_inspector.box.sample_table import samples_of_each
from nccl_inspector.estimate.pages import MTIME_SERIES, Files, make_files
from nccl_inspector.estimate.shape import LIVE_COMMS_MAX, Shape
from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.exposition.text import SeriesLine
from nccl_inspector.marking import UNITS
from nccl_inspector.summary.codec import BLOCK_BYTES_MAX
from nccl_inspector.summary.fit_tables import SAMPLE_FACTS_BYTES_MAX, UNIONS_BYTES_MAX, samples_room

# From plugin/box/box.h: the size of the header, and the number of records in each table.
HEADER_BYTES = 4096
BOX_ROWS = {
    "COMMS": 160, "KEYS": 256, "OPS": 4096, "PEERS": 1024, "LINES": 8, "NETS": 256,
    "SAMPLES": 32768, "SAMPLE_KINDS": 256, "UNIONS": 8, "LIVE_COMMS": LIVE_COMMS_MAX,
    "LABELS": 64,
}  # fmt: skip
# From plugin/prom/file.c: the step of the space for a process's file; each file has it twice.
ROOM_STEP_BYTES = 16384
_RECORDS = {
    "COMMS": COMM, "KEYS": KEY, "OPS": OP, "PEERS": PEER, "LINES": LINE, "NETS": NET,
    "SAMPLES": SAMPLE, "SAMPLE_KINDS": SAMPLE_KIND, "UNIONS": UNION, "LIVE_COMMS": SKEW,
    "LABELS": LABEL,
}  # fmt: skip

_PAGE_BYTES = 4096  # of tmpfs; a file uses whole pages

# Resident bytes of Prometheus 3.5.3 for each series that it appends to, after 130 samples (2.42.0:
# 6,800), and heap for each series that ended but is still in the head (2.42.0: 1,700). Measured
# with two short labels; a node list of 200 bytes on every series adds 700.
ACTIVE_BYTES, ACTIVE_BYTES_2_42 = 4700, 6800
ENDED_BYTES, ENDED_BYTES_2_42 = 1300, 1700
HOST_BYTES = 64e9  # memory of a usual host for Prometheus
HEAD_SHARE = 0.5  # of a host's memory; the rest is for queries and the files' cache
NODELIST_BYTES = 700 / 200  # for each byte of the node list
HEAD_HOURS = 3.0  # how long an ended series stays in the head
# CPU time that a Prometheus 2.42 takes to evaluate all rules once, for each kind of operation of a
# rank: some 3 s for 100 nodes with 256 of them each. The rules of a group follow each other, so
# more cores do not help. A shard takes 1.4 times as long (tests/bench/rules.py compares).
RULE_S, SHARD_RULE_S = 100e-6, 140e-6
RULES_INTERVAL_S = 60.0  # how often: the default of record_interval
RULES_SHARE = 0.5  # of that time; then there is room for panels, and for a slower host
# Measured bytes on disk of a sample, by the kind of number. _SAME: an unchanged value. The index is
# not included.
_SAME = 0.46
_SAMPLE_BYTES = (
    ("_timestamp_seconds", 7.0),  # decimal fractions
    ("_gbs", 2.0),
    ("_microseconds", 2.1),
    ("_seconds_total", 3.3),
    ("_operations_total", 2.5),
    ("_bytes_total", 2.5),
    ("_sequence", 2.5),
    ("_enqueued_total", 2.5),
    ("_started_total", 2.5),
    ("_completed_total", 2.5),
)


def _servers(by_memory: float, kinds: int) -> int:
    """Return how many servers are needed, by their memory and by the time for their rules."""
    most_s = RULES_SHARE * RULES_INTERVAL_S
    if by_memory <= 1 and kinds * RULE_S <= most_s:
        return 1
    return max(ceil(by_memory), ceil(kinds * SHARD_RULE_S / most_s), 2)


@dataclass(frozen=True, slots=True)
class Cost:
    """Series, bytes and rates. Figures of a node are of one that is full of a job's processes."""

    process_series: int
    kinds: int
    kinds_shown: int
    node_series: int
    scrape_bytes: int  # of a node, before HTTP compresses it
    series: int
    samples_per_s: float
    all_scrape_bytes: int
    memory_bytes: float  # of a Prometheus
    host_bytes: float  # memory of a host for Prometheus
    host_nodes: int  # whose series take HEAD_SHARE of it with Prometheus 2.42
    rules_s: float  # to evaluate all rules once on one server, each RULES_INTERVAL_S
    rules_nodes: int  # whose rules take RULES_SHARE of that time
    hosts: int  # that are needed for all nodes, by both
    disk_bytes_per_day: float
    box_bytes: int
    tmpfs_bytes: int  # of a node
    tmpfs_inodes: int
    agent_read_bytes: int  # each interval
    agent_write_bytes: int
    report_bytes: int  # of a job, the most possible
    head_series_max: int  # of a job, in a Prometheus' head at one time
    life_series_max: int  # of a job, in its whole life
    page_bytes_max: int  # published by a node for its jobs


def box_bytes() -> int:
    """Return the size of a box in bytes."""
    tables = sum(count * _RECORDS[name].size for name, count in BOX_ROWS.items())
    return _pages(HEADER_BYTES + tables + BOX_ROWS["KEYS"] * HIST.size)


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES


def _room(size_bytes: int) -> int:
    """Return the space in bytes that the plugin reserves for a process's file.

    It can be a little less in reality, if the text was shorter when the space was reserved.
    """
    return -(-(size_bytes + size_bytes // 4) // ROOM_STEP_BYTES) * ROOM_STEP_BYTES


def _sample_bytes(name: str) -> float:
    return next((size for end, size in _SAMPLE_BYTES if name.endswith(end)), _SAME)


def _disk_bytes(series: tuple[SeriesLine, ...], shape: Shape) -> float:
    """Return the bytes on disk for one scrape of these series; unchanged values need little."""
    fresh = min(1.0, shape.scrape_s / shape.interval_s)
    return sum(fresh * _sample_bytes(one.metric.name) + (1 - fresh) * _SAME for one in series)


def _report_bytes(ranks: int) -> int:
    """Return the largest size of a job's summaries, without what each node has only once."""
    samples = SAMPLE_FACTS_BYTES_MAX + samples_room(samples_of_each(ranks)) + UNIONS_BYTES_MAX
    return ranks * (BLOCK_BYTES_MAX + samples)


def _agents_series_max() -> int:
    """Return how many series of a job the agent itself makes on each of its nodes."""
    groups = [metric.group for metric in load_metrics().values()]
    counts = {"job_info": 1, "job": 1, "job_state": len(STATES), "job_reason": len(LEFT_OUT),
              "job_unit": len(UNITS)}  # fmt: skip
    mtime = 1  # node_exporter's series for the job's file
    return mtime + sum(groups.count(group) * count for group, count in counts.items())


def head_series_max(shape: Shape) -> int:
    """Return the most series that a job can have in a Prometheus' head, on all its nodes.

    A series of a process counts until the agent has not seen it for seriesbudget.FORGET_S. That is
    longer than a Prometheus keeps it in its head.
    """
    full, rest = divmod(shape.ranks, shape.gpus_per_node)
    found = full * (series_limit(shape.gpus_per_node) + _agents_series_max())
    return found + (series_limit(rest) + _agents_series_max() if rest else 0)


def _tmpfs(files: Files, here: int) -> tuple[int, int]:
    """Return the bytes and inodes of a node's files."""
    process = _pages(box_bytes()) + 2 * _room(len(files.raw))
    own = _pages(len(files.published)) + _pages(len(files.agent)) + _PAGE_BYTES  # + the manifest
    # The job's directory and raw/ use inodes, but no pages.
    return here * process + own, 3 * here + 5


def add_up(shape: Shape, host_bytes: float = HOST_BYTES) -> Cost:
    """Return what measuring these jobs costs.

    `host_bytes`: memory of a host for Prometheus.
    """
    files = make_files(shape)
    here = min(shape.ranks, shape.gpus_per_node)
    # The last node of a job may have fewer processes.
    full, rest = divmod(shape.ranks, shape.gpus_per_node)
    processes = full * shape.shown(here) + shape.shown(rest)
    a_node = len(files.series) - shape.shown(here) * shape.process_series + MTIME_SERIES
    series = shape.jobs * (processes * shape.process_series + shape.nodes * a_node)
    node_series = len(files.series) + MTIME_SERIES
    share = series / node_series  # as a number of full nodes
    job_info = next(one.text for one in files.series if one.metric.group == "job_info")
    nodelist = job_info.partition('slurm_nodelist="')[2].partition('"')[0]
    with_nodelist = sum("slurm_nodelist" in one.metric.labels for one in files.series)
    a_series = ACTIVE_BYTES + NODELIST_BYTES * len(nodelist) * with_nodelist / len(files.series)
    ended = series * HEAD_HOURS / shape.job_hours
    memory_bytes = series * a_series + ended * ENDED_BYTES
    more = ACTIVE_BYTES_2_42 - ACTIVE_BYTES
    memory_2_42 = series * (a_series + more) + ended * ENDED_BYTES_2_42
    hosts = memory_2_42 / (HEAD_SHARE * host_bytes)
    kinds = shape.jobs * processes * shape.kinds_shown
    nodes = shape.jobs * shape.nodes
    tmpfs_bytes, tmpfs_inodes = _tmpfs(files, here)
    return Cost(
        process_series=shape.process_series,
        kinds=shape.kinds,
        kinds_shown=shape.kinds_shown,
        node_series=node_series,
        scrape_bytes=len(files.page),
        series=series,
        samples_per_s=series / shape.scrape_s,
        all_scrape_bytes=round(share * len(files.page)),
        memory_bytes=memory_bytes,
        host_bytes=host_bytes,
        host_nodes=int(nodes / hosts),
        rules_s=kinds * RULE_S,
        rules_nodes=int(nodes * RULES_SHARE * RULES_INTERVAL_S / max(kinds * RULE_S, 1e-9)),
        hosts=_servers(hosts, kinds),
        disk_bytes_per_day=share * _disk_bytes(files.series, shape) * 86400 / shape.scrape_s,
        box_bytes=box_bytes(),
        tmpfs_bytes=tmpfs_bytes,
        tmpfs_inodes=tmpfs_inodes,
        agent_read_bytes=here * len(files.raw),
        agent_write_bytes=len(files.published),
        report_bytes=_report_bytes(shape.ranks),
        head_series_max=head_series_max(shape),
        life_series_max=head_series_max(shape) * (1 + int(shape.job_hours * 3600 // FORGET_S)),
        page_bytes_max=NODE_BYTES_MAX,
    )
