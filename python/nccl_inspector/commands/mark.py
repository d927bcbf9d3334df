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
@click.option("--throughput", default="", help="A number that is not negative.")
@click.option("--unit", default="TFLOP/s/GPU", show_default=True, help=", ".join(UNITS) + ".")
@click.pass_context
def mark(context: click.Context, conf: Path | None, throughput: str, unit: str) -> None:
    """Tell this job's throughput, from inside it; the last one counts.

    Exit status 2: it is no throughput.
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
