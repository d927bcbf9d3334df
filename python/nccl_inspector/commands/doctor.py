# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector doctor`."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import click

from nccl_inspector.commands.options import conf_option, path_type, run_dir_option
from nccl_inspector.doctor.bundle import bundle_files, write_bundle
from nccl_inspector.doctor.check import Role
from nccl_inspector.doctor.examine import (
    Examination,
    examine_host,
    examine_image,
    examine_job,
    read_settings,
)
from nccl_inspector.doctor.facts import Settings
from nccl_inspector.doctor.registry import BY_ID, CHECKS
from nccl_inspector.doctor.text import json_text, render, render_list
from nccl_inspector.model.jobid import JOB_ID
from nccl_inspector.render.text_layout import COLUMNS_MAX

_HERE = "here"
_HOSTS = (Role.NODE, Role.SUBMIT, Role.CONTROLLER)


def _job_id(word: str) -> int:
    text = os.environ.get("SLURM_JOB_ID", "") if word == _HERE else word
    if not JOB_ID.fullmatch(text):
        if word == _HERE:
            raise click.UsageError("--job without an ID works only inside a job.")
        raise click.UsageError(f"--job {word[:40]}: not the number of a job.")
    return int(text)


def _settings(conf: Path | None, run_dir: Path | None) -> Settings:
    settings = read_settings(conf)
    if run_dir:
        settings = replace(settings, values=replace(settings.values, run_dir=run_dir))
    return settings


def _examine(
    settings: Settings,
    roles: tuple[str, ...],
    prometheus: str,
    job: str | None,
    image: Path | None,
) -> Examination:
    if prometheus and (job is not None or image is not None):
        raise click.UsageError("--prometheus is for a host.")
    if (job is not None) + (image is not None) + bool(roles) > 1:
        raise click.UsageError("Give one of --job, --image and --role.")
    if job is not None:
        return examine_job(settings, _job_id(job))
    if image is not None:
        return examine_image(settings, image)
    return examine_host(settings, {Role(one) for one in roles}, prometheus)


@click.command()
@conf_option
@run_dir_option
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([str(one) for one in _HOSTS]),
    help="Look at this host as such a one, whatever it looks like; may be repeated.",
)
@click.option(
    "--prometheus",
    metavar="URL",
    default="",
    help="Also ask this Prometheus whether it has the series of this node.",
)
@click.option(
    "--job",
    is_flag=False,
    flag_value=_HERE,
    metavar="[ID]",
    help="Look at a job on this node; without ID, inside it.",
)
@click.option(
    "--image",
    metavar="ROOTFS",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Look at an unpacked image of a container.",
)
@click.option(
    "--skip",
    multiple=True,
    metavar="CHECK",
    type=click.Choice(list(BY_ID)),
    help="Leave out this check of --list; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result of each check as JSON.")
@click.option(
    "--bundle",
    metavar="FILE",
    type=path_type,
    help="Also write a .tar.gz for whoever helps, without names of users and jobs.",
)
@click.option("--list", "listing", is_flag=True, help="Print all checks, then exit.")
@click.pass_context
def doctor(
    context: click.Context,
    conf: Path | None,
    run_dir: Path | None,
    roles: tuple[str, ...],
    prometheus: str,
    job: str | None,
    image: Path | None,
    skip: tuple[str, ...],
    as_json: bool,
    bundle: Path | None,
    listing: bool,
) -> None:
    """Find out why jobs are not measured on this host, in a job or in an image, and say what to do.

    It finds out by itself whether the host is a node, a controller or a submit host. It changes
    nothing, except that it writes a small file into report_dir and store_dir and takes it away.
    Run it as root to see everything.

    Exit status 0: all is well; 1: something was found, or could not be told.
    """
    columns = shutil.get_terminal_size((COLUMNS_MAX, 24)).columns
    if listing:
        click.echo(render_list(CHECKS, columns), nl=False)
        return
    examination = _examine(_settings(conf, run_dir), roles, prometheus, job, image).without(skip)
    text = json_text(examination) if as_json else render(examination, columns)
    click.echo(text, nl=False)
    if bundle is not None:
        files = bundle_files(examination)
        write_bundle(bundle, files)
        click.echo(f"{bundle} has {', '.join(files)}", err=True)
    context.exit(examination.exit_code)
