# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector`: parse, call one function, print.

The agent is imported where it is run: it takes longer to import than most commands take.
"""

import logging
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from nccl_inspector import __version__
from nccl_inspector.capture.command import analyze
from nccl_inspector.card.command import show_command
from nccl_inspector.card.mailprog import mailprog_command
from nccl_inspector.config import Config, read_config
from nccl_inspector.controller.command import controller
from nccl_inspector.errors import InspectorError
from nccl_inspector.estimate.command import estimate
from nccl_inspector.jobargument import optional_job_id
from nccl_inspector.killswitch import disable as switch_off
from nccl_inspector.killswitch import enable as switch_on
from nccl_inspector.live.promview import window_s
from nccl_inspector.live.top import Wish, run_top
from nccl_inspector.marking import UNITS, MarkError, check_mark, mark_dir, write_mark
from nccl_inspector.monitoring.command import setup
from nccl_inspector.nodestatus import describe, read_status, render_status
from nccl_inspector.reportcommand import ask_slurm, find_for_mail, report, report_text
from nccl_inspector.store.command import compare, history, nodes
from nccl_inspector.usermode.command import make_run

_path = click.Path(path_type=Path)
_conf = click.option("--conf", type=_path, help="Configuration file in place of the usual one.")
_run_dir = click.option("--run-dir", type=_path, help="In place of the setting run_dir.")
_report_dir = click.option("--report-dir", type=_path, help="In place of the setting report_dir.")


def _config(conf: Path | None, run_dir: Path | None, report_dir: Path | None) -> Config:
    config = read_config(conf)
    return replace(
        config,
        run_dir=run_dir or config.run_dir,
        report_dir=report_dir or config.report_dir,
    )


def _window(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not window_s(text):
        raise click.BadParameter("not a time like 90s, 2m or 1h")
    return text


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nccl-inspector")
def cli() -> None:
    """What did NCCL do in a Slurm job, and who was slow?"""


@cli.command()
@_conf
@_run_dir
@_report_dir
@click.option("--once", is_flag=True, help="One pass, for a look or a test.")
def agent(conf: Path | None, run_dir: Path | None, report_dir: Path | None, once: bool) -> None:
    """Publish the metrics of this node's jobs and collect the ended ones (a service)."""
    from nccl_inspector.agent import run_agent

    logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO)
    reread = partial(_config, conf, run_dir, report_dir)
    run_agent(reread(), once, reread)


@cli.command()
@_conf
@_run_dir
@_report_dir
def collect(conf: Path | None, run_dir: Path | None, report_dir: Path | None) -> None:
    """Collect this node's ended jobs once, and those without an epilog, where no agent runs.

    Exit status 1: some are left that were due.
    """
    from nccl_inspector.agent import run_collect

    logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO)
    left = run_collect(_config(conf, run_dir, report_dir))
    if left.overdue:
        raise InspectorError(
            f"{left.overdue} ended jobs are left: {left.failed} could not be handed over, "
            f"{left.untried} not in the time there was"
        )


@cli.command()
@_conf
@_run_dir
@click.option("--reason", default="", help="For those who look at the node later; one line.")
def disable(conf: Path | None, run_dir: Path | None, reason: str) -> None:
    """Measure no job on this node: the kill switch, for root."""
    state = switch_off(_config(conf, run_dir, None).run_dir, reason)
    click.echo(describe(state))


@cli.command()
@_conf
@_run_dir
def enable(conf: Path | None, run_dir: Path | None) -> None:
    """Undo `disable`."""
    switch_on(_config(conf, run_dir, None).run_dir)
    click.echo(describe(None))


@cli.command()
@_conf
@_run_dir
@click.pass_context
def status(context: click.Context, conf: Path | None, run_dir: Path | None) -> None:
    """Say how this node fares; exit status 0: enabled and well, 3: disabled, 4: not well."""
    config = _config(conf, run_dir, None)
    found = read_status(config.run_dir, config.agent_interval_s)
    click.echo(render_status(found), nl=False)
    context.exit(found.exit_code)


@cli.command("mark")
@_conf
@click.option("--throughput", default="", help="A number that is not negative.")
@click.option("--unit", default="TFLOP/s/GPU", show_default=True, help=", ".join(UNITS) + ".")
@click.pass_context
def mark_command(context: click.Context, conf: Path | None, throughput: str, unit: str) -> None:
    """Tell this job's throughput, from inside it; the last one counts.

    Exit status 2: it is no throughput.
    """
    try:
        number = check_mark(float(throughput), unit)
    except ValueError as err:
        words = str(err) if isinstance(err, MarkError) else "the throughput is not a number"
        click.echo(f"nccl-inspector: {words}", err=True)
        context.exit(2)
    try:
        write_mark(number, unit, mark_dir(os.environ, str(read_config(conf).run_dir)))
    except (MarkError, OSError) as err:
        raise InspectorError(f"not marked: {err}") from err


@cli.command()
@click.argument("job_id", callback=optional_job_id, required=False)
@_conf
@_run_dir
@click.option(
    "--prometheus", metavar="URL", default="", help="Of the cluster's jobs, by its series."
)
@click.option("--window", default="2m", callback=_window, help="What Prometheus takes rates over.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    help="Seconds between two looks: 2 at boxes, 10 with Prometheus.",
)
@click.option("--once", is_flag=True, help="One table; without a terminal always so.")
@click.option("--json", "as_json", is_flag=True, help="The figures, once.")
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
    """Show what this node's jobs do now, the worst first; with JOB_ID its ranks, too.

    A user sees his own jobs, root all. Exit status 1: the job asked for is not there.
    """
    config = _config(conf, run_dir, None)
    wish = Wish(config.run_dir, job_id, prometheus, window, interval, once, as_json)
    context.exit(0 if run_top(wish) else 1)


cli.add_command(analyze)
cli.add_command(compare)
cli.add_command(controller)
cli.add_command(estimate)
cli.add_command(history)
cli.add_command(nodes)
cli.add_command(report)
cli.add_command(setup)
cli.add_command(make_run(report_text))
cli.add_command(show_command(ask_slurm))
cli.add_command(mailprog_command(find_for_mail))


def main() -> None:
    """Run the command; an InspectorError is one line on stderr and exit 1."""
    try:
        cli()
    except InspectorError as err:
        click.echo(f"nccl-inspector: {err}", err=True)
        sys.exit(1)
