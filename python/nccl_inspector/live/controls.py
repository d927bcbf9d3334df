# SPDX-License-Identifier: Apache-2.0
"""What the user of `nccl-inspector top` has chosen with the keys; it neither reads nor draws."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from nccl_inspector.live.view import LiveJob, LiveRank, View, natural

Row = TypeVar("Row", LiveJob, LiveRank)

_FILTER_MAX = 40  # characters

HELP = (
    "Up, Down    choose a job, or scroll its ranks (also k, j; PgUp and PgDn: by ten)",
    "Enter       show the ranks of the chosen job; Esc goes back to all jobs",
    "s           sort by the next of: worst first, ops/s, waiting, oldest, name",
    "/           show only lines with a text: job, user, partition, rank, node, GPU, trouble",
    "q           quit",
)


class Order(StrEnum):
    """What jobs and ranks are sorted by."""

    WORST = "worst first"
    OPERATIONS = "ops/s"
    WAITING = "waiting"
    OLDEST = "oldest"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Controls:
    """The state of the keys."""

    job_id: int | None = None  # the job whose ranks are shown; None: all jobs
    order: Order = Order.WORST
    text: str = ""  # what the filter looks for
    typing: bool = False  # keys go to the filter
    chosen: int | None = None  # the job that Enter would open
    scrolled: int = 0  # lines
    helping: bool = False
    quit: bool = False


_LINES = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdn": 10}


def press(controls: Controls, key: str, view: View) -> Controls:
    """Return the state after a key (see `keyboard`), while `view` is shown."""
    if controls.typing:
        return _type(controls, key)
    if controls.helping:
        return replace(controls, helping=False)
    if key in _LINES:
        return _move(controls, _LINES[key], view)
    return _command(controls, key)


def _command(controls: Controls, key: str) -> Controls:
    match key:
        case "q":
            return replace(controls, quit=True)
        case "s":
            orders = list(Order)
            after = orders[(orders.index(controls.order) + 1) % len(orders)]
            return replace(controls, order=after, scrolled=0)
        case "/":
            return replace(controls, typing=True, text="", scrolled=0)
        case "?" | "h":
            return replace(controls, helping=True)
        case "esc":
            return _back(controls)
        case "enter" if controls.job_id is None and controls.chosen is not None:
            return replace(controls, job_id=controls.chosen, text="", scrolled=0)
    return controls


def _type(controls: Controls, key: str) -> Controls:
    match key:
        case "enter":
            return replace(controls, typing=False)
        case "esc":
            return replace(controls, typing=False, text="")
        case "backspace":
            return replace(controls, text=controls.text[:-1])
    if len(key) == 1 and key.isprintable() and len(controls.text) < _FILTER_MAX:
        return replace(controls, text=controls.text + key)
    return controls


def _back(controls: Controls) -> Controls:
    """Return the state with the last narrowing taken back: first the filter, then the job."""
    if controls.text or controls.job_id is None:
        return replace(controls, text="", scrolled=0)
    return replace(controls, job_id=None, chosen=controls.job_id, scrolled=0)


def _move(controls: Controls, lines: int, view: View) -> Controls:
    if controls.job_id is not None:
        return replace(controls, scrolled=max(0, controls.scrolled + lines))
    ids = [job.id for job in arrange(view, controls).jobs]
    if not ids:
        return controls
    at = ids.index(controls.chosen) + lines if controls.chosen in ids else 0
    return replace(controls, chosen=ids[min(max(at, 0), len(ids) - 1)])


def arrange(view: View, controls: Controls) -> View:
    """Return the view sorted and filtered as the user wants it.

    All jobs are filtered by their own words; the ranks of one job by theirs.
    """
    if controls.job_id is None:
        jobs = tuple(job for job in view.jobs if _has(controls.text, str(job.id), *_job_words(job)))
        return replace(view, jobs=_sorted(jobs, controls.order, lambda job: (job.id,)))
    return replace(view, jobs=tuple(_narrowed(job, controls) for job in view.jobs))


def _narrowed(job: LiveJob, controls: Controls) -> LiveJob:
    ranks = tuple(rank for rank in job.ranks if _has(controls.text, *_rank_words(rank)))
    return replace(job, ranks=_sorted(ranks, controls.order, lambda rank: natural(rank.name)))


def _job_words(job: LiveJob) -> Iterable[str]:
    return (job.user, job.partition, job.cluster, *(one.words for one in job.troubles))


def _rank_words(rank: LiveRank) -> Iterable[str]:
    return (rank.name, rank.node, rank.gpu, *(one.words for one in rank.troubles))


def _has(text: str, *words: str) -> bool:
    return any(text.lower() in word.lower() for word in words)


def _sorted(
    rows: tuple[Row, ...], order: Order, name: Callable[[Row], tuple[Any, ...]]
) -> tuple[Row, ...]:
    """Return the rows in an order, what is not known last; WORST is how the view comes."""
    match order:
        case Order.WORST:
            return rows
        case Order.NAME:
            return tuple(sorted(rows, key=name))
    return tuple(sorted(rows, key=lambda row: -_figure(row, order)))


def _figure(row: LiveJob | LiveRank, order: Order) -> float:
    figure: float | None = None
    if order == Order.OLDEST:
        figure = row.oldest_s
    elif row.flow is not None:
        figure = row.flow.waiting if order == Order.WAITING else row.flow.operations_per_s
    return -1.0 if figure is None else figure
