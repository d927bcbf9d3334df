# SPDX-License-Identifier: Apache-2.0
"""Read the box of a process (plugin/box/box.h), which its user may have filled with anything."""

from collections import Counter
from heapq import nsmallest
from operator import attrgetter
from typing import NamedTuple

from nccl_inspector.box.copy import NS_MAX, BoxCopy, copy_box, has_moved
from nccl_inspector.box.layout import (
    COMM,
    GPU,
    GPUS,
    HEADER,
    NOT_KNOWN,
    OP,
    OP_STATE_MASK,
    OP_USED,
    STATE_EXITED,
    STATE_FINALIZED,
    STATE_LIVE,
    WORD_MAX,
)
from nccl_inspector.box.rows import read_keys, read_nets, read_peers
from nccl_inspector.box.windows import read_lines
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import (
    ALGOS,
    COMM_FOLDED,
    CPU_TIMED,
    DROP_REASONS,
    EXITED,
    FINALIZED,
    FUNCS,
    GPU_TIMED,
    KILLED,
    OPERATIONS_MAX,
    PROTOS,
    RUNNING,
    SILENCES,
    UNTIMED,
    Comm,
    Facts,
    Gpu,
    Operation,
    Process,
)

READS = 3
_HOST_TIMES = {
    "calls": {"count": "calls", "ns": "call_ns", "max_ns": "call_max_ns"},
    "launches": {"count": "launches", "ns": "launch_ns", "max_ns": "launch_max_ns"},
}

# By the numbers of plugin/box/box.h.
_TIMINGS = (UNTIMED, GPU_TIMED, CPU_TIMED)

_COMM_USED = COMM.reader("state", "generation")
_COMM = COMM.reader(
    "id", "state", "generation", "nranks", "nnodes", "rank", "gpu", "created_real_ns",
    "destroyed_real_ns", "folded", "enqueued", "untimed", "lost", "started", "completed",
    "last_sequence", "last_progress_tick", "looks", "named", "mixed_since", "mixed_why",
)  # fmt: skip
_BEING_NAMED = 2  # enum box_comm_named: NCCL before 2.27 tells the name with the first operation
_OP = OP.reader("comm", "kind", "peer", "index", "sequence", "bytes")
_OP_LIFE = OP.reader(
    "comm", "comm_generation", "kind", "peer", "index", "enqueue_tick", "started_channels",
    "stopped_channels",
)  # fmt: skip
_OP_IN_USE = bytes(byte & OP_STATE_MASK == OP_USED for byte in range(256))


def _known(number: int) -> int | None:
    return None if number == NOT_KNOWN else number


def _facts(copy: BoxCopy, name: str, alive: bool) -> Facts:
    data = copy.data
    word = HEADER.number(data, "state")
    ends = {
        STATE_LIVE: RUNNING if alive else KILLED,
        STATE_FINALIZED: FINALIZED,
        STATE_EXITED: EXITED,
    }
    if word not in ends:
        raise RefusedError("bad_box", "unknown state")
    timing, silent = HEADER.number(data, "timing"), HEADER.number(data, "silent")
    if timing >= len(_TIMINGS) or silent >= len(SILENCES):
        raise RefusedError("bad_box", "unknown clock, or unknown reason not to measure")
    return Facts(
        name=name,
        state=ends[word],
        step=_known(HEADER.number(data, "step_id")),
        procid=_known(HEADER.number(data, "procid")),
        localid=_known(HEADER.number(data, "localid")),
        array_job_id=_known(HEADER.number(data, "array_job_id")),
        array_task_id=_known(HEADER.number(data, "array_task_id")),
        plugin_version=HEADER.text(data, "plugin_version"),
        node=HEADER.text(data, "node"),
        beat_ns=HEADER.number(data, "beat_real_ns"),
        timing=_TIMINGS[timing],
        silent=SILENCES[silent],
        net_missed=HEADER.number(data, "net_missed") + HEADER.number(data, "net_left_out"),
        **{
            word: HEADER.number(data, f"{table}.{column}")
            for table, words in _HOST_TIMES.items()
            for column, word in words.items()
        },
        **{
            word: HEADER.number(data, word)
            for word in (
                "pid", "api_version", "nccl_version", "series_dropped",
                "silent_ns", "sampling", "sampled_ns", "json_lines", "net_ns",
                "self_ns", "hot_ns", "comms_created", "comms_destroyed",
            )
        },
    )  # fmt: skip


