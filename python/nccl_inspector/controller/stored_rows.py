# SPDX-License-Identifier: Apache-2.0
"""The rows for the index of a report, and of those that are stored."""

import grp
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.model.card import Card
from nccl_inspector.render.json import BYTES_MAX, card_from_json
from nccl_inspector.store.card_rows import CardRows, rows_of
from nccl_inspector.store.place import IndexPlace


def group_id(name: str) -> int | None:
    """Return the gid for the setting report_group; None: the setting is empty.

    Raises:
        InspectorError: there is no such group.
    """
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError as err:
        raise InspectorError(f"report_group: there is no group {name!r}") from err


def rows_for(card: Card, place: IndexPlace) -> CardRows:
    """Return the rows of a card, under the name that the site gives its cluster in this index."""
    rows = rows_of(card)
    return replace(rows, job=replace(rows.job, cluster=place.cluster)) if place.cluster else rows


def stored_rows(file: Path, place: IndexPlace) -> CardRows:
    """Return the rows of a stored report.

    Raises:
        RefusedError: the file is not a stored report.
        OSError: it cannot be read.
    """
    with file.open("rb") as stored:
        return rows_for(card_from_json(stored.read(BYTES_MAX + 1)), place)


def all_stored(place: IndexPlace) -> Iterator[CardRows | None]:
    """Yield the rows of each stored report, in the order of their writing; None: unusable."""
    found = [
        path
        for folder in place.store_dir.iterdir()
        if folder.name.isdigit() and folder.is_dir()
        for path in folder.glob("*.json")
        if path.stem.isdigit()
    ]
    for file in sorted(found, key=lambda path: path.stat().st_mtime_ns):
        try:
            yield stored_rows(file, place)
        except (RefusedError, OSError):
            yield None
