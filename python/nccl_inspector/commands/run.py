# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector run`."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

import click

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card
from nccl_inspector.run.launch import CommandEnd, measured, output_files, run_command, why_not
from nccl_inspector.run.user_summaries import job_head, read_boxes, write_summaries
from nccl_inspector.settings.config import read_config
from nccl_inspector.system.printable import printable

_TRIES = 1000
_OUTPUT_CPU_S = 10.0  # seconds of CPU time, after the command's end
PACKAGE_DIR = Path("/usr/lib/nccl-inspector")
_FILE = click.Path(dir_okay=False, path_type=Path)


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


@dataclass(frozen=True, slots=True)
class _Forms:
    """Files that get the report, too; None: not asked for."""

    text: Path | None = None
    page: Path | None = None
    json: Path | None = None


def _card(job_id: int, report_dir: Path, files: Mapping[Path, int]) -> Card:
    """Return the report of a job, from its summaries and what its command has written.

    Slurm is not asked, because the job still runs.
    """
    from nccl_inspector.report.assemble import build_card
    from nccl_inspector.report.job_context import RequestedInputs, gather_own
    from nccl_inspector.summary.attempts import load_summaries

    loaded = load_summaries(job_id, report_dir, None)
    if not files:
        return build_card(loaded)
    output, *others = files
    asked = RequestedInputs(
        slurm=False, output=output, output_cpu_s=_OUTPUT_CPU_S, begins=files,
        errors=others[0] if others else None,
    )  # fmt: skip
    return build_card(loaded, gather_own(loaded.head, asked))


def _write(card: Card, forms: _Forms) -> list[Path]:
    """Write the report to the files that are asked for; return those that were written."""
    from nccl_inspector.render.html import render_html
    from nccl_inspector.render.json import to_json
    from nccl_inspector.render.text import render_text

    now = datetime.now(UTC)
    makers: list[tuple[Path | None, Callable[[], str]]] = [
        (forms.text, lambda: render_text(card, everything=True)),
        (forms.page, lambda: render_html(card, now)),
        (forms.json, lambda: to_json(card, now)),
    ]
    written = []
    for path, make in makers:
        if path is None:
            continue
        try:
            path.write_text(make(), encoding="utf-8")
        except OSError as err:
            _say(f"{path}: {os.strerror(err.errno or 0)}")
        else:
            written.append(path)
    return written


def _report(
    directory: Path,
    start_s: int,
    end: CommandEnd,
    files: Mapping[Path, int],
    forms: _Forms = _Forms(),
) -> None:
    from nccl_inspector.render.text import render_text

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
    card = _card(head.job_id, directory, files)
    click.echo(render_text(card), err=True, nl=False)
    if written := _write(card, forms):
        _say(f"the report is in {', '.join(printable(str(one)) for one in written)}")
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
@click.option(
    "--output", "text", type=_FILE, help="Write the whole report as text to this file, too."
)
@click.option("--html", "page", type=_FILE, help="Write a page for a browser to this file, too.")
@click.option("--json", type=_FILE, help="Write the whole report as JSON to this file, too.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(
    context: click.Context,
    /,
    wanted: Path | None,
    profiler: Path | None,
    command: tuple[str, ...],
    **forms: Path | None,
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
            _report(directory, start_s, end, files, _Forms(**forms))
        except InspectorError as err:
            _say(f"no report: {err}")
    context.exit(end.status)
