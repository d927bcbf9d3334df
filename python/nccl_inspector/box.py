# SPDX-License-Identifier: Apache-2.0
"""Read the box of a process (plugin/box.h), which its user may have filled with anything."""

import struct
from collections import Counter
from collections.abc import Sequence
from itertools import compress

from nccl_inspector.boxcopy import NS_MAX, BoxCopy, copy_box, has_moved
from nccl_inspector.errors import RefusedError
from nccl_inspector.layout import (
    COMM,
    GPU,
    GPUS,
    HEADER,
    HIST_BUCKETS,
    KEY,
    NOT_KNOWN,
    OP,
    OP_STATE_MASK,
    OP_USED,
    STATE_EXITED,
    STATE_FINALIZED,
    STATE_LIVE,
)
from nccl_inspector.model import (
    ALGOS,
    COMM_FOLDED,
    DROP_REASONS,
    EXITED,
    FINALIZED,
    FUNCS,
    KILLED,
    PROTOS,
    RUNNING,
    Comm,
    Facts,
    Gpu,
    Key,
    Operation,
    Process,
)

OPERATIONS_MAX = 64  # the oldest in flight that are kept
READS = 3

_OP_WORDS = ("index", "sequence", "bytes", "peer")
_HIST = struct.Struct(f"<{HIST_BUCKETS}I")
_BUCKETS = range(HIST_BUCKETS)


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
        raise RefusedError("bad_box", "neither live nor at its end")
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
        **{
            word: HEADER.number(data, word)
            for word in (
                "pid", "api_version", "nccl_version", "series_dropped",
                "self_ns", "comms_created", "comms_destroyed",
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
    """Tell whether the numbers go together; NCCL before 2.27 does not say how many ranks (0)."""
    return 0 <= rank < nranks or (rank >= -1 and nranks == 0) or state == COMM_FOLDED


def _in_flight(copy: BoxCopy) -> list[int]:
    """Return where the records of the operations in flight begin."""
    return [
        base
        for base in copy.ops.bases()
        if OP.number(copy.data, "generation", base) & OP_STATE_MASK == OP_USED
    ]


def _running(copy: BoxCopy, in_flight: Sequence[int]) -> Counter[tuple[int, int]]:
    """Return how many have begun, by index and generation of the communicator."""
    return Counter(
        (OP.number(copy.data, "comm", base), OP.number(copy.data, "comm_generation", base))
        for base in in_flight
        if OP.number(copy.data, "started_channels", base)
    )


def _comm(
    copy: BoxCopy, index: int, base: int, gpus: int, running: Counter[tuple[int, int]]
) -> Comm | None:
    """Return a communicator, or None when its words cannot be true."""
    words = {
        word: COMM.number(copy.data, word, base)
        for word in (
            "id",
            "state",
            "nranks",
            "nnodes",
            "rank",
            "enqueued",
            "started",
            "completed",
            "last_sequence",
            "folded",
        )
    }
    if (
        words["state"] > COMM_FOLDED
        or words["nnodes"] < 0
        or not _is_rank(words["rank"], words["nranks"], words["state"])
    ):
        return None
    words["started"] += running[index, COMM.number(copy.data, "generation", base)]
    gpu = COMM.number(copy.data, "gpu", base)
    return Comm(
        index=index,
        gpu=gpu if gpu < gpus else None,
        created_ns=COMM.number(copy.data, "created_real_ns", base),
        destroyed_ns=COMM.number(copy.data, "destroyed_real_ns", base),
        last_progress_ns=copy.real_ns(COMM.number(copy.data, "last_progress_tick", base)),
        name=COMM.text(copy.data, "name", base),
        **words,
    )


def _key(copy: BoxCopy, base: int, hist_base: int) -> Key | None:
    """Return a key, or None when its words cannot be true."""
    words = {
        word: KEY.number(copy.data, word, base)
        for word in (
            "comm", "func", "size_class", "algo", "proto", "ops", "bytes",
            "busy_ns", "min_ns", "max_ns", "log2_rate_q20", "first_index", "last_index",
        )
    }  # fmt: skip
    if words["func"] >= len(FUNCS) or words["algo"] >= len(ALGOS) or words["proto"] >= len(PROTOS):
        return None
    if words["size_class"] > 63:
        return None
    counts = _HIST.unpack_from(copy.data, hist_base)
    return Key(histogram=tuple(compress(zip(_BUCKETS, counts, strict=True), counts)), **words)


def _operations(
    copy: BoxCopy, in_flight: Sequence[int], generations: dict[int, int]
) -> tuple[Operation, ...]:
    """Return the oldest operations in flight of the communicators, given as index: generation."""
    data = copy.data
    beat = HEADER.number(data, "beat_tick")
    used = [(OP.number(data, "enqueue_tick", base), base) for base in in_flight]
    found = []
    for tick, base in sorted(used)[:OPERATIONS_MAX]:
        kind, comm = OP.number(data, "kind", base), OP.number(data, "comm", base)
        func, algo, proto = kind & 0xFF, kind >> 8 & 0xFF, kind >> 16 & 0xFF
        alien = generations.get(comm) != OP.number(data, "comm_generation", base)
        if not alien and func < len(FUNCS) and algo < len(ALGOS) and proto < len(PROTOS):
            age_ns = min(max(-copy.span_ns("beat_tick", tick), 0), NS_MAX) if beat else 0
            started = int(OP.number(data, "started_channels", base) != 0)
            words = {word: OP.number(data, word, base) for word in _OP_WORDS}
            found.append(
                Operation(comm, func, algo, proto, age_ns=age_ns, started=started, **words)
            )
    return tuple(found)


def _process(copy: BoxCopy, name: str, alive: bool, moving: bool) -> Process:
    data = copy.data
    flags = ["kept changing while it was read"] if moving else []
    gpus = _gpus(data)
    in_flight = _in_flight(copy)
    running = _running(copy, in_flight)
    comms = {}
    for index, base in enumerate(copy.comms.bases()):
        if COMM.number(data, "state", base):
            comm = _comm(copy, index, base, len(gpus), running)
            if comm:
                comms[index] = comm
            else:
                flags.append("a communicator is odd and left out")
    keys = []
    for base, hist_base in zip(copy.keys.bases(), copy.hists.bases(), strict=True):
        if KEY.number(data, "used", base) == 1 and KEY.number(data, "ops", base):
            key = _key(copy, base, hist_base)
            if key and key.comm in comms:
                keys.append(key)
            else:
                flags.append("a kind of operation is odd and left out")
    return Process(
        facts=_facts(copy, name, alive),
        dropped=HEADER.numbers(data, "dropped")[: len(DROP_REASONS)],
        gpus=gpus,
        comms=tuple(comms.values()),
        keys=tuple(keys),
        operations=_operations(
            copy,
            in_flight,
            {
                index: COMM.number(data, "generation", base)
                for index, base in enumerate(copy.comms.bases())
                if index in comms
            },
        ),
        flags=tuple(dict.fromkeys(flags)),
    )


def read_box(fd: int, size: int, name: str, alive: bool) -> Process:
    """Return what a box of `size` bytes says; `alive`: its process still holds the lock.

    A box that changes under the reader is read up to three times; then the
    result carries a flag. A killed process may have left one operation half added.

    Raises:
        RefusedError: not a box, or one that contradicts itself; the reason is `bad_box`.
    """
    for _ in range(READS):
        copy = copy_box(fd, size)
        moving = has_moved(fd, copy, alive)
        if not moving or not alive:
            break
    return _process(copy, name, alive, moving)
