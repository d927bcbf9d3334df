# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector setup`."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from nccl_inspector.model.hostlist import expand
from nccl_inspector.monitoring.site import describe_settings, make_site
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.plan import ROLES, own_changes
from nccl_inspector.setup.run import apply as apply_steps
from nccl_inspector.setup.run import describe, look, take_back_all
from nccl_inspector.setup.site_file import DEFAULT_SITE, read_site
from nccl_inspector.setup.steps import State

_TO_DO_STATUS = 3


@click.group()
def setup() -> None:
    """Show what a host needs, and set it up with --apply."""


def _run(role: str, site: Path | None, root: Path, apply: bool, undo: bool) -> None:
    if apply and undo:
        raise click.UsageError("--apply and --undo exclude each other.")
    host = Host(root.absolute())
    if undo:
        undone = take_back_all(host, role, own_changes(host, role, read_site(site)))
        for line in (*undone.stays, *undone.pending):
            click.echo(f"  {line}")
        if undone.pending:
            click.echo(f"Not everything is undone. Then run `nccl-inspector setup {role} --undo` "
                       "again.")  # fmt: skip
            sys.exit(1)
        click.echo(f"What setup {role} had changed is undone.")
        return
    steps = ROLES[role](host, read_site(site))
    shown = apply_steps(host, role, steps) if apply else look(host, role, steps)
    for line in describe(shown, applied=apply):
        click.echo(line)
    if shown.has(State.REFUSED):
        click.echo("Nothing can be done before what is refused is settled.")
        sys.exit(1)
    if not apply and shown.has(State.TO_DO):
        click.echo(f"Nothing was changed. `nccl-inspector setup {role} --apply` does it.")
        sys.exit(_TO_DO_STATUS)
    if host.has_systemd and not host.is_booted and role != "monitoring":
        click.echo("systemd does not run here: the next boot mounts and starts what is enabled.")
    if not shown.has(State.TO_DO):
        click.echo("Nothing is to do.")


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--undo", is_flag=True, help="Undo what --apply has done."),
        click.option("--apply", is_flag=True, help="Do what is to do, all of it or nothing."),
        click.option(
            "--root",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            default="/",
            help="Root directory of an image that is set up, instead of this host.",
        ),
        click.option(
            "--site",
            type=click.Path(path_type=Path, dir_okay=False),
            help=f"Site file, the same for all hosts (default: {DEFAULT_SITE}).",
        ),
    ):
        command = option(command)
    return command


@setup.command()
@_with_options
def node(site: Path | None, root: Path, apply: bool, undo: bool) -> None:
    """Show what a node needs.

    The exit status is 0 if nothing is to do, 3 if something is, and 1 if something is in the way.
    """
    _run("node", site, root, apply, undo)


@setup.command()
@_with_options
def controller(site: Path | None, root: Path, apply: bool, undo: bool) -> None:
    """Show what the host of slurmctld needs.

    The exit status is 0 if nothing is to do, 3 if something is, and 1 if something is in the way.
    """
    _run("controller", site, root, apply, undo)


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
@_with_options
def monitoring(
    out: Path | None, nodes: str, words: tuple[str, ...], settings: bool,
    site: Path | None, root: Path, apply: bool, undo: bool,
) -> None:  # fmt: skip
    """Write Prometheus' scrape configuration, rules and alerts, and Grafana's dashboards.

    With --out they are written there. Without, the site file says where, and nothing is written
    without --apply.
    """
    if settings:
        click.echo(describe_settings(), nl=False)
        return
    if out is None:
        if nodes or words:
            raise click.UsageError("Missing option '--out'.")
        _run("monitoring", site, root, apply, undo)
        return
    # Imported here, because the agent starts through the same cli.py and should not load jinja2.
    from nccl_inspector.monitoring.bundle import make_bundle, write_bundle

    files = make_bundle(make_site(words), expand(nodes))
    write_bundle(out, files)
    for name in files:
        click.echo(out / name)
