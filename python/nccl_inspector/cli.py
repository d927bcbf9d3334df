# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector`: parse the command line and call the command.

Commands are imported only when they are used, so that a job that runs `mark` in each step does not
wait for imports that only a report needs.
"""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType

import click

from nccl_inspector import __version__
from nccl_inspector.errors import InspectorError, MissingExtraError

# The module in `commands/` for each command, in the groups that `--help` shows.
GROUPS = {
    "For users": {
        "analyze": "analyze",
        "compare": "compare",
        "explain": "explain",
        "flight": "flight",
        "history": "history",
        "logs": "logs",
        "mark": "mark",
        "probe": "probe",
        "ras": "ras",
        "ready": "ready",
        "report": "report",
        "run": "run",
        "show": "show",
        "top": "top",
    },
    "For administrators": {
        "disable": "kill_switch",
        "doctor": "doctor",
        "enable": "kill_switch",
        "estimate": "estimate",
        "nodes": "nodes",
        "setup": "setup",
        "status": "status",
    },
    "Services, which systemd or Slurm starts": {
        "agent": "agent",
        "collect": "collect",
        "controller": "controller",
        "mailprog": "mailprog",
    },
}
_COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}
# The extra `report` of pyproject.toml, which most nodes do not have.
_FOR_REPORTS = frozenset({"duckdb", "jinja2", "numpy", "obstore", "psycopg", "sqlalchemy"})
# Longer than any first sentence: click cuts a summary at this length.
_UNCUT = 1000


class _MissingExtras(MetaPathFinder):
    """Asked for a module when nothing else has found it: says what to install."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> None:
        if fullname in _FOR_REPORTS:
            raise MissingExtraError(
                f"{fullname} is missing on this host: install the package "
                "slurm-nccl-inspector-tools (by pip: slurm-nccl-inspector[report])",
                name=fullname,
            )


class _Commands(click.Group):
    """A group that imports a command only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(import_module(f"nccl_inspector.commands.{module}"), cmd_name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group with its commands; a summary is the first sentence of a help text."""
        for title, names in GROUPS.items():
            rows = [
                (name, command.get_short_help_str(_UNCUT))
                for name in names
                if (command := self.get_command(ctx, name))
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nccl-inspector")
def cli() -> None:
    """What did NCCL do in a Slurm job, and who was slow?"""


def _end_at_once(status: object) -> None:
    """End the process without freeing its memory, if all output has been written."""
    if status is not None and not isinstance(status, int):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # a normal exit reports this error
    os._exit(status or 0)


def main() -> None:
    """Run the command; an InspectorError is printed as one line on stderr, with exit status 1."""
    sys.meta_path.append(_MissingExtras())
    try:
        cli()
    except InspectorError as err:
        click.echo(f"nccl-inspector: {err}", err=True)
        sys.exit(1)
    except SystemExit as end:
        if not gc.isenabled():  # a report: freeing its half a gigabyte of records takes long
            _end_at_once(end.code)
        raise
