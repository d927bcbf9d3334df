# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have in common."""

from dataclasses import replace
from pathlib import Path

import click

from nccl_inspector.settings.config import Config, read_config

path_type = click.Path(path_type=Path)
conf_option = click.option("--conf", type=path_type, help="Use this configuration file.")
run_dir_option = click.option("--run-dir", type=path_type, help="Use this run_dir.")
report_dir_option = click.option("--report-dir", type=path_type, help="Use this report_dir.")
attempt_option = click.option(
    "--attempt",
    type=click.IntRange(min=0),
    help="Attempt of a requeued job. [default: the latest]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
all_option = click.option("--all", "everything", is_flag=True, help="Show all rows of all tables.")


def read_settings(
    conf: Path | None, run_dir: Path | None = None, report_dir: Path | None = None
) -> Config:
    """Return the settings; directories given on the command line replace those in the file."""
    config = read_config(conf)
    return replace(
        config,
        run_dir=run_dir or config.run_dir,
        report_dir=report_dir or config.report_dir,
        object_url="" if report_dir else config.object_url,
    )
