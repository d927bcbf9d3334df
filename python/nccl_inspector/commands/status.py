# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector status`."""

from pathlib import Path

import click

from nccl_inspector.agent.status import read_status, render_status
from nccl_inspector.commands.options import conf_option, read_settings, run_dir_option


@click.command()
@conf_option
@run_dir_option
@click.pass_context
def status(context: click.Context, conf: Path | None, run_dir: Path | None) -> None:
    """Print whether measuring works on this node.

    Exit status 0: enabled and well; 3: disabled; 4: not well.
    """
    config = read_settings(conf, run_dir)
    found = read_status(config.run_dir, config.agent_interval_s)
    click.echo(render_status(found), nl=False)
    context.exit(found.exit_code)
