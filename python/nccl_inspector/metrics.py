# SPDX-License-Identifier: Apache-2.0
"""The tables of metrics and labels: what may be published, under which HELP and TYPE."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of metrics.tsv, with its group's labels in the order in which they are written."""

    name: str
    type: str
    group: str
    source: str
    help: str
    labels: tuple[str, ...]


def read_table(table: str) -> list[list[str]]:
    """Return the cells of a table of ours; a line that begins with # is none of it."""
    text = (Path(__file__).parent / table).read_text("ascii")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]


@cache
def load_metrics() -> dict[str, Metric]:
    """Return every metric by name, in the order of the table."""
    groups = {group: tuple(labels.split(" ")) for group, labels in read_table("labels.tsv")}
    return {
        name: Metric(name, kind, group, source, text, groups[group])
        for name, kind, group, source, text in read_table("metrics.tsv")
    }
