# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector analyze`.

It imports modules only when it needs them, because the agent starts through the same cli.py.
"""

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


@click.command()
@click.argument("directory", type=path_type)
@click.option("--parquet", type=path_type, help="Also write all operations to this file.")
@conf_option
@card_options
@click.pass_context
def analyze(
    context: click.Context,
    /,
    directory: Path,
    parquet: Path | None,
    conf: Path | None,
    **wished: Any,
) -> None:
    """Judge a job by the JSON lines below DIRECTORY, ours or NVIDIA's (v4.0 to v4.4).

    Operations are joined over the ranks by their numbers, so the figures are exact. It needs some
    30 bytes in TMPDIR for each operation. The exit status is as for report.
    """

    from nccl_inspector.capture.analyze import analyze_directory

    def make() -> int:
        output = OutputOptions(sendmail=read_config(conf).sendmail, **wished)
        return write_card(analyze_directory(directory, parquet, progress_bar()), output)

    exit_judging(context, make)
