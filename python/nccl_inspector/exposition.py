# SPDX-License-Identifier: Apache-2.0
"""The text that the plugin writes and node_exporter reads: one strict grammar, one writer.

Values are never formatted anew: their text is copied from the process's file.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nccl_inspector.errors import RefusedError
from nccl_inspector.metrics import Metric, load_metrics

# The plugin stops at 250 series a GPU; the rest is room for its own health.
FILE_SERIES_MAX = 300
# A series has at most 14 labels of some 20 characters and one node list of 256.
LINE_CHARS_MAX = 2048
FILE_BYTES_MAX = 512 << 10
LABEL_CHARS_MAX = 128
NODELIST_CHARS_MAX = 256

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} ([^ ]+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(,|$)')
_PRINTABLE = re.compile(r"[ -~]*")
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}")
_ESCAPE = re.compile(r"\\.?")
_VALUE = re.compile(r"[0-9]{1,20}(\.[0-9]{1,24})?(e[+-]?[0-9]{1,3})?")
_NEGATIVE = re.compile(r"-[0-9].*")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TIMESTAMP = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\{.*\} [^ ]+ [^ ]+")


@dataclass(frozen=True, slots=True)
class Series:
    """One line: label values are in the order of the metric's labels, and escaped."""

    metric: Metric
    labels: tuple[str, ...]
    value: str


def escape(text: str) -> str:
    """Return `text` as it stands between the quotes of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def cut_nodelist(nodelist: str) -> str:
    """Return at most 256 characters: whole pieces between commas, then `,+K` for the K left out."""
    if len(nodelist) <= NODELIST_CHARS_MAX:
        return nodelist
    room = NODELIST_CHARS_MAX - len(",+99999")
    end = nodelist.rfind(",", 0, room + 1)
    end = room if end < 0 else end
    return f"{nodelist[:end]},+{nodelist.count(',', end) or 1}"


def _check_value(text: str) -> None:
    if _VALUE.fullmatch(text):
        if not math.isfinite(float(text)):
            raise RefusedError("not_finite")
    elif _NOT_FINITE.fullmatch(text):
        raise RefusedError("not_finite")
    else:
        raise RefusedError("negative" if _NEGATIVE.fullmatch(text) else "bad_number")


def _check_label(name: str, value: str) -> None:
    if not _PRINTABLE.fullmatch(value):
        raise RefusedError("bad_label_value", name)
    if name in ("plugin_version", "nccl_version") and not _VERSION.fullmatch(value):
        raise RefusedError("bad_label_value", name)
    if "\\" in value and any(match[0] not in ("\\\\", '\\"') for match in _ESCAPE.finditer(value)):
        raise RefusedError("bad_escape", name)
    if len(value) > (NODELIST_CHARS_MAX if name == "slurm_nodelist" else LABEL_CHARS_MAX):
        raise RefusedError("bad_label_value", f"{name} is too long")


def _labels(text: str, metric: Metric) -> tuple[str, ...]:
    names, values, at = [], [], 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None or (match[3] == "," and match.end() == len(text)):
            raise RefusedError("syntax", metric.name)
        names.append(match[1])
        values.append(match[2])
        at = match.end()
    if tuple(names) != metric.labels:
        raise _label_error(names, metric)
    for name, value in zip(names, values, strict=True):
        _check_label(name, value)
    return tuple(values)


def _label_error(names: list[str], metric: Metric) -> RefusedError:
    if len(set(names)) < len(names):
        return RefusedError("duplicate_label", metric.name)
    if set(names) - set(metric.labels):
        return RefusedError("unknown_label", metric.name)
    if set(metric.labels) - set(names):
        return RefusedError("missing_label", metric.name)
    return RefusedError("label_order", metric.name)


def _check_comment(line: str, metrics: Mapping[str, Metric]) -> None:
    """HELP and TYPE of our metrics may stand there; what is published comes from our table."""
    words = line.split(" ", 3)
    if len(words) < 4 or words[:2] not in (["#", "HELP"], ["#", "TYPE"]) or words[2] not in metrics:
        raise RefusedError("comment")


def _series(line: str, metrics: Mapping[str, Metric]) -> Series:
    match = _LINE.fullmatch(line)
    if match is None:
        raise RefusedError("timestamp" if _TIMESTAMP.fullmatch(line) else "syntax")
    metric = metrics.get(match[1])
    if metric is None or metric.source != "plugin":
        raise RefusedError("unknown_metric")
    labels = _labels(match[2], metric)
    _check_value(match[3])
    return Series(metric, labels, match[3])


def parse_file(data: bytes) -> list[Series]:
    """Return the series of one process's file.

    Raises:
        RefusedError: anything is not as the plugin writes it; nothing of the file is taken then.
    """
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError as err:
        raise RefusedError("not_ascii") from err
    if lines[-2:] != ["# EOF", ""]:
        raise RefusedError("torn", "no last line `# EOF`")
    metrics = load_metrics()
    found: dict[tuple[str, tuple[str, ...]], Series] = {}
    for line in lines[:-2]:
        if len(line) > LINE_CHARS_MAX:
            raise RefusedError("long_line")
        if line.startswith("#"):
            _check_comment(line, metrics)
            continue
        if len(found) == FILE_SERIES_MAX:
            raise RefusedError("too_many_series")
        series = _series(line, metrics)
        if found.setdefault((series.metric.name, series.labels), series) is not series:
            raise RefusedError("duplicate_series", series.metric.name)
    return list(found.values())


def identify(series: Series, identity: Mapping[str, str]) -> Series:
    """Return the series with the labels that `identity` has (unescaped) in place of its own."""
    names = series.metric.labels
    if identity.keys().isdisjoint(names):
        return series
    pairs = zip(names, series.labels, strict=True)
    return replace(
        series,
        labels=tuple(escape(identity[name]) if name in identity else own for name, own in pairs),
    )


def make_series(name: str, labels: Mapping[str, str], value: str) -> Series:
    """Return a series of our own; `labels` are unescaped."""
    metric = load_metrics()[name]
    return Series(metric, tuple(escape(labels[label]) for label in metric.labels), value)


def render(series: Iterable[Series]) -> bytes:
    """Return the text: families in the table's order, the first of duplicates, no timestamps."""
    families: dict[str, dict[tuple[str, ...], str]] = {name: {} for name in load_metrics()}
    for one in series:
        families[one.metric.name].setdefault(one.labels, one.value)
    lines = []
    for name, members in families.items():
        if not members:
            continue
        metric = load_metrics()[name]
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.type}"]
        for labels, value in members.items():
            pairs = ",".join(
                f'{label}="{text}"' for label, text in zip(metric.labels, labels, strict=True)
            )
            lines.append(f"{name}{{{pairs}}} {value}")
    return ("\n".join(lines) + "\n").encode("utf-8") if lines else b""
