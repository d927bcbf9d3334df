# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector mark`."""

import os
from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option
from nccl_inspector.errors import InspectorError
from nccl_inspector.marking import UNITS, MarkError, check_mark, mark_dir, write_mark
from nccl_inspector.settings.config import read_config


@click.command("mark")
@conf_option
@click.option("--throughput", default="", help="The throughput: a number from 0 on.")
@click.option(
    "--unit", default="TFLOP/s/GPU", show_default=True, help=f"One of {', '.join(UNITS)}."
)
@click.pass_context
def mark(context: click.Context, conf: Path | None, throughput: str, unit: str) -> None:
    """Tell the throughput of the job in which this command runs; the last call counts.

    Exit status 2: the throughput is not valid.
    """
    try:
        number = check_mark(float(throughput), unit)
    except ValueError as err:
        words = str(err) if isinstance(err, MarkError) else "the throughput is not a number"
        click.echo(f"nccl-inspector: {words}", err=True)
        context.exit(2)
    try:
        write_mark(number, unit, mark_dir(os.environ, str(read_config(conf).run_dir)))
    except (MarkError, OSError) as err:
        raise InspectorError(f"not marked: {err}") from err
