# SPDX-License-Identifier: Apache-2.0
"""Choose which operations of a capture are judged as exact records.

The records of all ranks are judged together (analysis/replay/). That takes much longer than reading
lines. So of a large capture only the operations in some bursts of Unix time are taken. The bursts
are the same for all processes, by the rule in plugin/box/box.h.
"""

import numpy as np

from nccl_inspector.analysis.replay.arrays import Ints
from nccl_inspector.analysis.replay.records import RECORDS_MAX
from nccl_inspector.box.sample_table import LENGTH_BITS_MIN, PERIOD_BITS_MAX, PERIODS_MIN
from nccl_inspector.capture.contents import Bursts, Capture
from nccl_inspector.capture.first_look import SLOT_BITS

# Operations of each process that are judged; replay.records has the limit for all processes
# together.
_PROCESS_ROWS_MAX, _PROCESS_ROWS_MIN = 32768, 256
_ALL_BITS = 34  # length and period of bursts if all operations are taken
_SLOTS = """
select slot, greatest(sum(n), 0)::bigint as operations from slots group by slot order by slot
"""
_PROCESSES = "select count(*) from (select distinct hostname, pid from counted)"
_PAIRS = """
select sum(n) filter (func = 'Send'), sum(n) filter (func = 'Recv'),
    list(distinct hostname), list(distinct pid)
from pairs group by comm, source, target
"""
_GROUPS = """
select min(n), max(n), list(distinct hostname), list(distinct pid) from groups group by comm, func
"""


def choose_bursts(slots: Ints, counts: Ints, most: int) -> Bursts:
    """Return bursts with about `most` operations or fewer.

    `slots`: Unix times in units of 2^SLOT_BITS ns, in increasing order. `counts`: the operations
    that ended in each slot.
    """
    length, period = _ALL_BITS, _ALL_BITS
    while period < PERIOD_BITS_MAX:
        part = min(2.0 ** (length - SLOT_BITS), 1.0)  # the part of a slot that is in a burst
        if part * int(counts.sum()) <= most:
            break
        periods = len(np.unique(slots >> (period - SLOT_BITS)))
        if periods < PERIODS_MIN and length > LENGTH_BITS_MIN:
            length -= 1
        else:
            period += 1
        inside = slots & ((1 << (period - SLOT_BITS)) - 1)
        kept = inside < max((1 << length) >> SLOT_BITS, 1)
        slots, counts = slots[kept], counts[kept]
    return Bursts(length, period)


def _why_unjoinable(capture: Capture) -> str:
    """Return why Sends, Recvs and groups cannot be joined over the ranks; empty: they can.

    They are joined by counting, so both sides need the same first line. A rank that was killed
    lacks only the last lines, which is no problem.
    """
    holed = capture.holed
    if not holed:
        return ""
    odd = 0
    for query in (_PAIRS, _GROUPS):
        for one, other, hosts, pids in capture.sql.execute(query).fetchall():
            differ = one is not None and other is not None and one != other
            odd += differ and any((host, pid) in holed for host in hosts for pid in pids)
    if not odd:
        return ""
    return (
        "lines are missing (dropped, or gone with an older file), so not all Sends, Recvs and "
        "groups of them can be joined over the ranks"
    )


def _rows_max(processes: int) -> int:
    """Return how many operations to take; more would hardly improve the result, but take longer."""
    return min(_PROCESS_ROWS_MAX * processes, max(RECORDS_MAX, _PROCESS_ROWS_MIN * processes))


def find_bursts(capture: Capture) -> tuple[Bursts | None, str]:
    """Return the bursts; None: no operation can be judged, and why, as text."""
    if why_not := _why_unjoinable(capture):
        return None, why_not
    found = capture.arrays(_SLOTS)
    slots, counts = found["slot"], found["operations"]
    if not len(slots):
        return None, (
            "these lines do not say when an operation began (NVIDIA's do so only if "
            "NCCL_INSPECTOR_DUMP_VERBOSE is set)"
        )
    processes = capture.sql.execute(_PROCESSES).fetchall()[0][0]
    return choose_bursts(slots, counts, _rows_max(processes)), ""
