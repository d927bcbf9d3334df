# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector analyze`.

It imports modules only when it needs them, because the agent starts through the same cli.py.
"""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from nccl_inspector.commands.card_output import (
    OutputOptions,
    card_options,
    exit_judging,
    write_card,
)
from nccl_inspector.commands.options import conf_option, path_type
from nccl_inspector.commands.progress import progress_bar
from nccl_inspector.settings.config import read_config

_TASKS_MAX = 1024


@click.command()
@click.argument("directory", type=path_type)
@click.option("--parquet", type=path_type, help="Also write all operations to this file.")
@click.option(
    "--slurm",
    "tasks",
    type=click.IntRange(1, _TASKS_MAX),
    metavar="N",
    help="Let N tasks of Slurm read and join; needs --shared.",
)
@click.option(
    "--shared",
    type=path_type,
    help="With --slurm: a directory of yours that all nodes see, for temporary files.",
)
@conf_option
@card_options
@click.pass_context
def analyze(
    context: click.Context,
    /,
    directory: Path,
    parquet: Path | None,
    tasks: int | None,
    shared: Path | None,
    conf: Path | None,
    **wished: Any,
) -> None:
    """Judge a job by the JSON lines below DIRECTORY, ours or NVIDIA's (v4.0 to v4.4).

    Operations are joined over the ranks by their numbers, so the figures are exact. It needs some
    20 bytes in TMPDIR for each operation, or 60 with --parquet. The exit status is as for report.

    With --slurm, the tasks of three Slurm steps read the files and join the operations. Run it
    inside a job, or after salloc -n N; otherwise each step is a new job, as srun's variables say.
    All nodes must see DIRECTORY and this program. Then these bytes are in the directory after
    --shared.
    """

    if (tasks is None) != (shared is None):
        raise click.UsageError("--slurm and --shared go together.")
    from nccl_inspector.capture.analyze import analyze_directory
    from nccl_inspector.capture.slurm_tasks import slurm_tasks

    def make() -> int:
        output = OutputOptions(sendmail=read_config(conf).sendmail, **wished)
        by_slurm = tasks and shared and slurm_tasks(tasks, shared, partial(click.echo, err=True))
        with by_slurm or nullcontext() as workers:
            card = analyze_directory(directory, parquet, progress_bar("analyzing"), workers)
        return write_card(card, output)

    exit_judging(context, make)
