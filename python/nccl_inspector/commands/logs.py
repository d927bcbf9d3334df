# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector logs`.

It imports modules only when it needs them, because the agent starts through the same cli.py.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nccl_inspector.commands.card_output import COLOURS, exit_judging, has_colour
from nccl_inspector.commands.fetched_files import with_files_of
from nccl_inspector.commands.options import (
    all_option,
    conf_option,
    json_option,
    read_settings,
    report_dir_option,
)
from nccl_inspector.commands.progress import progress_bar
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config

if TYPE_CHECKING:
    from nccl_inspector.nccl_log.judge import LogReport


def _of_job(job: int, config: Config) -> "LogReport":
    from nccl_inspector.report.kept_logs import judge_kept, kept_logs
    from nccl_inspector.summary.attempts import load_summaries

    logs = kept_logs(load_summaries(job, with_files_of(config, job).report_dir, None).summaries)
    if not logs:
        raise InspectorError(
            f"job {job}: no log of NCCL's is kept; --nccl-inspector=MODE,debug makes one"
        )
    return judge_kept(logs)


@click.command()
@click.argument(
    "paths",
    metavar="FILE|FOLDER...",
    nargs=-1,
    type=click.Path(path_type=Path, allow_dash=True),
)
@click.option(
    "--job",
    metavar="JOB_ID",
    type=click.IntRange(min=1),
    help="Read what the job's report keeps of its logs, with --nccl-inspector=MODE,debug.",
)
@conf_option
@report_dir_option
@all_option
@json_option
@click.option(
    "--color", "colour", type=click.Choice(COLOURS), default="auto", show_default=True,
    help="auto: use colours on a terminal, unless NO_COLOR is set.",
)  # fmt: skip
@click.pass_context
def logs(
    context: click.Context,
    paths: tuple[Path, ...],
    job: int | None,
    conf: Path | None,
    report_dir: Path | None,
    everything: bool,
    as_json: bool,
    colour: str,
) -> None:
    """Say what NCCL's log means: the first error, what followed, and how NCCL was set up.

    It reads NCCL's, RCCL's and PyTorch's lines in any files: what NCCL_DEBUG_FILE names, or the
    output of a job. A FOLDER stands for all files below it, and - for standard input. What the
    rules know is in the page "NCCL's own log".

    Exit status 0: all is well; 1: warnings; 2: errors; 3: no such line, or a file cannot be read.
    """

    if bool(paths) == (job is not None):
        raise click.UsageError("Give files or folders, or --job.")

    from nccl_inspector.nccl_log.files import read_logs
    from nccl_inspector.render.log_text import exit_code, log_json, render_log
    from nccl_inspector.render.text_layout import COLUMNS_MAX

    def make() -> int:
        if job is not None:
            report = _of_job(job, read_settings(conf, report_dir=report_dir))
        else:
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
