# SPDX-License-Identifier: Apache-2.0
"""The dashboard of a cluster: the worst jobs, the worst nodes."""

from nccl_inspector.monitoring.expressions import of_cluster, rate, selector
from nccl_inspector.monitoring.panels import (
    Dashboard,
    Panel,
    PanelRow,
    Query,
    Variable,
    graph,
    link_to,
    listing,
    number,
)
from nccl_inspector.monitoring.site import Site

_NODE_LINK = link_to("nccl-node", "node", "Node")
_FIRING = 'ALERTS{alertname=~"Nccl.+", alertstate="firing", %s}'


def _overview(own: str, site: Site) -> PanelRow:
    job, agent = site["label_job"], "nccl_inspector_agent"
    info = f"nccl_inspector_job_info{{{own}}}"
    # These series are made by the scrape itself, and no rule renames their labels.
    scrape = selector(cluster="$cluster", job=site["job_name"])
    wrote = f"nccl_inspector_last_write_timestamp_seconds{{{own}}}"
    return PanelRow(
        "Cluster",
        [
            number("Jobs", "Measured jobs that run now.", "short",
                   f"count(count by ({job}) ({info}))"),
            number("Processes", "Processes that publish now.", "short", f"count({wrote})"),
            number("Agents", "Nodes whose agent publishes.", "short",
                   f"count({agent}_jobs{{{own}}})"),
            number("Switched off", "Nodes on which the kill switch is on.", "short",
                   f"sum({agent}_disabled{{{own}}})"),
            # The scrapes' own count: counting the series themselves would read all of them.
            number("Series", "Series from the scrapes of this cluster, with the agents' own.",
                   "short", f"sum(scrape_samples_post_metric_relabeling{{{scrape}}})"),
            number("Alerts", "Alerts of this bundle that fire now.", "short",
                   f"count({_FIRING % own}) or vector(0)"),
        ],
    )  # fmt: skip


def _worst_jobs(title: str, about: str, expr: str, value: str, unit: str, site: Site) -> Panel:
    """Return a table of jobs with their users; `expr` must give one series for each job."""
    cluster, job = site["label_cluster"], site["label_job"]
    on = f"{cluster}, {job}"
    info = f"nccl_inspector_job_info{{{of_cluster(site)}}}"
    # One series for each job: a heterogeneous job has two partitions, and the match accepts only
    # one series.
    who = f"topk by ({on}) (1, max by ({on}, user, partition) ({info}))"
    columns = {job: "Job", "user": "User", "partition": "Partition", "Value": value}
    return listing(
        title,
        about,
        f"sum by ({job}, user, partition) "
        f"(({expr}) * on ({on}) group_left (user, partition) {who})",
        columns,
        unit=unit,
        link=("Job", link_to("nccl-job", "job", "Job")),
    )


def _jobs(own: str, site: Site) -> PanelRow:
    on = f"{site['label_cluster']}, {site['label_job']}"
    ratio = f"min by ({on}) (job:nccl_bandwidth:ratio{{{own}}})"
    return PanelRow(
        "Worst jobs",
        [
            _worst_jobs(
                "Bandwidth against their own past",
                "The ten jobs whose bandwidth fell most, between or within nodes, from the "
                "recording rules. A job younger than about half an hour has no past yet.",
                f"bottomk(10, {ratio})",
                "Bandwidth",
                "percentunit",
                site,
            ),
            _worst_jobs(
                "Progress against their own past",
                "Throughput that the job marks, or else its operations a second, as part of its "
                "own past.",
                f"bottomk(10, min by ({on}) (job:nccl_progress:ratio{{{own}}}))",
                "Progress",
                "percentunit",
                site,
            ),
            _worst_jobs(
                "Waiting",
                "The ten jobs whose ranks wait for each other most, as part of their time in "
                "synchronous collectives; from the recording rules.",
                f"topk(10, job:nccl_collective_waiting:ratio{{{own}}})",
                "Waiting",
                "percentunit",
                site,
            ),
            _worst_jobs(
                "Oldest operation in flight",
                "The ten jobs with the oldest collective. An age of minutes means a hang or a long "
                "checkpoint.",
                f"topk(10, max by ({on}) (nccl_collective_inflight_seconds{{{own}}}))",
                "Age",
                "s",
                site,
            ),
        ],
    )


def _nodes(own: str, site: Site) -> PanelRow:
    node, job = site["label_node"], site["label_job"]
    late = f"max by ({node}, {job}) (gpu:nccl_collective_late:ratio{{{own}}})"
    agent = "nccl_inspector_agent"
    last = f"{agent}_last_pass_timestamp_seconds{{{own}}}"
    refused = f"increase({agent}_rejected_files_total{{{own}}}[$__range])"
    lost = f"increase({agent}_ranks_lost_total{{{own}}}[$__range])"

    def nodes(title: str, about: str, expr: str, value: str, unit: str) -> Panel:
        columns = {node: "Node", "Value": value}
        return listing(title, about, expr, columns, unit=unit, width=8, link=("Node", _NODE_LINK))

    return PanelRow(
        "Worst nodes",
        [
            nodes(
                "Nodes that jobs wait for",
                "Part of the wall-clock time that jobs wait for the GPU of the node that comes "
                "last, added up over jobs; from the recording rules. If several jobs wait for a "
                "node, the node itself is slow.",
                f"topk(10, sum by ({node}) (clamp_min({late}, 0)))",
                "Waited for",
                "percentunit",
            ),
            nodes(
                "Processes lost, files refused",
                "Processes that died without finalizing, or files that the agent refused, in the "
                "time shown.",
                f"topk(10, sum by ({node}) ({lost} or {refused}))",
                "Number",
                "short",
            ),
            nodes(
                "Agents that are behind",
                "Time since the agent's last pass.",
                f"topk(10, max by ({node}) (time() - {last}))",
                "Age",
                "s",
            ),
        ],
    )


def _traffic(own: str) -> PanelRow:
    data = rate("nccl_collective_bytes_total", own)
    busy = rate("nccl_collective_busy_seconds_total", own)
    return PanelRow(
        "All jobs",
        [
            graph(
                "Bytes of collectives",
                "Message bytes a second of all ranks, as callers count them.",
                "Bps",
                [Query(f"sum by (collective) ({data})", "{{collective}}")],
            ),
            graph(
                "Ranks in collectives",
                "How many ranks are in a collective at a time, on average.",
                "short",
                [Query(f"sum by (collective) ({busy})", "{{collective}}")],
            ),
        ],
    )


def cluster_dashboard(site: Site) -> Dashboard:
    """Return the dashboard of a cluster."""
    own = of_cluster(site)
    return Dashboard(
        "nccl-cluster",
        "NCCL cluster",
        "The worst jobs and the worst nodes of a cluster.",
        [Variable("cluster", "Cluster", "nccl_inspector_agent_jobs", site["label_cluster"])],
        [_overview(own, site), _jobs(own, site), _nodes(own, site), _traffic(own)],
    )
