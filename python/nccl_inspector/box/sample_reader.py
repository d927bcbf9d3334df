# SPDX-License-Identifier: Apache-2.0
"""The samples, unions and channels of a box, a third of it; only collection reads them.

Impossible records are left out one by one, and a flag says how many.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from operator import sub

from nccl_inspector.box.channels import with_channels
from nccl_inspector.box.copy import NS_MAX, USED, Table, check_header, find_table, read_table
from nccl_inspector.box.label_table import read_labels
from nccl_inspector.box.layout import (
    AHEAD_NS_MAX,
    HEADER,
    SAMPLE,
    SAMPLE_KIND,
    UNION,
    UNION_WINDOW,
    UNION_WINDOWS,
    WORD_MAX,
)
from nccl_inspector.box.sample_table import (
    PERIOD_BITS_MAX,
    SIZE_CLASS_MAX,
    SampleTable,
    samples_of_each,
    thin,
)
from nccl_inspector.box.windows import BEAT_LATE_S, WINDOW_S_MAX
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.process import (
    ALGOS,
    FUNCS,
    NS_PER_S,
    PROTOS,
    RUNNING,
    GpuClock,
    Process,
    SampleKind,
    Union,
    UnionWindow,
    clocks_of,
)
from nccl_inspector.system.safe_files import read_at

READS = 3
# A time further than this from the box's last beat cannot come from its clock.
FAR_NS = 10 * 365 * 86400 * NS_PER_S
_PEER_BEYOND = 0xFFFF
_WITH_PEER = frozenset(map(FUNCS.index, ("Send", "Recv")))  # SendRecv: always a group

_KIND = SAMPLE_KIND.reader(
    "comm_id", "created_real_ns", "nranks", "nnodes", "rank", "gpu", "incarnation", "func",
    "size_class", "algo", "proto",
)  # fmt: skip
_UNION = UNION.reader("gpu", "windows", "window_s")
_ROW = struct.Struct(f"{SAMPLE.size}s")
_WINDOW = UNION_WINDOW.reader("start_s", "operations", "lost", "busy_ns", "ahead_ns")


@dataclass(frozen=True, slots=True)
class _Copy:
    """The header of a box and the tables that this module reads."""

    header: bytes
    samples: bytes
    kinds: bytes
    unions: bytes
    moving: bool  # the process was dropping samples while this was copied

    @property
    def beat_ns(self) -> int:
        """Unix time of the latest beat."""
        return HEADER.number(self.header, "beat_real_ns")


def _read_header(fd: int) -> bytes:
    header = read_at(fd, HEADER.size, 0)
    if len(header) != HEADER.size:
        raise RefusedError("bad_box", "cut short while it was read")
    return header


def _copy(fd: int, size: int) -> _Copy:
    """Copy the tables: samples first, because the kind of a sample is written before it."""
    header = _read_header(fd)
    check_header(header, size)
    samples = read_table(fd, find_table(header, size, "sample", SAMPLE))
    kinds = read_table(fd, find_table(header, size, "sample_kind", SAMPLE_KIND))
    unions = read_table(fd, find_table(header, size, "union", UNION))
    before = HEADER.number(header, "sample_seq")
    moving = before % 2 == 1 or before != HEADER.number(_read_header(fd), "sample_seq")
    return _Copy(header, samples, kinds, unions, moving)


def _is_kind(words: dict[str, int]) -> bool:
    return (
        words["func"] < len(FUNCS)
        and words["size_class"] <= SIZE_CLASS_MAX
        and words["algo"] < len(ALGOS)
        and words["proto"] < len(PROTOS)
        and words["nnodes"] >= 0
        and (0 <= words["rank"] < words["nranks"] or (words["rank"] >= -1 and not words["nranks"]))
    )


def _kinds(data: bytes, gpus: int) -> dict[int, SampleKind]:
    """Return the possible kinds by their index."""
    found = {}
    table = Table(0, len(data) // SAMPLE_KIND.size, SAMPLE_KIND)
    for index in table.places(data, "used", USED):
        base = index * SAMPLE_KIND.size
        words = _KIND.at(data, base)
        if _is_kind(words):
            gpu = words.pop("gpu")
            found[index] = SampleKind(
                gpu=gpu if gpu < gpus else None,
                created_ns=words.pop("created_real_ns"),
                name=SAMPLE_KIND.text(data, "name", base),
                **words,
            )
    return found


def _on_grid(windows: Iterable[UnionWindow], window_s: int) -> tuple[UnionWindow, ...]:
    """Return windows that begin on multiples of `window_s`; those of the same begin are added."""
    found: list[UnionWindow] = []
    for window in windows:
        start_s = window.start_s - window.start_s % window_s
        last = found[-1] if found else None
        if last and last.start_s == start_s:
            found[-1] = UnionWindow(
                start_s,
                last.operations + window.operations,
                last.lost + window.lost,
                last.busy_ns + window.busy_ns,
                window.ahead_ns,
            )
        else:
            found.append(window._replace(start_s=start_s))
    return tuple(found)


def _is_window(window: UnionWindow, window_s: int) -> bool:
    return window.busy_ns <= window_s * NS_PER_S and abs(window.ahead_ns) <= AHEAD_NS_MAX


def _union(data: bytes, base: int, latest_s: int) -> Union | None:
    """Return a union, or None if it is impossible."""
    words = _UNION.at(data, base)
    window_s, count = words["window_s"], words["windows"]
    if count > UNION_WINDOWS or not 0 < window_s <= WINDOW_S_MAX:
        return None
    first = base + UNION.offsets["window"]
    view = memoryview(data)[first : first + count * UNION_WINDOW.size]
    every = (UnionWindow(*row) for row in _WINDOW.words.iter_unpack(view))
    done = (one for one in every if one.operations or one.lost or one.busy_ns)
    windows = _on_grid(done, window_s)
    rising = all(one.start_s < next_.start_s for one, next_ in pairwise(windows))
    if not rising or (windows and windows[-1].start_s > latest_s):
        return None
    if not all(_is_window(window, window_s) for window in windows):
        return None
    return Union(words["gpu"], window_s, windows)


def _unions(copy: _Copy, gpus: int) -> tuple[tuple[Union, ...], list[str]]:
    """Return one union for each GPU that has one, and a text for each that was left out."""
    found: dict[int, Union] = {}
    flags = []
    table = Table(0, len(copy.unions) // UNION.size, UNION)
    latest_s = copy.beat_ns // NS_PER_S + BEAT_LATE_S
    for place in table.places(copy.unions, "used", USED):
        union = _union(copy.unions, place * UNION.size, latest_s)
        if union is None or union.gpu >= gpus or union.gpu in found:
            flags.append("how long a GPU was busy cannot be true and is left out")
        elif union.windows:
            found[union.gpu] = union
    return tuple(found.values()), flags


def _times(clocks: Sequence[GpuClock], beat_ns: int) -> tuple[int, int]:
    """Return the earliest and the latest time in ns that a GPU's clock can have shown."""
    aheads = [ahead_ns for clock in clocks for ahead_ns in clock.ahead_ns]
    if not aheads:
        return 1, NS_MAX
    return (
        max(beat_ns - FAR_NS - max(aheads), 1),
        min(beat_ns + FAR_NS - min(aheads), NS_MAX),
    )


