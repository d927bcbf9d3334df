# SPDX-License-Identifier: Apache-2.0
"""How late each channel of a communicator ends (box_skew of plugin/box/box.h); only for collection.

Of the 64 channels' sums a communicator keeps what a report needs: which channels end much later
than the channel in the middle, and by how much. What cannot be true is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from nccl_inspector.box.copy import NS_MAX, find_table, read_table
from nccl_inspector.box.layout import SKEW
from nccl_inspector.model.process import COMM_FOLDED, Comm

# Of the operations' time, that a channel ends after the one in the middle. NCCL gives the first
# and the last channel of an operation less to do than the others, and none more.
LATE_SHARE = 0.1
OPS_MIN = 10  # that were looked at: fewer say nothing of a channel

_SUMS = SKEW.reader("ops", "time_ns", "channels")


@dataclass(frozen=True, slots=True)
class LateChannels:
    """Channels as bits of a mask, and how much later than the middle one they all end at least."""

    mask: int = 0
    late_ns: int = 0


def late_channels(ops: int, time_ns: int, used: int, late_ns: Sequence[int]) -> LateChannels:
    """Return which of the used channels (a bit each) end late. All times are sums over `ops`.

    `late_ns`: by channel, how much later than the first one it ended.
    """
    places = [place for place in range(len(late_ns)) if used >> place & 1]
    middle = median(late_ns[place] for place in places) if places else 0
    late = {
        place: int(late_ns[place] - middle)
        for place in places
        if ops >= OPS_MIN and late_ns[place] - middle >= LATE_SHARE * time_ns
    }
    return LateChannels(sum(1 << place for place in late), min(late.values(), default=0))


def _with_channels(comm: Comm, data: bytes, base: int) -> Comm:
    """Return the communicator with what the record at `base` says, if that can be true."""
    words = _SUMS.at(data, base)
    late_ns = SKEW.numbers(data, "late_ns", base)
    ops, time_ns, used = words["ops"], words["time_ns"], words["channels"]
    if not ops or time_ns > NS_MAX or max(late_ns) > time_ns:
        return comm
    late = late_channels(ops, time_ns, used, late_ns)
    return replace(
        comm,
        looked_ops=ops,
        looked_ns=time_ns,
        channels=used,
        late_channels=late.mask,
        late_ns=late.late_ns,
    )


def with_channels(fd: int, header: bytes, size: int, comms: Sequence[Comm]) -> tuple[Comm, ...]:
    """Return the communicators with what a box of `size` bytes says of their channels.

    Raises:
        RefusedError: the box contradicts itself; the reason is `bad_box`.
    """
    table = find_table(header, size, "skew", SKEW)
    data = read_table(fd, table)
    return tuple(
        _with_channels(comm, data, comm.index * SKEW.size)
        if comm.index < table.count and comm.state != COMM_FOLDED
        else comm
        for comm in comms
    )
