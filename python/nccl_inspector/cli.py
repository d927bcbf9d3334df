# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector`: parse, call one function, print.

Most commands are imported when they are asked for: a job that runs `mark` in each step must not
wait for what only a report needs.
"""

import gc
import os
import sys
from importlib import import_module

import click

from nccl_inspector import __version__
from nccl_inspector.errors import InspectorError

# Of each command its module in `commands/`.
_COMMANDS = {
    "agent": "agent",
    "analyze": "analyze",
    "collect": "collect",
    "compare": "compare",
    "controller": "controller",
    "disable": "kill_switch",
    "enable": "kill_switch",
    "estimate": "estimate",
    "history": "history",
    "mailprog": "mailprog",
    "mark": "mark",
    "nodes": "nodes",
    "report": "report",
    "run": "run",
    "setup": "setup",
    "show": "show",
    "status": "status",
    "top": "top",
}


class _Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(import_module(f"nccl_inspector.commands.{module}"), cmd_name)
        return found


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nccl-inspector")
def cli() -> None:
    """What did NCCL do in a Slurm job, and who was slow?"""


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
