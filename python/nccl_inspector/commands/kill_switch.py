# SPDX-License-Identifier: Apache-2.0
"""The commands `nccl-inspector disable` and `enable`."""

from pathlib import Path

import click

from nccl_inspector.agent.kill_switch import disable as switch_off
from nccl_inspector.agent.kill_switch import enable as switch_on
from nccl_inspector.agent.status import describe
from nccl_inspector.commands.options import conf_option, read_settings, run_dir_option


@click.command()
@conf_option
@run_dir_option
@click.option(
    "--reason", default="", help="One line that says why, for others who look at the node."
)
def disable(conf: Path | None, run_dir: Path | None, reason: str) -> None:
    """Stop measuring on this node, also in running jobs (the kill switch; as root)."""
    state = switch_off(read_settings(conf, run_dir).run_dir, reason)
    click.echo(describe(state))


@click.command()
@conf_option
@run_dir_option
def enable(conf: Path | None, run_dir: Path | None) -> None:
    """Measure on this node again: undo `disable` (as root)."""
    switch_on(read_settings(conf, run_dir).run_dir)
    click.echo(describe(None))
