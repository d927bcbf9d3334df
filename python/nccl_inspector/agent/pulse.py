# SPDX-License-Identifier: Apache-2.0
"""The few values of a box that tell whether its process is alive and makes progress.

A fifth of a box is read and hardly anything decoded, because the agent does this in every pass.
"""

from dataclasses import dataclass

from nccl_inspector.box.copy import NS_MAX, Table, find_table, read_header, read_table
from nccl_inspector.box.layout import COMM, HEADER, OP, OP_STATE_MASK, OP_USED
from nccl_inspector.model.process import COMM_LIVE, NEVER_MEASURED, SILENCES

_COMM_LIFE = COMM.reader("state", "generation")
_OP_LIFE = OP.reader("comm", "comm_generation", "peer", "enqueue_tick")
_IN_USE = bytes(byte & OP_STATE_MASK == OP_USED for byte in range(256))
# enum box_silent: in these cases no thread was started, so nothing beats
_NEVER_MEASURED = {SILENCES.index(one) for one in NEVER_MEASURED}


@dataclass(frozen=True, slots=True)
class Pulse:
    """The present values of a process."""

    beats: bool  # False: it has no thread that could beat
    beat_tick: int
    beat_real_ns: int  # Unix time
    # Age, at that beat, of the oldest operation in flight; None: there is none.
    oldest_ns: int | None  # collectives
    oldest_p2p_ns: int | None  # Sends and Recvs, which may be posted long before their partner


def _oldest_ticks(
    comms: list[tuple[int, ...]], ops: Table, data: bytes
) -> tuple[int | None, int | None]:
    """Return the ticks at which the oldest collective, and the oldest Send or Recv, was first seen.

    Only operations of live communicators count. 0: it has not been seen by a round yet; None: there
    is none.
    """
    collectives: list[int] = []
    p2p: list[int] = []
    for place in ops.places(data, "generation", _IN_USE):
        comm, generation, peer, tick = _OP_LIFE.words.unpack_from(data, place * OP.size)
        if comm < len(comms) and comms[comm] == (COMM_LIVE, generation):
            (collectives if peer < 0 else p2p).append(tick)
    return _first(collectives), _first(p2p)


def _first(ticks: list[int]) -> int | None:
    seen = [tick for tick in ticks if tick]
    return min(seen) if seen else (0 if ticks else None)


def _age_ns(tick: int | None, header: bytes) -> int | None:
    """Return the age at the latest beat in ns; 0 and None are returned as they are."""
    if not tick:
        return tick
    behind = HEADER.number(header, "beat_tick") - tick
    ns = behind * HEADER.number(header, "clock.ns_per_tick_q32") >> 32
    return min(max(ns, 0), NS_MAX)


def read_pulse(fd: int, size: int) -> Pulse:
    """Return the values of a box of `size` bytes.

    Raises:
        RefusedError: not a box, or it contradicts itself; the reason is `bad_box`.
    """
    header = read_header(fd, size)
    comms = find_table(header, size, "comm", COMM)
    ops = find_table(header, size, "op", OP)
    lives = list(_COMM_LIFE.words.iter_unpack(read_table(fd, comms)))
    own = Table(0, ops.count, OP)  # the copy has nothing else
    collective, p2p = _oldest_ticks(lives, own, read_table(fd, ops))
    return Pulse(
        HEADER.number(header, "silent") not in _NEVER_MEASURED,
        HEADER.number(header, "beat_tick"),
        HEADER.number(header, "beat_real_ns"),
        _age_ns(collective, header),
        _age_ns(p2p, header),
    )
