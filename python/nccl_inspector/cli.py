# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector`: parse the command line and call the command.

Commands are imported only when they are used, so that a job that runs `mark` in each step does not
wait for imports that only a report needs.
"""

import gc
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.abc import MetaPathFinder
from types import ModuleType

import click

from nccl_inspector import __version__
from nccl_inspector.errors import InspectorError, MissingExtraError

# By command, in the groups that `--help` shows: its module in `commands/`, and the first sentence
# of its help text, which is here so that `--help` imports no command.
GROUPS = {
    "For users": {
        "analyze": (
            "analyze",
            "Judge a job by the JSON lines below DIRECTORY, ours or NVIDIA's (v4.0 to v4.4).",
        ),
        "compare": (
            "compare",
            "Say what changed from job A to job B, such as the same script yesterday and today.",
        ),
        "explain": (
            "explain",
            "Say what a finding means, how severe it is and what to do; alone, list all.",
        ),
        "flight": (
            "flight",
            "Say who did not come to which operation, by the dumps of PyTorch's flight recorder.",
        ),
        "history": (
            "history",
            "List jobs with their verdicts, the latest first; the tasks of an array are one line.",
        ),
        "logs": (
            "logs",
            "Say what NCCL's log means: the first error, what followed, and how NCCL was set up.",
        ),
        "mark": (
            "mark",
            "Tell the throughput of the job in which this command runs; the last call counts.",
        ),
        "probe": (
            "probe",
            "Measure the bandwidth of this allocation, and name the node or pair that is slow.",
        ),
        "ras": (
            "ras",
            "Ask NCCL's own RAS service about a running job: dead ranks, errors, ranks that "
            "are behind.",
        ),
        "ready": (
            "ready",
            "Say which nodes of this allocation were slow lately, and what was seen there.",
        ),
        "report": ("report", "Judge an ended job: who was slow, since when, why, and what to do."),
        "run": (
            "run",
            "Run COMMAND with the profiler plugin, then print its report to standard error.",
        ),
        "show": (
            "show",
            "Explain the AdminComment of a job, given as job ID, as text, or on standard "
            "input (-).",
        ),
        "trace": (
            "trace",
            "Write the exact records of a job's ranks as a trace for Perfetto or Chrome.",
        ),
        "top": (
            "top",
            "Show what this node's jobs do now, the worst first; with JOB_ID also the job's ranks.",
        ),
    },
    "For administrators": {
        "disable": (
            "kill_switch",
            "Stop measuring on this node, also in running jobs (the kill switch; as root).",
        ),
        "doctor": (
            "doctor",
            "Find out why jobs are not measured on this host, in a job or in an image, and "
            "say what to do.",
        ),
        "enable": ("kill_switch", "Measure on this node again: undo `disable` (as root)."),
        "estimate": (
            "estimate",
            "Estimate what measuring costs: series, scrapes, Prometheus, the nodes' tmpfs.",
        ),
        "nodes": (
            "nodes",
            "List nodes on which jobs were slow again and again, with the evidence.",
        ),
        "setup": ("setup", "Show what a host needs, and set it up with --apply."),
        "status": ("status", "Print whether measuring works on this node."),
    },
    "Services, which systemd or Slurm starts": {
        "agent": (
            "agent",
            "Publish the metrics of this node's jobs and collect ended jobs (a service).",
        ),
        "collect": (
            "collect",
            "Collect this node's ended jobs once, also those without an epilog, if no agent runs.",
        ),
        "controller": (
            "controller",
            "Make and keep the reports of ended jobs, beside slurmctld (a service; never as root).",
        ),
        "mailprog": (
            "mailprog",
            "Send Slurm's mail about a job's end with the job's report, for which it waits "
            "(mail_wait).",
        ),
    },
}
_MODULES = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}
# The extra `report` of pyproject.toml, which most nodes do not have.
_FOR_REPORTS = frozenset({"duckdb", "jinja2", "numpy", "obstore", "psycopg", "sqlalchemy"})


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
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _MODULES.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(import_module(f"nccl_inspector.commands.{module}"), cmd_name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of an unknown one, say what it may be."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as err:
            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not near or "Did you mean" in err.message:
                raise
            raise click.UsageError(f"{err.message} Did you mean '{near[0]}'?", ctx) from err

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - as click calls it
        formatter: click.HelpFormatter,
    ) -> None:
        """Write each group with its commands."""
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])


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
