# SPDX-License-Identifier: Apache-2.0
"""Read the file of a process in `raw/` by a strict grammar, and put in the job's identity.

A file is rewritten each interval with the same series and new values. Therefore the name and labels
of a series are checked only when the series is new; later only its value is checked.
"""

import math
import re
from collections.abc import Mapping
from functools import cache

from nccl_inspector.errors import RefusedError
from nccl_inspector.exposition.metrics import Metric, load_metrics
from nccl_inspector.exposition.text import NODELIST_CHARS_MAX, SeriesLine, escape, series_text
from nccl_inspector.exposition.vocabulary import Vocabulary

# The plugin writes at most 250 series per GPU; the rest is room for series of its own health.
FILE_SERIES_MAX = 300
# A series has at most 14 labels of some 20 characters and one node list of 256.
LINE_CHARS_MAX = 2048
FILE_BYTES_MAX = 512 << 10
LABEL_CHARS_MAX = 128

_END = b"# EOF\n"

# Series by the line's text before the value. That text is unique: labels have one order, and there
# is one way to escape.
Known = Mapping[str, SeriesLine]

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*)\} ([^ ]+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(,|$)')
# Printable ASCII, with quote and backslash escaped.
_TEXT = r'([ !#-\[\]-~]*(?:\\["\\][ !#-\[\]-~]*)*)'
_VERSION = r"([0-9A-Za-z.+-]{1,32})"
_VERSIONS = ("plugin_version", "nccl_version")
_PRINTABLE = re.compile(r"[ -~]*")
_ESCAPE = re.compile(r"\\.?")
_VALUE = re.compile(r"[0-9]{1,20}(\.[0-9]{1,24})?(e[+-]?[0-9]{1,3})?")
_NEGATIVE = re.compile(r"-[0-9].*")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_TIMESTAMP = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\{.*\} [^ ]+ [^ ]+")


@cache
def _pattern(labels: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the text between the braces, with a group for each label's value."""
    values = (_VERSION if label in _VERSIONS else _TEXT for label in labels)
    return re.compile(
        ",".join(f'{label}="{value}"' for label, value in zip(labels, values, strict=True))
    )


def _why_no_number(text: str) -> str:
    if not text:
        return "syntax"
    return "negative" if _NEGATIVE.fullmatch(text) else "bad_number"


def check_value(text: str) -> None:
    """Check the text of a number.

    Raises:
        RefusedError: it is not a number, not finite, or below 0.
    """
    if _VALUE.fullmatch(text):
        if not math.isfinite(float(text)):
            raise RefusedError("not_finite")
    elif _NOT_FINITE.fullmatch(text):
        raise RefusedError("not_finite")
    else:
        raise RefusedError(_why_no_number(text))


def check_labels(text: str, names: tuple[str, ...], metric: str) -> tuple[str, ...]:
    """Return the label values, still escaped, from the text between the braces.

    Raises:
        RefusedError: it does not have exactly these labels in this order, or a value is not
            allowed. `metric` is for the message.
    """
    match = _pattern(names).fullmatch(text)
    if match is None:
        raise _why_not(text, names, metric)
    values = match.groups()
    if max(map(len, values)) > LABEL_CHARS_MAX:
        for name, value in zip(names, values, strict=True):
            if len(value) > (NODELIST_CHARS_MAX if name == "slurm_nodelist" else LABEL_CHARS_MAX):
                raise RefusedError("bad_label_value", f"{name} is too long")
    return values


def _why_not(text: str, wanted: tuple[str, ...], metric: str) -> RefusedError:
    """Return why labels do not match their pattern."""
    names, values, at = [], [], 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None or (match[3] == "," and match.end() == len(text)):
            return RefusedError("syntax", metric)
        names.append(match[1])
        values.append(match[2])
        at = match.end()
    if len(set(names)) < len(names):
        return RefusedError("duplicate_label", metric)
    if set(names) - set(wanted):
        return RefusedError("unknown_label", metric)
    if set(wanted) - set(names):
        return RefusedError("missing_label", metric)
    if tuple(names) != wanted:
        return RefusedError("label_order", metric)
    for name, value in zip(names, values, strict=True):
        escapes = _ESCAPE.findall(value)
        if _PRINTABLE.fullmatch(value) and not {*escapes} <= {"\\\\", '\\"'}:
            return RefusedError("bad_escape", name)
    return RefusedError("bad_label_value", metric)


def _check_comment(line: str, metrics: Mapping[str, Metric]) -> None:
    """Accept only HELP and TYPE of our metrics; what is published comes from our own table."""
    words = line.split(" ", 3)
    if len(words) < 4 or words[:2] not in (["#", "HELP"], ["#", "TYPE"]) or words[2] not in metrics:
        raise RefusedError("comment")


def split_line(line: str) -> tuple[Metric, str, str]:
    """Return a line's metric, the text between its braces and its value; both texts are unchecked.

    Raises:
        RefusedError: it is not a line of a metric that the plugin writes.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise RefusedError("timestamp" if _TIMESTAMP.fullmatch(line) else "syntax")
    metric = load_metrics().get(match[1])
    if metric is None or metric.source != "plugin":
        raise RefusedError("unknown_metric")
    return metric, match[2], match[3]


def _new_series(line: str, identity: Mapping[str, str], vocabulary: Vocabulary) -> SeriesLine:
    metric, labels, value = split_line(line)
    values = check_labels(labels, metric.labels, metric.name)
    check_value(value)
    words = (
        identity[label] if label in identity else vocabulary.word(label, own)
        for label, own in zip(metric.labels, values, strict=True)
    )
    return SeriesLine(metric, series_text(metric, words), value)


def text_lines(data: bytes) -> list[str]:
    """Return the lines of a file; the last item is what follows the last line end.

    Raises:
        RefusedError: the file is not ASCII, or a line is too long.
    """
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError as err:
        raise RefusedError("not_ascii") from err
    if max(map(len, lines)) > LINE_CHARS_MAX:
        raise RefusedError("long_line")
    return lines


def parse_file(
    data: bytes, identity: Mapping[str, str], known: Known, vocabulary: Vocabulary | None = None
) -> dict[str, SeriesLine]:
    """Return the series of one process's file, by their text in it.

    `identity`: labels (unescaped) that replace those of the file. `known`: what this function
    returned for the previous version of the file, with the same identity. `vocabulary`: that of the
    job; None: a new one.

    Raises:
        RefusedError: something is not as the plugin writes it; then nothing of the file is used.
    """
    if not data.endswith(_END) or data[-len(_END) - 1 : -len(_END)] not in (b"\n", b""):
        raise RefusedError("torn", "no last line `# EOF`")
    # The plugin pads a file with blank lines before the last one, so that its size stays the same.
    data = data[: -len(_END)].rstrip(b"\n")
    escaped = {label: escape(value) for label, value in identity.items()}
    vocabulary = vocabulary or Vocabulary()
    found: dict[str, SeriesLine] = {}
    for line in text_lines(data) if data else ():
        text, _, value = line.rpartition(" ")
        series = known.get(text)
        if series is None:
            if line.startswith("#"):
                _check_comment(line, load_metrics())
                continue
            series = _new_series(line, escaped, vocabulary)
        elif series.value != value:
            check_value(value)
            series = SeriesLine(series.metric, series.text, value)
        if text in found:
            raise RefusedError("duplicate_series", series.metric.name)
        if len(found) == FILE_SERIES_MAX:
            raise RefusedError("too_many_series")
        found[text] = series
    return found
