# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector setup`."""

from pathlib import Path

import click

from nccl_inspector.model.hostlist import expand
from nccl_inspector.monitoring.site import describe_settings, make_site


@click.group()
def setup() -> None:
    """Write files that a site needs beside this package."""


@setup.command()
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Directory for the files."
)
@click.option("--nodes", default="", help="Nodes to scrape, as in Slurm: n[1-512].")
@click.option(
    "--set",
    "words",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set one of the names that --settings prints.",
)
@click.option("--settings", is_flag=True, help="Print all names with their defaults, then exit.")
def monitoring(out: Path | None, nodes: str, words: tuple[str, ...], settings: bool) -> None:
    """Write Prometheus' scrape configuration, rules and alerts, and Grafana's dashboards."""
    if settings:
        click.echo(describe_settings(), nl=False)
        return
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    # Imported here, because the agent starts through the same cli.py and should not load jinja2.
    from nccl_inspector.monitoring.bundle import make_bundle, write_bundle

    files = make_bundle(make_site(words), expand(nodes))
    write_bundle(out, files)
    for name in files:
        click.echo(out / name)
