# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector top`: look, and show what was seen, once or again and again."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from nccl_inspector.live.model import View
from nccl_inspector.live.nodeview import NodeView
from nccl_inspector.live.promview import PrometheusView
from nccl_inspector.live.screen import Draw, can_redraw, print_once, watch
from nccl_inspector.live.table import Line, render

INTERVAL_S, PROMETHEUS_INTERVAL_S = 2.0, 10.0
WIDE_COLUMNS = 200  # where nobody says how wide it is


class _Source(Protocol):
    def look(self) -> View: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command was asked for."""

    run_dir: Path
    job_id: int | None
    prometheus: str  # its URL; empty: this node's boxes
    window: str  # what a Prometheus takes rates over, `2m`
    interval_s: float | None
    once: bool
    as_json: bool


def _is_complete(view: View, source: _Source) -> bool:
    """Tell whether a view has its rates; boxes need two looks."""
    return view.span_s is not None or not isinstance(source, NodeView)


def _look_once(source: _Source, interval_s: float) -> View:
    view = source.look()
    if not _is_complete(view, source) and view.jobs:
        time.sleep(interval_s)
        view = source.look()
    return view


def _lines(view: View, wish: Wish, columns: int) -> Sequence[Line]:
    return render(view, wish.job_id is not None, columns)


def run_top(wish: Wish) -> bool:
    """Show what the jobs do; False: asked for one job, and it is not there.

    Raises:
        InspectorError: there is no run directory, or the Prometheus does not answer.
    """
    source: _Source
    if wish.prometheus:
        source = PrometheusView(wish.prometheus, wish.job_id, wish.window)
    else:
        source = NodeView(wish.run_dir, wish.job_id)
    usual_s = PROMETHEUS_INTERVAL_S if wish.prometheus else INTERVAL_S
    interval_s = wish.interval_s or usual_s
    if wish.once or wish.as_json or not can_redraw():
        view = _look_once(source, interval_s)
        if wish.as_json:
            json.dump(asdict(view), sys.stdout)
            sys.stdout.write("\n")
        else:
            columns = shutil.get_terminal_size((WIDE_COLUMNS, 24)).columns
            print_once(_lines(view, wish, columns))
        return bool(view.jobs) or wish.job_id is None

    def look() -> Draw:
        view = source.look()
        return lambda columns: _lines(view, wish, columns)

    watch(look, interval_s)
    return True
