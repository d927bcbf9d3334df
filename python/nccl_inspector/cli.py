# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector`: parse, call one function, print.

Most commands are imported when they are asked for: a job that runs `mark` in each step must not
wait for what only a report needs.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import click

from nccl_inspector import __version__
from nccl_inspector.config import Config, read_config
from nccl_inspector.errors import InspectorError
from nccl_inspector.killswitch import disable as switch_off
from nccl_inspector.killswitch import enable as switch_on
from nccl_inspector.nodestatus import describe, read_status, render_status

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


def _named(module: str, name: str) -> Callable[[], click.Command]:
    def load() -> click.Command:
        found: click.Command = getattr(import_module(f"nccl_inspector.{module}"), name)
        return found

    return load


def _load_run() -> click.Command:
    from nccl_inspector.reportcommand import report_text
    from nccl_inspector.usermode.command import make_run

    return make_run(report_text)


def _load_show() -> click.Command:
    from nccl_inspector.card.command import show_command
    from nccl_inspector.reportcommand import ask_slurm

    return show_command(ask_slurm)


def _load_mailprog() -> click.Command:
    from nccl_inspector.card.mailprog import mailprog_command
    from nccl_inspector.reportcommand import find_for_mail

    return mailprog_command(find_for_mail)


# The commands that are not in this module, and how to get them.
_ELSEWHERE: dict[str, Callable[[], click.Command]] = {
    "analyze": _named("capture.command", "analyze"),
    "compare": _named("store.command", "compare"),
    "controller": _named("controller.command", "controller"),
    "estimate": _named("estimate.command", "estimate"),
    "history": _named("store.command", "history"),
    "mailprog": _load_mailprog,
    "mark": _named("markcommand", "mark"),
    "nodes": _named("store.command", "nodes"),
    "report": _named("reportcommand", "report"),
    "run": _load_run,
    "setup": _named("monitoring.command", "setup"),
    "show": _load_show,
    "top": _named("live.command", "top"),
}


class _Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if load := _ELSEWHERE.get(cmd_name):
            return load()
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
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


def _end_at_once(status: object) -> None:
    """End the process without freeing what it has, if all that it wrote is written."""
    if status is not None and not isinstance(status, int):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # the interpreter's own end says so
    os._exit(status or 0)


def main() -> None:
    """Run the command; an InspectorError is one line on stderr and exit 1."""
    try:
        cli()
    except InspectorError as err:
        click.echo(f"nccl-inspector: {err}", err=True)
        sys.exit(1)
    except SystemExit as end:
        if not gc.isenabled():  # a report: half a gigabyte of records
            _end_at_once(end.code)
        raise
