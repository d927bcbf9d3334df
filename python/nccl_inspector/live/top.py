# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector top`: look and show the result, once or repeatedly."""

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from nccl_inspector.live.controls import HELP, Controls, arrange, press
from nccl_inspector.live.nodeview import NodeView
from nccl_inspector.live.screen import Next, can_redraw, fit, print_once, watch
from nccl_inspector.live.table import ScreenLine, render
from nccl_inspector.live.view import View
from nccl_inspector.model.table_columns import cut

INTERVAL_S, PROMETHEUS_INTERVAL_S = 2.0, 10.0
WIDE_COLUMNS = 200  # if the width is not known


class Source(Protocol):
    """Something that can be looked at repeatedly."""

    def choose(self, job_id: int | None) -> None:
        """Look from now on at one job, or at all."""

    def look(self) -> View:
        """Return what the jobs do now."""


@dataclass(frozen=True, slots=True)
class TopOptions:
    """The command's arguments."""

    job_id: int | None
    interval_s: float
    once: bool
    as_json: bool


def _is_complete(view: View, source: Source) -> bool:
    """Tell whether a view has its rates; boxes need two looks for them."""
    return view.span_s is not None or not isinstance(source, NodeView)


def _look_once(source: Source, interval_s: float) -> View:
    view = source.look()
    if not _is_complete(view, source) and view.jobs:
        time.sleep(interval_s)
        view = source.look()
    return view


class _Session:
    """What is on the screen while the user presses keys."""

    def __init__(self, source: Source, job_id: int | None) -> None:
        self._source = source
        self._controls = Controls(job_id=job_id)
        self._view: View | None = None

    def look(self) -> None:
        """Read what the chosen jobs do now."""
        self._view = self._source.look()

    def press(self, key: str) -> Next:
        """Take a key; another job has to be looked at first."""
        before = self._controls
        if self._view is not None:
            self._controls = press(before, key, self._view)
        if self._controls.quit:
            return Next.QUIT
        if self._controls.job_id == before.job_id:
            return Next.DRAW
        self._source.choose(self._controls.job_id)
        return Next.LOOK

    def draw(self, columns: int, rows: int) -> Sequence[ScreenLine]:
        """Return the view as the user wants it, above one line of keys."""
        if self._view is None:
            return []
        controls = self._controls
        keys = ScreenLine(cut(_keys(controls), columns))
        if controls.helping:
            return [*fit([ScreenLine(line) for line in HELP], rows - 1), keys]
        view = arrange(self._view, controls)
        nothing = {"nothing": f'no job has "{controls.text}"'} if controls.text else {}
        lines = render(view, controls.job_id is not None, columns, controls.chosen, **nothing)
        return [*fit(lines, rows - 1, controls.scrolled), keys]


def _keys(controls: Controls) -> str:
    if controls.typing:
        return f"show only lines with: {controls.text}_   (Enter: done, Esc: all)"
    if controls.helping:
        return "any key: back"
    back = "Esc all jobs" if controls.job_id is not None else "Enter ranks of a job"
    only = f'  only "{controls.text}" (Esc: all)' if controls.text else ""
    return f"q quit  s sort: {controls.order}  / filter  {back}  ? keys{only}"


def run_top(source: Source, options: TopOptions) -> bool:
    """Show what the jobs do; return False if one job was asked for and does not exist.

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
            print_once(render(view, options.job_id is not None, columns))
        return bool(view.jobs) or options.job_id is None
    watch(_Session(source, options.job_id), options.interval_s)
    return True
