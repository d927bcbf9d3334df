# SPDX-License-Identifier: Apache-2.0
"""How long each process was in operations, by window: `model.Union`, made from its lines.

A box has this exactly. From lines it is the sum of the operations' times, at most the window. That
is too much if operations overlap. So a stop of the job may be missed, but is never invented. An
operation counts in the window in which it ended; a longer one in all windows that it ran in.
"""

from collections import defaultdict

import numpy as np

from nccl_inspector.box.layout import UNION_WINDOWS
from nccl_inspector.capture.contents import Capture, Process
from nccl_inspector.capture.first_look import BASE_WINDOW_S, LONG_MAX
from nccl_inspector.model.process import NS_PER_S, Union, UnionWindow

_SPAN = "select min(first_us) // 1000000, max(last_us) // 1000000 from ended"
_SHORT = f"""
select hostname, pid, place * {BASE_WINDOW_S} // $1 as place, sum(n)::bigint, sum(busy)::bigint
from short group by hostname, pid, place * {BASE_WINDOW_S} // $1
"""
_LONG = f"select hostname, pid, when_us, time_ns from long limit {LONG_MAX}"


def _add_long(busy_ns: dict[int, int], end_ns: int, time_ns: int, window_ns: int) -> None:
    """Spread the time of an operation over the windows that it ran in."""
    start_ns = end_ns - time_ns
    for place in range(start_ns // window_ns, end_ns // window_ns + 1):
        inside = min(end_ns, (place + 1) * window_ns) - max(start_ns, place * window_ns)
        busy_ns[place] += max(inside, 0)


def _window_s(first_s: int, last_s: int) -> int:
    """Return the length of windows in seconds, so that there are no more windows than a box has."""
    window_s = BASE_WINDOW_S
    while last_s // window_s - first_s // window_s + 1 > UNION_WINDOWS:
        window_s *= 2
    return window_s


def find_unions(capture: Capture) -> dict[Process, Union]:
    """Return the windows of each process; empty if the lines do not say when operations ended."""
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
        end_ns = end_us * 1000  # calculated here, because an invented time would overflow in SQL
        begin_ns = max(end_ns - time_ns, first_s * NS_PER_S)  # the line may give any time
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
