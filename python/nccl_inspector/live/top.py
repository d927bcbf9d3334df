# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector top`: look, and show what was seen, once or again and again."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from nccl_inspector.live.nodeview import NodeView
from nccl_inspector.live.screen import Draw, can_redraw, print_once, watch
from nccl_inspector.live.table import ScreenLine, render
from nccl_inspector.live.view import View

INTERVAL_S, PROMETHEUS_INTERVAL_S = 2.0, 10.0
WIDE_COLUMNS = 200  # where nobody says how wide it is


class Source(Protocol):
    """What can be looked at again and again."""

    def look(self) -> View:
        """Return what the jobs do now."""


@dataclass(frozen=True, slots=True)
class TopOptions:
    """What the command was asked for."""

    job_id: int | None
    interval_s: float
    once: bool
    as_json: bool


def _is_complete(view: View, source: Source) -> bool:
    """Tell whether a view has its rates; boxes need two looks."""
    return view.span_s is not None or not isinstance(source, NodeView)


def _look_once(source: Source, interval_s: float) -> View:
    view = source.look()
    if not _is_complete(view, source) and view.jobs:
        time.sleep(interval_s)
        view = source.look()
    return view


def _lines(view: View, options: TopOptions, columns: int) -> Sequence[ScreenLine]:
    return render(view, options.job_id is not None, columns)


def run_top(source: Source, options: TopOptions) -> bool:
    """Show what the jobs do; False: asked for one job, and it is not there.

    Raises:
        InspectorError: there is no run directory, or the Prometheus does not answer.
    """
    if options.once or options.as_json or not can_redraw():
        view = _look_once(source, options.interval_s)
        if options.as_json:
            json.dump(asdict(view), sys.stdout)
            sys.stdout.write("\n")
        else:
            columns = shutil.get_terminal_size((WIDE_COLUMNS, 24)).columns
            print_once(_lines(view, options, columns))
        return bool(view.jobs) or options.job_id is None

    def look() -> Draw:
        view = source.look()
        return lambda columns: _lines(view, options, columns)

    watch(look, options.interval_s)
    return True
