# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector analyze`.

It imports what it needs itself, because the agent runs through the same cli.py.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nccl_inspector.card.command import Wish, card_options, exit_judging, write_card
from nccl_inspector.card.model import Card
from nccl_inspector.config import read_config
from nccl_inspector.errors import InspectorError
from nccl_inspector.printable import visible

if TYPE_CHECKING:
    from nccl_inspector.capture.engine import Progress

_path = click.Path(path_type=Path)


@contextmanager
def _bar() -> "Iterator[Progress | None]":
    """Give what draws a bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=1, label="reading", file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show


def analyze_directory(directory: Path, parquet: Path | None) -> Card:
    """Return the card of the JSON lines below a directory; write Parquet where asked.

    Raises:
        InspectorError: nothing in it can be read, there is no room, or the file cannot be written.
    """
    import duckdb

    from nccl_inspector.capture.card import as_card
    from nccl_inspector.capture.engine import DISK_FULL, load
    from nccl_inspector.capture.joined import WINDOW_S, join
    from nccl_inspector.capture.parquet import write_parquet
    from nccl_inspector.capture.processes import as_summaries
    from nccl_inspector.capture.samples import sample_lines

    try:
        with _bar() as progress, load(directory, parquet is not None, progress) as capture:
            if parquet is not None:
                write_parquet(capture, parquet)
            joined = join(capture)
            sampled = sample_lines(capture)
            window_s = joined.timeline.window_s or WINDOW_S
            summaries = as_summaries(capture, window_s, sampled)
            return as_card(capture, joined, summaries, sampled.why_not)
    except (OSError, duckdb.Error) as err:
        said = str(err).splitlines()[0]
        raise InspectorError(
            f"{directory}: not analysed, with {tempfile.gettempdir()} as TMPDIR: "
            f"{DISK_FULL if DISK_FULL in said else visible(said)}"
        ) from err


@click.command()
@click.argument("directory", type=_path)
@click.option("--parquet", type=_path, help="Write all operations to this file, too.")
@click.option("--conf", type=_path, help="Configuration file in place of the usual one.")
@card_options
@click.pass_context
def analyze(
    context: click.Context,
    /,
    directory: Path,
    parquet: Path | None,
    conf: Path | None,
    **wished: Any,
) -> None:
    """Judge a job by the JSON lines below DIRECTORY, ours or NVIDIA's (v4.0 to v4.4).

    Operations are joined over the ranks by their numbers, so the figures are exact. In TMPDIR it
    needs some 30 bytes for each operation. Exit status as of report.
    """

    def make() -> int:
        wish = Wish(sendmail=read_config(conf).sendmail, **wished)
        return write_card(analyze_directory(directory, parquet), wish)

    exit_judging(context, make)