def _gpus(data: bytes) -> tuple[Gpu, ...]:
    first = HEADER.offsets["gpu"]
    gpus = [
        Gpu(
            GPU.text(data, "uuid", base),
            GPU.text(data, "pci_bus_id", base),
            GPU.number(data, "minor", base),
            GPU.text(data, "label", base) or "unknown",
        )
        for base in range(first, first + GPUS * GPU.size, GPU.size)
    ]
    while gpus and gpus[-1] == Gpu("", "", gpus[-1].minor, "unknown"):
        gpus.pop()
    return tuple(gpus)


def _is_rank(rank: int, nranks: int, state: int) -> bool:
    """Tell whether a communicator can have this rank; NCCL before 2.27 tells no `nranks` (0)."""
    if nranks == 0 or state == COMM_FOLDED:  # several communicators together
        return rank >= -1 and nranks >= 0
    return 0 <= rank < nranks


class _InFlight(NamedTuple):
    """An operation in flight, as `_OP_LIFE` reads it; a tuple, because there may be thousands."""

    base: int  # of its record
    comm: int
    comm_generation: int
    kind: int
    peer: int
    number: int  # counted within its communicator
    enqueue_tick: int
    started_channels: int
    stopped_channels: int

    def is_over(self) -> bool:
        """Whether its kernel has ended, and the plugin has only to count it (hot/late.h)."""
        announced = self.kind >> 24
        ended = self.stopped_channels
        return 0 < announced <= ended.bit_count() and ended == self.started_channels


def _in_flight(copy: BoxCopy) -> list[_InFlight]:
    """Return the operations in flight."""
    bases = copy.ops.bases()
    found = map(bases.__getitem__, copy.ops.places(copy.data, "generation", _OP_IN_USE))
    return [_InFlight(base, *_OP_LIFE.words.unpack_from(copy.data, base)) for base in found]


def _age_order(one: _InFlight) -> int:
    """Return a smaller number for an older operation; tick 0: younger than the last beat."""
    return one.enqueue_tick or NS_MAX


def _kept(in_flight: list[_InFlight]) -> list[_InFlight]:
    """Return the operations to keep (at most OPERATIONS_MAX), the oldest first.

    If there are more, those first in line for each communicator, function and peer are kept,
    because they hold up what is queued behind them. Age does not tell that: the writer enqueues
    many in one round.
    """
    if len(in_flight) > OPERATIONS_MAX:
        before: Counter[tuple[int, int, int, int]] = Counter()
        order = []
        for one in sorted(in_flight, key=attrgetter("number")):
            row = one.comm, one.comm_generation, one.kind & 0xFF, one.peer
            order.append((before[row], not one.started_channels, _age_order(one), one))
            before[row] += 1
        in_flight = [one for _, _, _, one in nsmallest(OPERATIONS_MAX, order)]
    return sorted(in_flight, key=_age_order)


class _Counts(NamedTuple):
    """Operations in flight by index and generation of their communicator."""

    all: Counter[tuple[int, int]]
    begun: Counter[tuple[int, int]]


def _count(in_flight: list[_InFlight]) -> _Counts:
    return _Counts(
        Counter((one.comm, one.comm_generation) for one in in_flight),
        Counter((one.comm, one.comm_generation) for one in in_flight if one.started_channels),
    )


