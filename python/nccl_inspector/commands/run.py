# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector run`."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote

import click

from nccl_inspector.errors import InspectorError
from nccl_inspector.run.launch import CommandEnd, measured, output_files, run_command, why_not
from nccl_inspector.run.user_summaries import job_head, read_boxes, write_summaries
from nccl_inspector.settings.config import read_config
from nccl_inspector.system.printable import printable

_TRIES = 1000
_OUTPUT_CPU_S = 10.0  # seconds of CPU time, after the command's end
PACKAGE_DIR = Path("/usr/lib/nccl-inspector")


def _say(words: str) -> None:
    click.echo(f"nccl-inspector: {words}", err=True)


def _make_directory(wanted: Path | None, environ: Mapping[str, str]) -> Path:
    """Return a directory for the boxes: `wanted`, or a new one that only its user can read.

    Raises:
        InspectorError: there are too many such directories.
        OSError: it cannot be created.
    """
    if wanted:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
        return wanted.resolve()
    stem = f"nccl-inspector-{environ.get('SLURM_JOB_ID') or os.getpid()}"
    for number in range(_TRIES):
        path = Path(stem + (f".{number}" if number else "")).resolve()
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise InspectorError(f"there are {_TRIES} directories {stem}.* already")


def _report_text(job_id: int, report_dir: Path, files: Mapping[Path, int]) -> str:
    """Return the report of a job as text, from its summaries and what its command has written.

    Slurm is not asked, because the job still runs.
    """
    from nccl_inspector.render.text import render_text
    from nccl_inspector.report.assemble import build_card
    from nccl_inspector.report.job_context import RequestedInputs, gather_own
    from nccl_inspector.summary.attempts import load_summaries

    loaded = load_summaries(job_id, report_dir, None)
    if not files:
        return render_text(build_card(loaded))
    output, *others = files
    asked = RequestedInputs(
        slurm=False, output=output, output_cpu_s=_OUTPUT_CPU_S, begins=files,
        errors=others[0] if others else None,
    )  # fmt: skip
    return render_text(build_card(loaded, gather_own(loaded.head, asked)))


def _report(directory: Path, start_s: int, end: CommandEnd, files: Mapping[Path, int]) -> None:
    head = replace(job_head(os.environ, start_s), state=end.state, exit_code=end.status)
    found = read_boxes(directory)
    if not found.nodes:
        _say(
            "; ".join(found.problems)
            or "no process has used NCCL, or its directory cannot be seen from the nodes "
            f"({directory})"
        )
        return
    write_summaries(found, head, directory)
    click.echo(_report_text(head.job_id, directory, files), err=True, nl=False)
    again = f"nccl-inspector report {head.job_id} --report-dir {quote(printable(str(directory)))}"
    if files:
        again += f" --output {quote(printable(str(next(iter(files)))))}"
    _say(f"the report again: {again}")


def _prepare(profiler: Path | None, wanted: Path | None) -> tuple[dict[str, str], Path | None]:
    """Return the environment for the command and the directory for its boxes.

    None: nothing can be measured; the reason has been printed.
    """
    try:
        # If the setting is a bare file name, the file is where the package installs it.
        plugin = (profiler or PACKAGE_DIR / read_config(None).profiler).resolve()
        reason = why_not(os.environ, plugin)
        if not reason:
            directory = _make_directory(wanted, os.environ)
            return measured(os.environ, plugin, directory), directory
    except OSError as err:
        reason = f"{err.filename}: {err.strerror}"
    except InspectorError as err:
        reason = str(err)
    _say(f"not measured: {reason}")
    return dict(os.environ), None


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.option(
    "--dir",
    "wanted",
    type=click.Path(path_type=Path),
    help="Directory for the figures, which all nodes must see. "
    "[default: a new nccl-inspector-JOBID here]",
)
@click.option(
    "--profiler",
    type=click.Path(path_type=Path),
    help="Path of the profiler plugin. [default: the site's]",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context, wanted: Path | None, profiler: Path | None, command: tuple[str, ...]
) -> None:
    """Run COMMAND with the profiler plugin, then print its report to standard error.

    For jobs that the site does not measure: it needs no root, no hooks and no agent. Example:
    `nccl-inspector run -- srun python train.py`. The command runs even if measuring fails, and
    the exit status is the command's own.
    """
    start_s = int(time.time())
    environ, directory = _prepare(profiler, wanted)
    files = output_files() if directory else {}
    end = run_command(command, environ)
    if end.why:
        _say(end.why)
    if directory:
        try:
            _report(directory, start_s, end, files)
        except InspectorError as err:
            _say(f"no report: {err}")
    context.exit(end.status)
