# SPDX-License-Identifier: Apache-2.0
"""The tables of metrics and labels: what may be published, with which HELP and TYPE."""

from dataclasses import dataclass
from functools import cache

from nccl_inspector.system.tsv import read_tsv


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of metrics.tsv, with the labels of its group in the order of writing."""

    name: str
    type: str
    group: str
    source: str
    help: str
    labels: tuple[str, ...]


@cache
def load_metrics() -> dict[str, Metric]:
    """Return all metrics by name, in the order of the table."""
    rows = read_tsv("exposition/labels.tsv")
    groups = {group: tuple(labels.split(" ")) for group, labels in rows}
    return {
        name: Metric(name, kind, group, source, text, groups[group])
        for name, kind, group, source, text in read_tsv("exposition/metrics.tsv")
    }
