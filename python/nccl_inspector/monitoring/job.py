# SPDX-License-Identifier: Apache-2.0
"""The dashboard of one job."""

from nccl_inspector.monitoring.expressions import (
    RATE,
    SYNCHRONOUS,
    highest_bandwidth,
    late_ratio,
    mean_seconds,
    of_cluster,
    of_job,
    rate,
    transfer_bandwidth,
    waiting_ratio,
)
from nccl_inspector.monitoring.panels import (
    GBS,
    Dashboard,
    Panel,
    PanelRow,
    Query,
    Variable,
    bars,
    graph,
    listing,
    number,
)
from nccl_inspector.monitoring.site import Site

_COMM = 'comm_name=~"$comm_name"'
_KIND = f'{_COMM}, message_size=~"$message_size"'
# NCCL before 2.27 does not tell it (n_nodes 0). These communicators are only in the row of all
# communicators.
_SCOPES = (("NVLink only", 'n_nodes="1"'), ("Mixed and network", 'n_nodes!~"0|1"'))


def _whose(own: str) -> Panel:
    columns = {
        "user": "User",
        "account": "Account",
        "partition": "Partition",
        "slurm_nodelist": "Node list",
        "Value": "Nodes",
    }
    return listing(
        "Whose it is",
        "What Slurm says of the job, and how many of its nodes publish now.",
        f"count by ({', '.join(list(columns)[:-1])}) (nccl_inspector_job_info{{{own}}})",
        columns,
        width=9,
        height=4,
    )


def _overview(own: str) -> PanelRow:
    wrote = f"nccl_inspector_last_write_timestamp_seconds{{{own}}}"
    dropped = f"nccl_inspector_events_dropped_total{{{own}}}"
    return PanelRow(
        "Job",
        [
            _whose(own),
            number("Processes", "Processes that publish now.", "short", f"count({wrote})", 3),
            number(
                "Waiting",
                "Part of the time in AllReduce, AllGather and ReduceScatter in which ranks waited "
                "for the last rank, for the communicator that waits most.",
                "percentunit",
                f"max({waiting_ratio(own)})",
                3,
            ),
            number(
                "Oldest in flight",
                "Age of the oldest collective that has not completed. If it hangs, the age grows.",
                "s",
                f"max(nccl_collective_inflight_seconds{{{own}}})",
                3,
            ),
            number(
                "Not measured",
                "Events that could not be measured since the processes started.",
                "short",
                f"sum({dropped})",
                3,
            ),
            number(
                "Oldest figures",
                "Time since the process that is furthest behind last wrote its metrics.",
                "s",
                f"time() - min({wrote})",
                3,
            ),
        ],
    )  # fmt: skip


def _collective(own: str) -> PanelRow:
    """Return the row for one collective, which Grafana repeats for each.

    Bandwidth and time are next to each other, by scope.
    """
    base = f'{own}, collective="$collective", {_KIND}'
    panels = []
    for scope, nodes in _SCOPES:
        panels.append(
            graph(
                f"$collective, {scope}: bus bandwidth",
                "Bandwidth of the rank that came last and so did not wait: the transfer alone. "
                "Median over communicators of one name. There is no line while none completed.",
                GBS,
                [Query(transfer_bandwidth(f"{base}, {nodes}"), "{{message_size}} {{comm_name}}")],
                empty="No such communicator, or no times with this NCCL",
            )
        )
    for scope, nodes in _SCOPES:
        by = "comm, comm_name, message_size"
        means = mean_seconds(f"{base}, {nodes}", f"{by}, rank")
        panels.append(
            graph(
                f"$collective, {scope}: time",
                "Solid: time of the rank that did not wait. Dashed: mean over the ranks. The "
                "difference is waiting.",
                "s",
                [
                    Query(
                        f"quantile by (comm_name, message_size) (0.5, min by ({by}) ({means}))",
                        "{{message_size}} {{comm_name}}",
                    ),
                    Query(
                        f"avg by (comm_name, message_size) ({means})",
                        "{{message_size}} {{comm_name}} mean",
                        dashed=True,
                    ),
                ],
            )
        )
    return PanelRow("$collective", panels, repeat="collective")