def _columns(data: bytes) -> "dict[str, array[int]]":
    """Return each member of the sample records as a column."""
    wholes = {code: array(code, data) for code in {*SAMPLE.codes.values()}}
    if sys.byteorder == "big":
        for whole in wholes.values():
            whole.byteswap()
    columns = {}
    for name, code in SAMPLE.codes.items():
        size = wholes[code].itemsize
        columns[name] = wholes[code][SAMPLE.offsets[name] // size :: SAMPLE.size // size]
    return columns


def _has_peer(kind: SampleKind | None, peer: int) -> bool:
    """Tell whether a record of this kind can have this peer (rank + 1; 0: none)."""
    if kind is None or kind.func not in _WITH_PEER:
        return kind is not None and peer == 0
    return peer > 0 and (peer <= kind.nranks or peer == _PEER_BEYOND or not kind.nranks)


def _ordered(data: bytes, kinds: Mapping[int, SampleKind], times: tuple[int, int]) -> bytes:
    """Return the possible records, ordered by start.

    They are moved as whole records: columns would have to be ordered one by one.
    """
    columns = _columns(data)
    starts = columns["start_ns"]
    # There are few different pairs, so each is checked only once.
    pairs = [kind | peer << 16 for kind, peer in zip(columns["kind"], columns["peer"], strict=True)]
    can_be = {pair: _has_peer(kinds.get(pair & 0xFFFF), pair >> 16) for pair in set(pairs)}
    first_ns, last_ns = times
    good = [
        index and fits and first_ns <= start_ns <= stop_ns <= last_ns
        for index, fits, start_ns, stop_ns in zip(
            columns["index"],
            map(can_be.__getitem__, pairs),
            starts,
            columns["stop_ns"],
            strict=True,
        )
    ]
    places = sorted(compress(range(len(starts)), good), key=starts.__getitem__)
    rows = [row for (row,) in _ROW.iter_unpack(data)]
    return b"".join(map(rows.__getitem__, places))


def _samples(
    copy: _Copy, kinds: Mapping[int, SampleKind], clocks: tuple[GpuClock, ...]
) -> tuple[SampleTable, list[str]]:
    """Return the possible records, and a flag that says how many others there are."""
    filled = -(-len(copy.samples.rstrip(b"\0")) // SAMPLE.size)  # no records after these
    data = copy.samples[: filled * SAMPLE.size]
    used = filled - _columns(data)["start_ns"].count(0)
    columns = _columns(_ordered(data, kinds, _times(clocks, copy.beat_ns)))
    new_kinds = {index: place for place, index in enumerate(kinds)}
    lost, unkinded = (
        HEADER.number(copy.header, name) for name in ("samples_lost", "samples_unkinded")
    )
    table = SampleTable(
        kinds=tuple(kinds.values()),
        clocks=clocks,
        length_bits=HEADER.number(copy.header, "sample_length_bits"),
        period_bits=HEADER.number(copy.header, "sample_period_bits"),
        lost=min(lost + unkinded, WORD_MAX),
        kind=array("H", map(new_kinds.__getitem__, columns["kind"])),
        start_ns=array("q", columns["start_ns"].tobytes()),  # checked to be below 2^63
        time_ns=array("q", map(sub, columns["stop_ns"], columns["start_ns"])),
        **{name: columns[name] for name in ("index", "peer", "queued_us", "mantissa", "flags")},
    )
    left_out = used - len(table)
    flag = f"samples that cannot be true and are left out: {left_out}"
    return table, [flag] if left_out else []


def add_samples(fd: int, size: int, process: Process, ranks: int) -> Process:
    """Return the process with the samples, unions, channels and labels of its box of `size` bytes.

    Samples are thinned to the process's share in a job of `ranks` processes, or of as many as its
    largest communicator has, if that is more. If the process drops samples during the read, they
    are read up to three times. A process that died while it dropped some has left only whole
    records.

    Raises:
        RefusedError: the box contradicts itself; the reason is `bad_box`.
    """
    alive = process.facts.state == RUNNING
    for _ in range(READS):
        copy = _copy(fd, size)
        if not copy.moving or not alive:
            break
    flags = ["its samples kept changing while they were read"] if copy.moving and alive else []
    unions, union_flags = _unions(copy, len(process.gpus))
    flags += union_flags
    samples = None
    length_bits, period_bits = (
        HEADER.number(copy.header, f"sample_{word}_bits") for word in ("length", "period")
    )
    if not 0 < length_bits <= period_bits <= PERIOD_BITS_MAX:
        flags.append("the bursts of its samples cannot be true: its samples are left out")
    else:
        kinds = _kinds(copy.kinds, len(process.gpus))
        samples, sample_flags = _samples(copy, kinds, clocks_of(unions))
        flags += sample_flags
        largest = max((comm.nranks for comm in process.comms), default=0)
        samples = thin(samples, samples_of_each(max(ranks, largest)))
    labels, label_flags = read_labels(fd, copy.header, size, process.comms)
    flags += label_flags
    return replace(
        process,
        labels=labels,
        comms=with_channels(fd, copy.header, size, process.comms),
        samples=samples if samples or (samples is not None and samples.lost) else None,
        unions=unions,
        flags=tuple(dict.fromkeys((*process.flags, *flags))),
    )
