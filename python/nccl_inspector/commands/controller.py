# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector controller`."""

import logging
import time
from dataclasses import replace
from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option, path_type
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import read_config


@click.command()
@conf_option
@click.option("--once", is_flag=True, help="Do what is due now, then exit (for a timer).")
@click.option("--rebuild", is_flag=True, help="Make the index from the stored reports, then exit.")
@click.option(
    "--move-to",
    "target",
    metavar="URL",
    help="Copy the index to postgresql://... (or `file`: back to store_dir), then exit.",
)
@click.option("--status", "show", is_flag=True, help="Print the state of the service, then exit.")
@click.option("--controller-dir", type=path_type, help="Use this controller_dir.")
def controller(
    conf: Path | None,
    once: bool,
    rebuild: bool,
    target: str | None,
    show: bool,
    controller_dir: Path | None,
) -> None:
    """Make and keep the reports of ended jobs, beside slurmctld (a service; never as root).

    It takes the jobs that EpilogSlurmctld queued, waits for the summaries of their nodes
    (controller_wait), and stores the report where the job's user and report_group can read it.
    """
    # Imported here, because the agent starts through the same cli.py and should not load them.
    from nccl_inspector.controller.duty import alone, refuse_root
    from nccl_inspector.controller.remake_index import move
    from nccl_inspector.controller.remake_index import rebuild as rebuild_index
    from nccl_inspector.controller.service import serve, work_once
    from nccl_inspector.controller.status import read_status, status_text
    from nccl_inspector.controller.wiring import usual_makers

    logging.basicConfig(format="%(name)s: %(message)s", level=logging.INFO)
    config = read_config(conf)
    config = replace(config, controller_dir=controller_dir or config.controller_dir)
    if show:
        click.echo(status_text(read_status(config.controller_dir), time.time()), nl=False)
        return
    refuse_root()
    if rebuild:
        with alone(config):
            try:
                done, refused = rebuild_index(config)
            except OSError as err:
                raise InspectorError(f"{config.store_dir}: not rebuilt: {err}") from err
        click.echo(f"{done} reports are in the index, {refused} could not be read")
        return
    if target is not None:
        with alone(config):
            try:
                done = move(config, target, lambda so_far: click.echo(f"{so_far} jobs"))
            except OSError as err:
                raise InspectorError(f"{config.store_dir}: not moved: {err}") from err
        word = "take store_url out of" if target == "file" else f"set store_url = {target} in"
        click.echo(f"{done} jobs copied; now {word} nccl-inspector.conf and start the service")
        return
    if not once:
        serve(config, usual_makers(config))
        return
    if left := work_once(config, usual_makers(config)):
        click.echo(f"{left} ended jobs wait for their nodes' summaries, or for another try")
