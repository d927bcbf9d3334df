# SPDX-License-Identifier: Apache-2.0
"""Choose which series of a job to drop if its text exceeds its share of a node's page.

Series are dropped whole. The most detailed are dropped first: those by peer, then those by message
size, beginning with the families that say least. The series that tell whether the job makes
progress are dropped last.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from nccl_inspector.exposition.metrics import Metric, load_metrics
from nccl_inspector.exposition.text import SeriesLine, head

# A value counts as at least this many characters. Otherwise a value that gains a digit could push
# another series out, which would come back in the next pass.
VALUE_CHARS = 24

# In the order of dropping; a family belongs to the first entry that it matches.
_GROUPS = ("network_state", "network")
_BY_SIZE = ("_untimed_bytes", "_untimed_operations", "_wait_", "_busy_seconds", "_exec_time_",
            "_bytes_total", "_operations_total", "_bus_bandwidth_")  # fmt: skip
_OTHERS = ("process_reason", "build", "gpu_info", "process", "communicator", "job_unit", "job",
           "job_info")  # fmt: skip
_INFLIGHT = ("_inflight_seconds", "_last_progress_", "_last_sequence")


def importance(metric: Metric) -> int:
    """Return a number that is larger for families that are kept longer."""
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
    """Return how many bytes the line of a series counts as."""
    # Name and labels may contain text from Slurm that is not ASCII.
    text = series.text
    size = len(text) if text.isascii() else len(text.encode())
    return size + max(len(series.value), VALUE_CHARS) + 2


def text_bytes(series: Iterable[SeriesLine]) -> int:
    """Return the most bytes that the text of these series can take, with HELP and TYPE."""
    families: dict[str, Metric] = {}
    size = 0
    for one in series:
        families[one.metric.name] = one.metric
        size += series_bytes(one)
    return size + sum(map(_head_bytes, families.values()))


def _in_turns(family: Sequence[tuple[int, str]]) -> list[int]:
    """Return the places of a family's series in an order in which the sources take turns."""
    before: Counter[str] = Counter()
    order = []
    for place, source in family:
        order.append((before[source], place))
        before[source] += 1
    return [place for _, place in sorted(order)]


def thin(series: Sequence[tuple[str, SeriesLine]], room_bytes: int) -> list[SeriesLine]:
    """Return the series whose text fits into `room_bytes`, in their original order.

    `series`: each with its source (the file of a process). Within a family every source loses the
    same number, so that no process of a job pushes out the series of another.
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
