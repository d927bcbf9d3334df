# SPDX-License-Identifier: Apache-2.0
"""PromQL that several panels share.

Bandwidth and times are never averaged over ranks: only the rank that comes last does not wait, so
only its figures are those of the transfer.
"""

from nccl_inspector.monitoring.site import Site

RATE = "[$__rate_interval]"
# The collectives in which every rank waits for the last one.
SYNCHRONOUS = 'collective=~"AllReduce|AllGather|ReduceScatter"'
# Labels of operations with comparable times: the smaller of two sizes takes less time on each rank.
_KIND = "comm, collective, message_size, algo_proto"


def rate(metric: str, labels: str) -> str:
    """Return the PromQL for the growth of a counter per second."""
    return f"rate({metric}{{{labels}}}{RATE})"


def selector(**labels: str) -> str:
    """Return a selector like `a="x", b=~"y"`.

    A value that begins with ~ or ! gives the operator =~ or !=.
    """
    words = []
    for name, value in labels.items():
        sign = value[0] if value[0] in "~!" else ""
        operator = {"": "=", "~": "=~", "!": "!="}[sign]
        words.append(f'{name}{operator}"{value.removeprefix(sign)}"')
    return ", ".join(words)


def of_cluster(site: Site) -> str:
    """Return the selector of the chosen cluster."""
    return selector(**{site["label_cluster"]: "$cluster"})


def of_job(site: Site) -> str:
    """Return the selector of the chosen job."""
    return f"{of_cluster(site)}, {selector(**{site['label_job']: '$job'})}"


def of_node(site: Site) -> str:
    """Return the selector of the chosen node."""
    return f"{of_cluster(site)}, {selector(**{site['label_node']: '$node'})}"


def transfer_bandwidth(labels: str) -> str:
    """Return the PromQL for the bus bandwidth in GB/s, by communicator name and message size."""
    by = "comm_name, nranks, message_size"
    return (
        f"quantile by ({by}) (0.5, max by ({by}, comm) "
        f"(avg_over_time(nccl_bus_bandwidth_gbs{{{labels}}}{RATE})))"
    )


def mean_seconds(labels: str, by: str) -> str:
    """Return the PromQL for the mean time of a collective; no series if there was no operation."""
    busy, done = "nccl_collective_busy_seconds_total", "nccl_collective_operations_total"
    return f"(sum by ({by}) ({rate(busy, labels)}) / (sum by ({by}) ({rate(done, labels)}) > 0))"


def late_ratio(site: Site, labels: str) -> str:
    """Return the PromQL for the share of the time that a communicator waits for a rank."""
    rank = f"{site['label_node']}, gpu, rank, comm, comm_name"
    busy = rate("nccl_collective_busy_seconds_total", f"{labels}, {SYNCHRONOUS}")
    done = rate("nccl_collective_operations_total", f"{labels}, {SYNCHRONOUS}")
    mean = f"({busy} / ({done} > 0))"
    return (
        f"sum by ({rank}) ((quantile by ({_KIND}) (0.5, {mean}) "
        f"- on ({_KIND}) group_right () {mean}) * {done})"
    )


def highest_bandwidth(labels: str, by: str) -> str:
    """Return the PromQL for the highest bus bandwidth in GB/s, including waiting.

    There is no series while no operation completed.
    """
    return f"max by ({by}) (avg_over_time(nccl_bus_bandwidth_gbs{{{labels}}}{RATE}))"


def waiting_ratio(labels: str) -> str:
    """Return the PromQL for the share of waiting in collectives, by communicator name."""
    every = rate("nccl_collective_busy_seconds_total", f"{labels}, {SYNCHRONOUS}")
    busy = f"({every} > 0)"
    kind = f"comm_name, {_KIND}"
    return (
        f"1 - sum by (comm_name) (min by ({kind}) ({busy}) * count by ({kind}) ({busy})) "
        f"/ sum by (comm_name) ({busy})"
    )
