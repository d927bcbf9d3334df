# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector flight`.

It imports modules only when it needs them, because the agent starts through the same cli.py.
"""

import shutil
from pathlib import Path

import click

from nccl_inspector.commands.card_output import COLOURS, exit_judging, has_colour
from nccl_inspector.commands.options import conf_option, json_option, run_dir_option
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.model.wording import number


def _ask(job: str, conf: Path | None, run_dir: Path | None) -> None:
    from nccl_inspector.commands.options import read_settings
    from nccl_inspector.flight.trigger import ask_for_dumps

    if not JOB_ID.fullmatch(job):
        raise click.UsageError("--dump needs --job outside of a job.")
    asked = ask_for_dumps(read_settings(conf, run_dir).run_dir, int(job))
    if not asked:
        raise InspectorError(
            f"job {job}: no process here waits to be asked; did it start with fr,fr_pipe?"
        )
    click.echo(f"asked {number(asked, 'process')} of this node; a dump takes some seconds")


@click.command()
@click.argument(
    "paths",
    metavar="DIR|FILE...",
    nargs=-1,
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--ranks",
    metavar="N",
    type=click.IntRange(1, 1 << 20),
    help="How many ranks the job has, so that a missing dump of the last ones is noticed.",
)
@json_option
@click.option(
    "--color",
    "colour",
    type=click.Choice(COLOURS),
    default="auto",
    show_default=True,
    help="auto: use colours on a terminal, unless NO_COLOR is set.",
)
@click.option(
    "--dump",
    is_flag=True,
    help="Read nothing; ask the job's processes on this node for dumps. The job must have started "
    "with fr,fr_pipe.",
)
@click.option(
    "--job", envvar="SLURM_JOB_ID", metavar="ID", default="", help="For --dump: which job."
)
@conf_option
@run_dir_option
@click.pass_context
def flight(
    context: click.Context,
    /,
    paths: tuple[Path, ...],
    ranks: int | None,
    as_json: bool,
    colour: str,
    dump: bool,
    job: str,
    conf: Path | None,
    run_dir: Path | None,
) -> None:
    """Say who did not come to which operation, by the dumps of PyTorch's flight recorder.

    DIR has one dump for each rank, named with the rank's number at the end
    (comm_lib_trace_rank_3); a FILE is one of them. Both forms are read, pickle and JSON, and
    nothing in them is executed.

    Exit status 0: nothing is stuck; 1: warnings; 2: something is stuck; 3: no dump could be read.
    """
    if dump == bool(paths):
        raise click.UsageError("Give dumps to read, or --dump.")
    if dump:
        _ask(job, conf, run_dir)
        return

    def make() -> int:
        from nccl_inspector.flight.describe import describe
        from nccl_inspector.flight.files import read_dumps
        from nccl_inspector.render.flight_text import exit_status, flight_json, render_flight
        from nccl_inspector.render.text_layout import COLUMNS_MAX

        told = describe(read_dumps(paths, ranks))
        paint = has_colour(colour)
        columns = shutil.get_terminal_size((COLUMNS_MAX, 24)).columns
        text = flight_json(told) if as_json else render_flight(told, columns, paint)
        click.echo(text, nl=False, color=paint)
        return exit_status(told)

    exit_judging(context, make)