def _ranks(own: str, site: Site) -> PanelRow:
    node = site["label_node"]
    means = mean_seconds(f"{own}, {SYNCHRONOUS}", "comm, comm_name, rank")
    busy = rate("nccl_collective_busy_seconds_total", f"{own}, {SYNCHRONOUS}")
    return PanelRow(
        "Ranks",
        [
            graph(
                "Spread of the ranks' times",
                "Mean time of a synchronous collective, for the rank with the shortest time "
                "(solid) and the rank with the longest (dashed). The others wait for the rank with "
                "the shortest time.",
                "s",
                [
                    Query(f"min by (comm_name) ({means})", "{{comm_name}} shortest"),
                    Query(f"max by (comm_name) ({means})", "{{comm_name}} longest", dashed=True),
                ],
            ),
            graph(
                "Waiting",
                "Part of the time in synchronous collectives in which ranks waited for the last "
                "rank.",
                "percentunit",
                [Query(waiting_ratio(own), "{{comm_name}}")],
            ),
            graph(
                "Who the others wait for",
                "The five ranks for which their communicators wait most, as part of the wall-clock "
                "time, from 1 % on. The figure is how much later they are than the median rank.",
                "percentunit",
                [
                    Query(
                        f"topk(5, {late_ratio(site, own)} > 0.01)",
                        f"{{{{{node}}}}} {{{{gpu}}}}, rank {{{{rank}}}} of {{{{comm_name}}}}",
                    )
                ],
                empty="Nobody waits for one rank for 1 % of the time",
            ),
            bars(
                "Least time in collectives",
                "The GPUs that spend the smallest part of the wall-clock time in synchronous "
                "collectives. The rank that comes last waits least.",
                "percentunit",
                Query(
                    f"sort(bottomk(8, sum by ({node}, gpu) ({busy})))",
                    f"{{{{{node}}}}} {{{{gpu}}}}",
                ),
            ),
        ],
    )


def _everything(own: str) -> PanelRow:
    bandwidth = highest_bandwidth(own, "collective, comm_name, n_nodes")
    p2p = f"max by (p2p_operation, comm_name) (avg_over_time(nccl_p2p_bus_bandwidth_gbs{{{own}}}"
    moved = rate("nccl_p2p_bytes_total", own)
    return PanelRow(
        "All communicators",
        [
            graph(
                "Collectives: highest bus bandwidth",
                "With waiting. 0 nodes means that the number is not known, as with NCCL before "
                "2.27. Such communicators are in no panel for NVLink or for the network.",
                GBS,
                [Query(bandwidth, "{{collective}} {{comm_name}}, {{n_nodes}} nodes")],
                24,
            ),
            graph(
                "Sends and Recvs: highest bandwidth",
                "With waiting.",
                GBS,
                [Query(f"{p2p}{RATE}))", "{{p2p_operation}} {{comm_name}}")],
                empty="No Sends and Recvs",
            ),
            graph(
                "Sends and Recvs: bytes",
                "Message bytes a second, of all ranks together.",
                "Bps",
                [
                    Query(
                        f"sum by (p2p_operation, comm_name) ({moved})",
                        "{{p2p_operation}} {{comm_name}}",
                    )
                ],
            ),
        ],
    )


def _progress(job: str) -> PanelRow:
    own = f"{job}, {_COMM}"
    done = rate("nccl_communicator_operations_completed_total", own)
    called = rate("nccl_communicator_operations_enqueued_total", own)
    last = f"nccl_communicator_last_progress_timestamp_seconds{{{own}}}"
    age, p2p_age = (f"nccl_{what}_inflight_seconds{{{own}}}" for what in ("collective", "p2p"))
    return PanelRow(
        "Progress",
        [
            graph(
                "Oldest operation in flight",
                "By the communicator's name. A solid line that rises as fast as the clock is a "
                "hang. Dashed: Sends and Recvs; one may be posted long before its partner.",
                "s",
                [
                    Query(f"max by (comm_name) ({age})", "{{comm_name}}"),
                    Query(f"max by (comm_name) ({p2p_age})", "{{comm_name}} P2P", dashed=True),
                ],
                6,
            ),
            graph(
                "Since the latest completion",
                "Time since the latest completion, for the rank of a communicator that is furthest "
                "behind.",
                "s",
                [Query(f"time() - min by (comm_name) ({last})", "{{comm_name}}")],
                6,
            ),
            graph(
                "Operations",
                "Operations that were handed to NCCL and that completed, for all ranks together.",
                "ops",
                [
                    Query(f"sum({called})", "handed to NCCL", dashed=True),
                    Query(f"sum({done})", "completed"),
                ],
                6,
            ),
            graph(
                "Processes",
                "Processes on all nodes that have not ended in order: running, stopped (no sign of "
                "life for 15 s) or lost (died without finalizing).",
                "short",
                [Query(f"sum by (state) (nccl_inspector_job_processes{{{job}}})", "{{state}}")],
                6,
            ),
        ],
    )  # fmt: skip