def _comm(copy: BoxCopy, index: int, gpus: int, counts: _Counts) -> Comm | None:
    """Return a communicator, or None if its values are impossible."""
    base = copy.comms.offset + index * COMM.size
    words = _COMM.at(copy.data, base)
    if (
        words["state"] > COMM_FOLDED
        or words["nnodes"] < 0
        or not _is_rank(words["rank"], words["nranks"], words["state"])
    ):
        return None
    life = index, words.pop("generation")
    words["started"] += counts.begun[life]
    ended = words["completed"] + words["untimed"] + words["lost"]
    words["enqueued"] = max(words["enqueued"], ended + counts.all[life])
    if max(words["enqueued"], words["started"], words["mixed_since"]) > WORD_MAX:
        return None
    gpu = words.pop("gpu")
    if words.pop("named") == _BEING_NAMED:
        words |= {"id": 0, "rank": -1}
        name = ""
    else:
        name = COMM.text(copy.data, "name", base)
    return Comm(
        index=index,
        gpu=gpu if gpu < gpus else None,
        created_ns=words.pop("created_real_ns"),
        destroyed_ns=words.pop("destroyed_real_ns"),
        last_progress_ns=copy.real_ns(words.pop("last_progress_tick")),
        name=name,
        **words,
    )


def _operations(
    copy: BoxCopy, in_flight: list[_InFlight], generations: dict[int, int]
) -> tuple[Operation, ...]:
    """Return the operations in flight whose communicator still has that generation (by index)."""
    beat = HEADER.number(copy.data, "beat_tick")
    found = []
    for one in _kept([one for one in in_flight if not one.is_over()]):
        words = _OP.at(copy.data, one.base)
        kind = words.pop("kind")
        func, algo, proto = kind & 0xFF, kind >> 8 & 0xFF, kind >> 16 & 0xFF
        alien = generations.get(one.comm) != one.comm_generation
        if not alien and func < len(FUNCS) and algo < len(ALGOS) and proto < len(PROTOS):
            known = beat and one.enqueue_tick
            age_ns = -copy.span_ns("beat_tick", one.enqueue_tick) if known else 0
            found.append(
                Operation(
                    func=func,
                    algo=algo,
                    proto=proto,
                    age_ns=min(max(age_ns, 0), NS_MAX),
                    started=int(one.started_channels != 0),
                    **words,
                )
            )
    return tuple(found)


def _moved(alive: bool) -> str:
    if alive:
        return "kept changing while it was read"
    return "died while it was moving its own figures: they may be too high or too low"


def _process(copy: BoxCopy, name: str, alive: bool, moving: bool) -> Process:
    facts = _facts(copy, name, alive)
    flags = [_moved(alive)] if moving else []
    gpus = _gpus(copy.data)
    in_flight = _in_flight(copy)
    counts = _count(in_flight)
    comms, generations = {}, {}
    for index, (state, generation) in enumerate(copy.comms.rows(copy.data, _COMM_USED)):
        if state:
            comm = _comm(copy, index, len(gpus), counts)
            if comm:
                comms[index], generations[index] = comm, generation
            else:
                flags.append("an invalid communicator is left out")
    keys, odd_keys = read_keys(copy, comms)
    peers, odd_peers = read_peers(copy, comms)
    lines, odd_lines = read_lines(copy)
    nets, odd_nets = read_nets(copy, comms, generations)
    return Process(
        facts=facts,
        dropped=HEADER.numbers(copy.data, "dropped")[: len(DROP_REASONS)],
        gpus=gpus,
        comms=tuple(comms.values()),
        keys=keys,
        peers=peers,
        lines=lines,
        nets=nets,
        operations=_operations(copy, in_flight, generations),
        flags=tuple(dict.fromkeys((*flags, *odd_keys, *odd_peers, *odd_lines, *odd_nets))),
    )


def read_box(fd: int, size: int, name: str, alive: bool) -> Process:
    """Return what a box of `size` bytes says; `alive`: its process still holds the lock.

    A box that changes during the read is read up to three times; after that the result has a flag.
    A killed process may have left one operation half added.

    Raises:
        RefusedError: not a box, or it contradicts itself; the reason is `bad_box`.
    """
    for _ in range(READS):
        copy = copy_box(fd, size)
        moving = has_moved(fd, copy, alive)
        if not moving or not alive:
            break
    return _process(copy, name, alive, moving)
