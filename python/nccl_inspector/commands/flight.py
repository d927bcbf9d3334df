# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector flight`.

It imports modules only when it needs them, because the agent starts through the same cli.py.
"""

import shutil
from pathlib import Path

import click

from nccl_inspector.commands.card_output import COLOURS, exit_judging, has_colour


@click.command()
@click.argument(
    "paths",
    metavar="DIR|FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)
@click.option(
    "--ranks", metavar="N", type=click.IntRange(1, 1 << 20),
    help="How many ranks the job has, so that a missing dump of the last ones is noticed.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option(
    "--color", "colour", type=click.Choice(COLOURS), default="auto", show_default=True,
    help="auto: use colours on a terminal, unless NO_COLOR is set.",
)  # fmt: skip
@click.pass_context
def flight(
    context: click.Context,
    /,
    paths: tuple[Path, ...],
    ranks: int | None,
    as_json: bool,
    colour: str,
) -> None:
    """Say who did not come to which operation, by the dumps of PyTorch's flight recorder.

    DIR has one dump for each rank, named with the rank's number at the end
    (comm_lib_trace_rank_3); a FILE is one of them. Both forms are read, pickle and JSON, and
    nothing in them is executed.

    Exit status 0: nothing is stuck; 1: warnings; 2: something is stuck; 3: no dump could be read.
    """

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
