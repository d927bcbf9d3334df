# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector top`."""

from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option, run_dir_option
from nccl_inspector.live.nodeview import NodeView
from nccl_inspector.live.top import INTERVAL_S, PROMETHEUS_INTERVAL_S, Source, TopOptions, run_top
from nccl_inspector.prometheus.node_view import PrometheusView, window_s
from nccl_inspector.settings.config import read_config
from nccl_inspector.slurm.job_argument import optional_job_id


def _window(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not window_s(text):
        raise click.BadParameter("not a time like 90s, 2m or 1h")
    return text


@click.command()
@click.argument("job_id", callback=optional_job_id, required=False)
@conf_option
@run_dir_option
@click.option(
    "--prometheus",
    metavar="URL",
    default="",
    help="Show the jobs of all nodes, by their series in this Prometheus.",
)
@click.option(
    "--window",
    default="2m",
    callback=_window,
    show_default=True,
    help="Time over which Prometheus takes rates.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    help="Seconds between two looks. [default: 2; with Prometheus 10]",
)
@click.option(
    "--once", is_flag=True, help="Print one table, then exit. This is always so without a terminal."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures once, as JSON.")
@click.pass_context
def top(
    context: click.Context,
    job_id: int | None,
    conf: Path | None,
    run_dir: Path | None,
    prometheus: str,
    window: str,
    interval: float | None,
    once: bool,
    as_json: bool,
) -> None:
    """Show what this node's jobs do now, the worst first; with JOB_ID also the job's ranks.

    Users see their own jobs; root sees all jobs. Exit status 1: the job with this ID is not there.
    """
    source: Source
    if prometheus:
        source = PrometheusView(prometheus, job_id, window)
    else:
        source = NodeView(run_dir or read_config(conf).run_dir, job_id)
    usual_s = PROMETHEUS_INTERVAL_S if prometheus else INTERVAL_S
    options = TopOptions(job_id, interval or usual_s, once, as_json)
    context.exit(0 if run_top(source, options) else 1)
