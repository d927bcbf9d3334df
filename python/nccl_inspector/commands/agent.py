# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector agent`."""

import logging
from functools import partial
from pathlib import Path

import click

from nccl_inspector.commands.options import (
    conf_option,
    read_settings,
    report_dir_option,
    run_dir_option,
)


@click.command()
@conf_option
@run_dir_option
@report_dir_option
@click.option("--once", is_flag=True, help="Run one pass, then exit.")
def agent(conf: Path | None, run_dir: Path | None, report_dir: Path | None, once: bool) -> None:
    """Publish the metrics of this node's jobs and collect ended jobs (a service)."""
    from nccl_inspector.agent.service import run_agent

    logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO)
    reread = partial(read_settings, conf, run_dir, report_dir)
    options = {"run_dir": run_dir, "report_dir": report_dir}
    overridden = {name for name, value in options.items() if value is not None}
    run_agent(reread(), once, reread, overridden)
