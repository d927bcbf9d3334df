# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector collect`."""

import logging
from pathlib import Path

import click

from nccl_inspector.commands.options import (
    conf_option,
    read_settings,
    report_dir_option,
    run_dir_option,
)
from nccl_inspector.errors import InspectorError


@click.command()
@conf_option
@run_dir_option
@report_dir_option
def collect(conf: Path | None, run_dir: Path | None, report_dir: Path | None) -> None:
    """Collect this node's ended jobs once, also those without an epilog, if no agent runs.

    Exit status 1: some jobs that were due could not be collected.
    """
    from nccl_inspector.agent.service import run_collect

    logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO)
    left = run_collect(read_settings(conf, run_dir, report_dir))
    if left.overdue:
        raise InspectorError(
            f"{left.overdue} ended jobs are left: {left.failed} could not be handed over, "
            f"{left.untried} could not be tried in time"
        )
