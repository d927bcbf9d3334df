# SPDX-License-Identifier: Apache-2.0
"""Which series of a job go first when its text is larger than its share of a node's page.

Whole series go, never a part of one. The most detailed go first: what is told by peer, then by
message size, of those the families that say least; what tells whether the job gets on goes last.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from nccl_inspector.exposition.metrics import Metric, load_metrics
from nccl_inspector.exposition.text import SeriesLine, head

# A series is counted as if its value had so many characters, if it has fewer: a value that gains
# a digit must not push another series out, and that one back in with the next pass.
VALUE_CHARS = 24

# What goes first comes first; a family is in the first row that it matches.
_GROUPS = ("network_state", "network")
_BY_SIZE = ("_untimed_bytes", "_untimed_operations", "_wait_", "_busy_seconds", "_exec_time_",
            "_bytes_total", "_operations_total", "_bus_bandwidth_")  # fmt: skip
_OTHERS = ("process_reason", "build", "gpu_info", "process", "communicator", "job_unit", "job",
           "job_info")  # fmt: skip
_INFLIGHT = ("_inflight_seconds", "_last_progress_", "_last_sequence")


def importance(metric: Metric) -> int:
    """Return a number that is larger for families that should stay longer."""
    if metric.group in _GROUPS:
        return _GROUPS.index(metric.group)
    if metric.group in ("collective", "p2p"):
        found = next((place for place, part in enumerate(_BY_SIZE) if part in metric.name), 0)
        return len(_GROUPS) + found
    others = _OTHERS.index(metric.group) if metric.group in _OTHERS else 0
    last = len(_OTHERS) if any(part in metric.name for part in _INFLIGHT) else 0
    return len(_GROUPS) + len(_BY_SIZE) + others + last


def _head_bytes(metric: Metric) -> int:
    return len(head(metric).encode()) + 1


def series_bytes(series: SeriesLine) -> int:
    """Return how many bytes the line of a series counts for."""
    # Name and labels may hold what Slurm said, which need not be ASCII.
    text = series.text
    size = len(text) if text.isascii() else len(text.encode())
    return size + max(len(series.value), VALUE_CHARS) + 2


def text_bytes(series: Iterable[SeriesLine]) -> int:
    """Return how many bytes the text of these series takes at most, with HELP and TYPE."""
    families: dict[str, Metric] = {}
    size = 0
    for one in series:
        families[one.metric.name] = one.metric
        size += series_bytes(one)
    return size + sum(map(_head_bytes, families.values()))


def _in_turns(family: Sequence[tuple[int, str]]) -> list[int]:
    """Return the places of a family's series so that the sources take turns."""
    before: Counter[str] = Counter()
    order = []
    for place, source in family:
        order.append((before[source], place))
        before[source] += 1
    return [place for _, place in sorted(order)]


def thin(series: Sequence[tuple[str, SeriesLine]], room_bytes: int) -> list[SeriesLine]:
    """Return the series whose text fits into `room_bytes`, in the order in which they came.

    `series`: each with its source (the file of a process). Within a family every source loses
    as many, so no process of a job pushes out another's.
    """
    families: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for place, (source, one) in enumerate(series):
        families[one.metric.name].append((place, source))
    by_importance = sorted(families.items(), key=lambda item: importance(load_metrics()[item[0]]))
    left = room_bytes
    kept: set[int] = set()
    for name, family in reversed(by_importance):
        left -= _head_bytes(load_metrics()[name])
        for place in _in_turns(family):
            left -= series_bytes(series[place][1])
            if left < 0:
                return [series[place][1] for place in sorted(kept)]
            kept.add(place)
    return [one for _, one in series]
