# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector trace`."""

import gzip
from collections.abc import Iterable
from pathlib import Path

import click

from nccl_inspector.commands.fetched_files import with_files_of
from nccl_inspector.commands.options import (
    attempt_option,
    conf_option,
    path_type,
    read_settings,
    report_dir_option,
)
from nccl_inspector.errors import InspectorError
from nccl_inspector.slurm.job_argument import job_id


def _write(path: Path, pieces: Iterable[str]) -> None:
    """Write the file, packed if its name ends in .gz.

    Raises:
        InspectorError: it cannot be written.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "wt", encoding="utf-8", compresslevel=5) as packed:
                packed.writelines(pieces)
        else:
            with path.open("w", encoding="utf-8") as file:
                file.writelines(pieces)
    except OSError as err:
        raise InspectorError(f"{path} cannot be written: {err.strerror}") from err


@click.command()
@click.argument("job", metavar="JOB_ID", callback=job_id)
@conf_option
@report_dir_option
@attempt_option
@click.option(
    "--output",
    type=path_type,
    help="Write to this file; packed if its name ends in .gz. [default: nccl-trace-JOB_ID.json.gz]",
)
def trace(
    job: int, conf: Path | None, report_dir: Path | None, attempt: int | None, output: Path | None
) -> None:
    """Write the exact records of a job's ranks as a trace for Perfetto or Chrome.

    Open the file at https://ui.perfetto.dev, or in chrome://tracing. A process of the trace is a
    rank, its tracks are its communicators. Where a rank waited for another one, a slice says for
    whom, and an arrow comes from that one. The plugin keeps records of bursts that hold whole
    steps, and of all operations of a short job.
    """
    from nccl_inspector.report.joined_job import build_report
    from nccl_inspector.report.make import make_card
    from nccl_inspector.report.trace import about, make_trace, write_trace
    from nccl_inspector.summary.attempts import load_summaries

    config = with_files_of(read_settings(conf, report_dir=report_dir), job)
    loaded = load_summaries(job, config.report_dir, attempt)
    placed = [(one.head.node, process) for one in loaded.summaries for process in one.processes]
    made = make_trace(placed, build_report(loaded).names, make_card(loaded, config))
    path = output or Path(f"nccl-trace-{job}.json.gz")
    facts = about(made)
    _write(path, write_trace(made, facts))
    click.echo(f"{path}: {facts['operations']:,} operations of {facts['ranks']:,} ranks")
    if facts["ranks_left_out"]:
        click.echo(
            f"without {facts['ranks_left_out']:,} other ranks, of which no records were read"
        )
    if (apart := facts["ends_of_one_operation_apart_us_median"]) is not None:
        most = facts["ends_of_one_operation_apart_us_95_percent"]
        click.echo(
            f"clocks: the ends of one operation lie {apart:g} us apart over its ranks (median; "
            f"{most:g} us in 95 % of the operations)"
        )
    click.echo("open it at https://ui.perfetto.dev or in chrome://tracing")