def _attribution(own: str) -> PanelRow:
    nvlink, network = (
        highest_bandwidth(f"{own}, {_KIND}, {nodes}", "collective") for _, nodes in _SCOPES
    )
    marked = f"nccl_inspector_job_throughput{{{own}}}"
    return PanelRow(
        "Why it is slower",
        [
            graph(
                "The job's own throughput",
                "What the job says of itself: nccl-inspector mark, or its output.",
                "short",
                [Query(f"avg by (unit) ({marked})", "{{unit}}")],
                8,
                "This job tells no throughput (nccl-inspector mark)",
            ),
            graph(
                "Highest bus bandwidth",
                "Of any rank, by collective; dashed between nodes.",
                GBS,
                [
                    Query(nvlink, "{{collective}} in a node"),
                    Query(network, "{{collective}} between nodes", dashed=True),
                ],
                8,
            ),
            graph(
                "Bandwidth and progress against its own past",
                "From the recording rules, after about half an hour of a job. If bandwidth fell on "
                "the network and not within nodes, the network is the cause. If bandwidth is level "
                "and progress fell, the cause is outside NCCL, or a straggler.",
                "percentunit",
                [
                    Query(f"job:nccl_bandwidth:ratio{{{own}}}", "bandwidth, {{scope}}"),
                    Query(f"job:nccl_progress:ratio{{{own}}}", "progress by {{by}}", dashed=True),
                ],
                8,
                "No baseline yet: it takes half an hour of a job",
            ),
        ],
    )  # fmt: skip


def _missing(own: str) -> PanelRow:
    dropped = rate("nccl_inspector_events_dropped_total", own)
    silent = rate("nccl_inspector_silent_seconds_total", own)
    threads = rate("nccl_inspector_self_seconds_total", own)
    calls = rate("nccl_inspector_hot_seconds_total", own)
    return PanelRow(
        "What is not measured, and what measuring costs",
        [
            graph(
                "Events not measured",
                "By reason. packaging/doc/metrics.md says what each reason means.",
                "suffix: events/s",
                [Query(f"sum by (reason) ({dropped})", "{{reason}}")],
                8,
            ),
            graph(
                "Share of operations timed",
                "Solid: for the process with the smallest share; below 1 if timing all would cost "
                "more than the budget. Dashed: part of the time in which a process measured "
                "nothing, because of the kill switch, a denied NCCL, or RCCL.",
                "percentunit",
                [
                    Query(f"min(nccl_inspector_sampling_ratio{{{own}}})", "timed"),
                    Query(f"max({silent})", "silent", dashed=True),
                ],
                8,
            ),
            graph(
                "Cost",
                "CPU time of the plugin's own threads, and its time inside NCCL's calls, for the "
                "process with the most, as part of one core.",
                "percentunit",
                [
                    Query(f"max({threads})", "own threads"),
                    Query(f"max({calls})", "in NCCL's calls"),
                ],
                8,
            ),
        ],
    )  # fmt: skip


def job_dashboard(site: Site) -> Dashboard:
    """Return the dashboard of one job."""
    own, cluster, job = of_job(site), site["label_cluster"], site["label_job"]
    done = f"nccl_collective_operations_total{{{own}}}"
    every = f'{{__name__=~"nccl_(collective|p2p)_operations_total", {own}}}'
    info = "nccl_inspector_job_info"
    return Dashboard(
        "nccl-job",
        "NCCL job",
        "What NCCL did in one Slurm job, and who was slow.",
        [
            Variable("cluster", "Cluster", info, cluster),
            Variable("job", "Job", f"{info}{{{of_cluster(site)}}}", job),
            Variable("comm_name", "Communicator", every, "comm_name", many=True),
            Variable("message_size", "Size", every, "message_size", many=True),
            Variable("collective", "Collective", done, "collective", many=True),
        ],
        [
            _overview(own),
            _collective(own),
            _ranks(f"{own}, {_COMM}", site),
            _everything(f"{own}, {_KIND}"),
            _progress(own),
            _attribution(own),
            _missing(own),
        ],
    )
