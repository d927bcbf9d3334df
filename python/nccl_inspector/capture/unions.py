# SPDX-License-Identifier: Apache-2.0
"""How long each process was in operations, window by window: `model.Union`, by its lines.

A box has this exactly. Of lines it is the sum of the times of operations, at most the window:
where operations overlap that is too much, and a stop of the job is rather missed than made up.
"""

from collections import defaultdict

import numpy as np

from nccl_inspector.box.layout import UNION_WINDOWS
from nccl_inspector.capture.engine import Capture, Process
from nccl_inspector.model.process import NS_PER_S, Union, UnionWindow

_WINDOW_S = 10
# An operation counts in the window in which it ended; a longer one in all that it ran through.
_LONG_NS = NS_PER_S
_LONG_MAX = 1_000_000  # rows
_ENDED = "from ops where when_us > 0 and time_ns is not null"
_SPAN = f"select min(when_us) // 1000000, max(when_us) // 1000000 {_ENDED}"
_SHORT = f"""
select hostname, pid, when_us // 1000000 // $1 as place,
    count(*) filter (coalesce(algo, '') <> 'GROUP') as operations,
    sum(if(time_ns < {_LONG_NS}, time_ns, 0))::bigint as busy_ns
{_ENDED} group by all
"""
_LONG = f"""
select hostname, pid, when_us, time_ns
{_ENDED} and time_ns >= {_LONG_NS} limit {_LONG_MAX}
"""


def _add_long(busy_ns: dict[int, int], end_ns: int, time_ns: int, window_ns: int) -> None:
    """Spread the time of an operation over the windows that it ran through."""
    start_ns = end_ns - time_ns
    for place in range(start_ns // window_ns, end_ns // window_ns + 1):
        inside = min(end_ns, (place + 1) * window_ns) - max(start_ns, place * window_ns)
        busy_ns[place] += max(inside, 0)


def _window_s(first_s: int, last_s: int) -> int:
    """Return how long windows are, so that there are no more than a box has."""
    window_s = _WINDOW_S
    while last_s // window_s - first_s // window_s + 1 > UNION_WINDOWS:
        window_s *= 2
    return window_s


def find_unions(capture: Capture) -> dict[Process, Union]:
    """Return the windows of each process; empty where lines do not say when operations ended."""
    span = capture.sql.execute(_SPAN).fetchone()
    if span is None or span[0] is None:
        return {}
    first_s, last_s = span
    window_s = _window_s(first_s, last_s)
    window_ns = window_s * NS_PER_S
    operations: dict[Process, dict[int, int]] = defaultdict(dict)
    busy_ns: dict[Process, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for host, pid, place, count, ns in capture.sql.execute(_SHORT, [window_s]).fetchall():
        operations[host, pid][place] = count
        busy_ns[host, pid][place] += ns
    for host, pid, end_us, time_ns in capture.sql.execute(_LONG).fetchall():
        end_ns = end_us * 1000  # here, since a time that somebody made up overflows in SQL
        begin_ns = max(end_ns - time_ns, first_s * NS_PER_S)  # what it says may be anything
        _add_long(busy_ns[host, pid], end_ns, end_ns - begin_ns, window_ns)
    found = {}
    for who, ended in operations.items():
        places = np.unique([*ended, *busy_ns[who]]).tolist()
        windows = tuple(
            UnionWindow(
                place * window_s, ended.get(place, 0), 0, min(busy_ns[who][place], window_ns), 0
            )
            for place in places
        )
        found[who] = Union(0, window_s, windows)
    return found
