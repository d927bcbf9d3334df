# SPDX-License-Identifier: Apache-2.0
"""Write the text that Prometheus reads: series, HELP and TYPE.

Values are never formatted again: their text is copied from the process's file.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nccl_inspector.exposition.metrics import Metric, load_metrics

NODELIST_CHARS_MAX = 256
_ESCAPED = re.compile(r"\\(.)")


class SeriesLine(NamedTuple):
    """One line; `text` is everything before the blank and the value."""

    metric: Metric
    text: str
    value: str


def escape(text: str) -> str:
    """Return `text` in the form that it has between the quotes of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def unescape(text: str) -> str:
    """Return the text that `escape` was given; `text` must be checked already."""
    return _ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def cut_nodelist(nodelist: str) -> str:
    """Return at most 256 characters: whole pieces between commas, then `,+K` for K left out."""
    if len(nodelist) <= NODELIST_CHARS_MAX:
        return nodelist
    room = NODELIST_CHARS_MAX - len(",+99999")
    end = nodelist.rfind(",", 0, room + 1)
    end = room if end < 0 else end
    return f"{nodelist[:end]},+{nodelist.count(',', end) or 1}"


def series_text(metric: Metric, values: Iterable[str]) -> str:
    """Return the name with its labels; `values` are escaped, in the order of the labels."""
    pairs = ",".join(
        f'{label}="{value}"' for label, value in zip(metric.labels, values, strict=True)
    )
    return f"{metric.name}{{{pairs}}}"


def make_series(name: str, labels: Mapping[str, str], value: str) -> SeriesLine:
    """Return a series of our own; `labels` are unescaped."""
    metric = load_metrics()[name]
    return SeriesLine(
        metric, series_text(metric, (escape(labels[one]) for one in metric.labels)), value
    )


def head(metric: Metric) -> str:
    """Return the HELP and TYPE lines of a family, without the last line's end."""
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type}"


def render(series: Iterable[SeriesLine]) -> bytes:
    """Return the text: families in the table's order, the first of equal series, no timestamps."""
    families: dict[str, dict[str, str]] = {}
    for metric, text, value in series:
        families.setdefault(metric.name, {}).setdefault(text, value)
    lines = []
    for name, metric in load_metrics().items():
        if name in families:
            lines.append(head(metric))
            lines += [f"{text} {value}" for text, value in families[name].items()]
    return ("\n".join(lines) + "\n").encode("utf-8") if lines else b""
