# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector logs`.

It imports modules only when it needs them, because the agent starts through the same cli.py.
"""

import shutil
from pathlib import Path

import click

from nccl_inspector.commands.card_output import COLOURS, exit_judging, has_colour
from nccl_inspector.commands.options import all_option, json_option
from nccl_inspector.commands.progress import progress_bar


@click.command()
@click.argument(
    "paths",
    metavar="FILE|FOLDER...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
)
@all_option
@json_option
@click.option(
    "--color", "colour", type=click.Choice(COLOURS), default="auto", show_default=True,
    help="auto: use colours on a terminal, unless NO_COLOR is set.",
)  # fmt: skip
@click.pass_context
def logs(
    context: click.Context, paths: tuple[Path, ...], everything: bool, as_json: bool, colour: str
) -> None:
    """Say what NCCL's log means: the first error, what followed, and how NCCL was set up.

    It reads NCCL's, RCCL's and PyTorch's lines in any files: what NCCL_DEBUG_FILE names, or the
    output of a job. A FOLDER stands for all files below it, and - for standard input. What the
    rules know is in the page "NCCL's own log".

    Exit status 0: all is well; 1: warnings; 2: errors; 3: no such line, or a file cannot be read.
    """

    from nccl_inspector.nccl_log.files import read_logs
    from nccl_inspector.render.log_text import exit_code, log_json, render_log
    from nccl_inspector.render.text_layout import COLUMNS_MAX

    def make() -> int:
        with progress_bar() as progress:
            report = read_logs(paths, progress)
        if as_json:
            click.echo(log_json(report), nl=False)
        else:
            coloured = has_colour(colour)
            columns = shutil.get_terminal_size((COLUMNS_MAX, 24)).columns
            text = render_log(report, columns, everything=everything, colour=coloured)
            click.echo(text, nl=False, color=coloured)
        return exit_code(report)

    exit_judging(context, make)
