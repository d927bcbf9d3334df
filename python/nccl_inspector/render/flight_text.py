# SPDX-License-Identifier: Apache-2.0
"""What flight-recorder dumps say, as text for a terminal and as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from nccl_inspector.flight.describe import SUSPECT_S, Told
from nccl_inspector.model.card import (
    CRITICAL,
    EXIT_CRITICAL,
    EXIT_HEALTHY,
    EXIT_NO_DATA,
    EXIT_WARNING,
)
from nccl_inspector.model.table_columns import make_columns
from nccl_inspector.model.wording import clock, cut_list, number, worst_first
from nccl_inspector.render.tables import Grid, Row
from nccl_inspector.render.text import finding_items
from nccl_inspector.render.text_layout import Item, Paint, join, paragraph, section

FORMAT = 1
_GROUPS_SHOWN = 8
_FINDINGS_SHOWN = 10
_COLUMNS = make_columns("group:", "ranks", "called by all", "called by any")


def exit_status(told: Told) -> int:
    """Return the exit status: 0: nothing stuck, 1: warnings, 2: stuck, 3: no dump was read."""
    if not told.dumps:
        return EXIT_NO_DATA
    if any(one.severity is CRITICAL for one in told.findings):
        return EXIT_CRITICAL
    return EXIT_WARNING if told.findings else EXIT_HEALTHY


def _head(told: Told) -> Iterator[Item]:
    words = [
        f"{told.dumps:,} of {number(told.ranks, 'rank')}",
        number(told.records, "operation"),
        f"format {cut_list(told.versions, 4)}" if told.versions else "",
        cut_list(told.backends, 4),
        f"NCCL {cut_list(told.libraries, 4)}" if told.libraries else "",
    ]
    yield paragraph("FLIGHT RECORDER  ", ", ".join(filter(None, words)), Paint.TITLE, indent=1)
    if told.written_s is not None:
        yield paragraph(" ", f"last dump written {clock(told.written_s)} UTC")


def _verdict(told: Told) -> Iterator[Item]:
    if not told.dumps:
        yield paragraph("NO DATA  ", "no dump could be read", Paint.WARNING)
    elif exit_status(told) != EXIT_CRITICAL:
        young = (
            f"; {number(told.in_flight, 'operation')} in flight for less than {SUSPECT_S:g} s"
            if told.in_flight
            else ""
        )
        yield paragraph("NOTHING STUCK  ", f"in what was dumped{young}", Paint.GOOD)


def _findings(told: Told) -> Iterator[Item]:
    if not told.findings:
        return
    yield paragraph("FINDINGS", "", Paint.TITLE)
    for at, one in enumerate(worst_first(told.findings)[:_FINDINGS_SHOWN], 1):
        yield from finding_items(at, one)
    if len(told.findings) > _FINDINGS_SHOWN:
        more = number(len(told.findings) - _FINDINGS_SHOWN, "finding")
        yield paragraph(" ", f"and {more} more; --json has all")
    ids = dict.fromkeys(one.rule for one in told.findings)
    yield paragraph(" what this means: ", f"nccl-inspector explain {' '.join(ids)}", indent=3)


def _groups(told: Told) -> Grid:
    # A group in which ranks are at different places says most.
    listed = sorted(told.groups, key=lambda one: (one.by_all == one.by_any, -one.ranks, one.name))
    rows = tuple(
        Row((one.name, f"{one.ranks:,}", f"{one.by_all:,}", f"{one.by_any:,}"))
        for one in listed[:_GROUPS_SHOWN]
    )
    rest = len(listed) - len(rows)
    lines = (f"{number(rest, 'more group')}; --json has all",) if rest else ()
    about = "number of the last collective that all, and that any of the ranks called"
    return Grid("GROUPS", about, _COLUMNS, rows, lines)


def render_flight(told: Told, columns: int, colour: bool = False) -> str:
    """Return the text, `columns` wide."""
    blocks = (
        list(_head(told)),
        list(_verdict(told)),
        list(_findings(told)),
        section(_groups(told)) if told.groups else [],
    )
    return join(blocks, columns, colour)


def flight_json(told: Told) -> str:
    """Return everything as one line of JSON, for programs."""
    value: dict[str, Any] = {"format": FORMAT, "exit_status": exit_status(told), **asdict(told)}
    return json.dumps(value) + "\n"
