# SPDX-License-Identifier: Apache-2.0
"""The dashboard of one node."""

from nccl_inspector.monitoring.expressions import highest_bandwidth, of_cluster, of_node, rate
from nccl_inspector.monitoring.panels import (
    GBS,
    Dashboard,
    PanelRow,
    Query,
    Variable,
    graph,
    link_to,
    listing,
    number,
)
from nccl_inspector.monitoring.site import Site


def _overview(own: str, site: Site) -> PanelRow:
    job = site["label_job"]
    agent = "nccl_inspector_agent"
    columns = {job: "Job", "user": "User", "account": "Account", "partition": "Partition"}
    return PanelRow(
        "Node",
        [
            listing(
                "Jobs",
                "Measured jobs that run on this node now.",
                f"count by ({', '.join(columns)}) (nccl_inspector_job_info{{{own}}})",
                columns,
                width=9,
                height=4,
                link=("Job", link_to("nccl-job", "job", "Job")),
            ),
            number("Last pass", "Time since the agent's last pass.", "s",
                   f"max(time() - {agent}_last_pass_timestamp_seconds{{{own}}})", 3),
            number("To collect", "Ended jobs whose measurements are not collected yet.",
                   "short", f"max({agent}_ended_jobs_waiting{{{own}}})", 3),
            number("Processes lost", "Died without finalizing since the agent started.",
                   "short", f"max({agent}_ranks_lost_total{{{own}}})", 3),
            number("Files refused", "Files refused since the agent started.", "short",
                   f"sum({agent}_rejected_files_total{{{own}}}) or vector(0)", 3),
            number("Switched off", "1 while the kill switch keeps jobs from being measured.",
                   "short", f"max({agent}_disabled{{{own}}})", 3),
        ],
    )  # fmt: skip


def _gpus(own: str, site: Site) -> PanelRow:
    job = site["label_job"]
    of_gpu, name = f"{job}, gpu", f"{{{{gpu}}}}, job {{{{{job}}}}}"

    def total(metric: str) -> Query:
        return Query(f"sum by ({of_gpu}) ({rate(metric, own)})", name)

    def highest(series: str) -> Query:
        return Query(f"max by ({of_gpu}) ({series}{{{own}}})", name)

    return PanelRow(
        "GPUs",
        [
            graph(
                "Bus bandwidth",
                "Highest bus bandwidth of a GPU's collectives. Waiting for late ranks is included.",
                GBS,
                [Query(highest_bandwidth(own, of_gpu), name)],
            ),
            graph(
                "Time in collectives",
                "Part of the wall-clock time. Collectives at the same time add up.", "percentunit",
                [total("nccl_collective_busy_seconds_total")],
            ),
            graph(
                "How long the others wait for it",
                "Part of the wall-clock time, over all communicators, as in the alert about a "
                "straggler; from the recording rules. Below zero: the GPU waits for others.",
                "percentunit",
                [highest("gpu:nccl_collective_late:ratio")],
            ),
            graph(
                "Oldest operation in flight",
                "Age of the oldest collective of all communicators of a GPU.",
                "s",
                [highest("nccl_collective_inflight_seconds")],
            ),
            graph(
                "Bytes of collectives",
                "Message bytes a second, as the caller counts them.",
                "Bps",
                [total("nccl_collective_bytes_total")],
            ),
            graph(
                "Bytes of Sends and Recvs",
                "Message bytes a second.",
                "Bps",
                [total("nccl_p2p_bytes_total")],
            ),
        ],
    )  # fmt: skip


def _agent(own: str, site: Site) -> PanelRow:
    job = site["label_job"]
    pass_s = f"nccl_inspector_agent_pass_seconds{{{own}}}"
    refused = rate("nccl_inspector_agent_rejected_files_total", own)
    none = f'label_replace(0 * {pass_s}, "reason", "none", "", "")'
    cost = rate("nccl_inspector_self_seconds_total", own)
    series = f'count by ({job}) ({{__name__=~"nccl_.+", {job}!="", {own}}})'
    return PanelRow(
        "Measuring",
        [
            graph("Duration of the agent's pass", "Time to publish and collect.", "s",
                  [Query(f"max({pass_s})", "pass")], 6),
            graph(
                "Files refused",
                "Files of jobs that the agent refused, by reason.",
                "suffix: files/s",
                [Query(f"sum by (reason) ({refused} or {none})", "{{reason}}")],
                6,
            ),
            graph("Series", "Series of this node in Prometheus, by job.", "short",
                  [Query(series, f"job {{{{{job}}}}}")], 6),
            graph("CPU time of the plugin's threads", "Part of one core, for each job.",
                  "percentunit", [Query(f"sum by ({job}) ({cost})", f"job {{{{{job}}}}}")], 6),
        ],
    )  # fmt: skip


def node_dashboard(site: Site) -> Dashboard:
    """Return the dashboard of one node."""
    own, jobs = of_node(site), "nccl_inspector_agent_jobs"
    return Dashboard(
        "nccl-node",
        "NCCL node",
        "What the jobs of one node do in NCCL, and whether the node agent is well.",
        [
            Variable("cluster", "Cluster", jobs, site["label_cluster"]),
            Variable("node", "Node", f"{jobs}{{{of_cluster(site)}}}", site["label_node"]),
        ],
        [_overview(own, site), _gpus(own, site), _agent(own, site)],
    )
