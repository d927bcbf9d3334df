# SPDX-License-Identifier: Apache-2.0
"""The node summary: what one node's processes did in one attempt of a job.

Its parts, in this order:
- A line of JSON about the job and the node.
- The counters of links and GPUs, then what NVIDIA's plugin wrote (summary/node_parts.py), then
NCCL's logs (summary/nccl_logs.py); the first line says how many bytes each has.
- A block for each process: four bytes of length, little-endian, then pieces. Without samples and
unions a block has at most BLOCK_BYTES_MAX.

A piece is four bytes of length and zlib data. The pieces of a block are: JSON (facts, dropped,
flags, GPUs, communicators, operations in flight, labels), keys, peers, nets, samples (two pieces),
unions (summary/samples.py; with limits of their own; empty if there are none), then one piece for
each time line (summary/columns.py). What does not fit is left out or made coarser, the least busy
first; flags say so.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import accumulate
from typing import Any

from nccl_inspector.box.layout import SAMPLES_MAX
from nccl_inspector.box.sample_table import JOB_SAMPLES_MAX
from nccl_inspector.counters.node_counters import NodeCounters
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.operation_label import Label
from nccl_inspector.model.process import (
    Comm,
    Facts,
    Gpu,
    Key,
    Operation,
    Process,
)
from nccl_inspector.model.task_end import TaskEnd
from nccl_inspector.summary.budget import JOB_BYTES_MAX, Budget
from nccl_inspector.summary.checked_rows import take_list, take_row, take_rows
from nccl_inspector.summary.columns import (
    KEY_TABLES,
    PEER_TABLES,
    memory_of,
    pack_peers,
    unpack_keys,
    unpack_peers,
)
from nccl_inspector.summary.fit_tables import (
    LENGTH,
    SAMPLE_FACTS_BYTES_MAX,
    UNIONS_BYTES_MAX,
    pack_process,
    pack_samples,
    piece,
    samples_room,
)
from nccl_inspector.summary.nccl_logs import LOGS_BYTES_MAX, LogFile, pack_logs
from nccl_inspector.summary.nets import NET_TABLES, pack_nets, unpack_nets
from nccl_inspector.summary.node_parts import (
    COUNTERS_BYTES_MAX,
    VENDOR_BYTES_MAX,
    pack_counters,
    pack_vendor,
    unpack_counters,
    unpack_vendor,
)
from nccl_inspector.summary.packed_tables import PackedKeys, PackedLines, inflate
from nccl_inspector.summary.samples import PackedSamples, PackedUnions
from nccl_inspector.summary.streams import FileSlice, Stream, SummaryVersion
from nccl_inspector.summary.vendor_means import VendorMeans
from nccl_inspector.system.checked_json import Checks

_KIND = "nccl-inspector-node-summary/"
VERSION = 12
# The oldest format that is read. Nodes and controller may be of different releases for a while: a
# release reads its own format and the one before it.
OLDEST = 11  # has a row for each device that was counted, in place of tables
FORMAT = f"{_KIND}{VERSION}"
_FORMAT = re.compile(rf"{re.escape(_KIND)}([0-9]{{1,4}})")
BLOCK_BYTES_MAX = 32 << 10  # for a process, without samples and unions
SAMPLES_BYTES_MAX = SAMPLE_FACTS_BYTES_MAX + samples_room(SAMPLES_MAX) + UNIONS_BYTES_MAX
PROCESSES_MAX = 8192
_FULL_PROCESSES_MAX = 1024  # there is room for this many processes of the largest size
_PARTS_BYTES_MAX = COUNTERS_BYTES_MAX + VENDOR_BYTES_MAX + LOGS_BYTES_MAX
# The samples of a node are limited to those of a whole job.
_SAMPLES_BYTES_MAX = samples_room(JOB_SAMPLES_MAX) + _FULL_PROCESSES_MAX * (
    SAMPLE_FACTS_BYTES_MAX + samples_room(0) + UNIONS_BYTES_MAX
)
SUMMARY_BYTES_MAX = (
    _FULL_PROCESSES_MAX * (BLOCK_BYTES_MAX + 4) + _SAMPLES_BYTES_MAX + _PARTS_BYTES_MAX + (2 << 20)
)

HEAD_BYTES_MAX = 2 << 20  # node lists can be long
FLAGS_BYTES_MAX = 512  # for the flags that `pack_process` adds to the JSON
PIECES_BYTES_MIN = 2048  # more than empty pieces take
_RAW_BYTES_MAX = 4 << 20  # one table, unpacked
_JSON_TIMES = 8  # the most memory for one byte of JSON
_SLICE_BYTES = 128  # in memory, of a FileSlice
# Keys that are unpacked at each use count as a quarter of their size. They take far less memory,
# but each use takes time.
_UNPACKED_LATER = 4
_TABLES = 7
_SAMPLES = slice(4, 7)  # the pieces with samples and unions
WHOLE_BLOCK_BYTES_MAX = BLOCK_BYTES_MAX + SAMPLES_BYTES_MAX + 3 * 4
_PIECES_MAX = _TABLES + 64  # one for each time line; the plugin writes at most 8
_load = Checks("bad_summary").load
# The largest size of each part between the first line and the processes.
_PARTS = {
    "counters_bytes": COUNTERS_BYTES_MAX,
    "vendor_bytes": VENDOR_BYTES_MAX,
    "nccl_logs_bytes": LOGS_BYTES_MAX,
}


_TABLES_OF_HEAD = frozenset({"problems", "task_ends"})
UID_UNKNOWN = -1  # in a head that no hook wrote


@dataclass(frozen=True, slots=True)
class Head:
    """The job and the node that a summary is about; times are Unix seconds."""

    job_id: int
    uid: int
    user: str
    account: str
    partition: str
    cluster: str
    node: str
    nodelist: str
    num_nodes: int
    restart: int
    start: int  # of the prolog here
    job_start: int  # from the controller, so equal on all nodes; 0: not known
    end: int  # when the epilog ran here
    het_job_id: str  # of a heterogeneous job's component: the leader's id; else empty
    problems: tuple[str, ...]  # what was not collected on this node, as text
    array_task: str = ""  # `810_3`, from the job's processes: the hooks do not know it
    # How the command of `nccl-inspector run` ended, in Slurm's words; None: hooks do not know it.
    state: str | None = None
    exit_code: int | None = None
    # The tasks here that did not end well, as slurmstepd saw them; the first ones.
    task_ends: tuple[TaskEnd, ...] = ()

    @property
    def by_slurm(self) -> bool:
        """Whether the job has a number of Slurm's; if so, the list of its nodes is known, too."""
        return bool(self.job_id and self.nodelist)

    @property
    def leader(self) -> int:
        """The leader's id for a component of a heterogeneous job, else the job's own id."""
        return int(self.het_job_id) if self.het_job_id.isdecimal() else self.job_id


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One file of a report's directory."""

    head: Head
    processes: tuple[Process, ...]
    counters: NodeCounters | None = None  # None: written by a release or site without counters
    vendor: VendorMeans | None = None  # None: NVIDIA's plugin wrote nothing
    left_out: int = 0  # processes left out because they would take too much memory
    nccl_logs: bytes = b""  # summary/nccl_logs.py unpacks them


def _meta(process: Process, flags: Sequence[str]) -> bytes:
    rows = [
        [astuple(row) for row in table]
        for table in (process.gpus, process.comms, process.operations, process.labels)
    ]
    busy_share = max((union.busy_share for union in process.unions), default=None)
    values = [astuple(process.facts), process.dropped, flags, *rows, busy_share]
    return piece(json.dumps(values, separators=(",", ":")).encode())


def _bare(process: Process) -> Process:
    """Return the process without its tables, for one with more communicators than can fit."""
    flags = (*process.flags[:8], "its communicators did not fit")
    return replace(
        process, comms=(), keys=(), peers=(), lines=(), nets=(), operations=(), labels=(),
        flags=flags,
    )  # fmt: skip


def encode_process(process: Process) -> bytes:
    """Return a block, with as much of what is busiest as goes in.

    It has at most BLOCK_BYTES_MAX and what samples and unions take.
    """
    room = BLOCK_BYTES_MAX - len(_meta(process, process.flags)) - FLAGS_BYTES_MAX
    if room < PIECES_BYTES_MIN:
        process, room = _bare(process), PIECES_BYTES_MIN
    (keys, peers, nets, *lines), flags = pack_process(process, room)
    samples, more_flags = pack_samples(process)
    meta = _meta(process, (*process.flags, *flags, *more_flags))
    return b"".join((meta, keys, peers, nets, *samples, *lines))


def encode(
    head: Head,
    blocks: Sequence[bytes],
    counters: NodeCounters | None = None,
    vendor: VendorMeans | None = None,
    nccl_logs: Sequence[LogFile] = (),
) -> bytes:
    """Return the summary's bytes; `blocks` come from `encode_process`."""
    values = {field.name: getattr(head, field.name) for field in fields(Head)}
    values["task_ends"] = [astuple(one) for one in head.task_ends]
    packed = pack_counters(counters), pack_vendor(vendor), pack_logs(nccl_logs)
    sizes = {"processes": len(blocks), **dict(zip(_PARTS, map(len, packed), strict=True))}
    line = json.dumps({"format": FORMAT, **sizes, **values})
    parts = [line.encode("ascii"), b"\n", *packed]
    for block in blocks:
        parts += [LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _pieces(block: memoryview) -> list[memoryview]:
    """Return the pieces of a block, still packed."""
    found: list[memoryview] = []
    end, size = 0, len(block)
    while end < size:
        at = end + LENGTH.size
        end = at + LENGTH.unpack_from(block, end)[0] if at <= size else at
        if end > size:
            raise RefusedError("bad_summary", "invalid block")
        found.append(block[at:end])
    if not _TABLES <= len(found) <= _PIECES_MAX:
        raise RefusedError("bad_summary", "invalid block")
    own = sum(map(len, found[_SAMPLES]))
    if own > SAMPLES_BYTES_MAX or size - own > BLOCK_BYTES_MAX + 3 * LENGTH.size:
        raise RefusedError("bad_summary", "a block is too long")
    return found


# The pieces of most processes, which have no peers and no network detail.
_NO_PEERS, _NO_NETS = zlib.compress(pack_peers(())), zlib.compress(pack_nets(()))


def _inflated_rows(data: memoryview, empty: bytes) -> bytes:
    return b"" if data == empty else inflate(data, _RAW_BYTES_MAX)


def _in_file(pieces: Sequence[memoryview], at: int, version: SummaryVersion) -> list[Stream]:
    """Return the pieces of a block that begins at `at`, as slices of the file."""
    starts = accumulate((LENGTH.size + len(one) for one in pieces), initial=at + LENGTH.size)
    return [
        FileSlice(version, start, start + len(one))
        for start, one in zip(starts, pieces, strict=False)
    ]


def _process(
    block: memoryview, budget: Budget, at: int, version: SummaryVersion | None
) -> Process | None:
    """Return a process; None: it would take more memory than the budget has.

    `version`: the file in which the block begins at `at`, to leave there what can be read later;
    None: everything stays in memory.
    """
    pieces = _pieces(block)
    raw_meta, raw_keys = (inflate(one, _RAW_BYTES_MAX) for one in pieces[:2])
    raw_peers = _inflated_rows(pieces[2], _NO_PEERS)
    raw_nets = _inflated_rows(pieces[3], _NO_NETS)
    memory = (
        _JSON_TIMES * len(raw_meta)
        + memory_of(raw_peers, PEER_TABLES)
        + memory_of(raw_nets, NET_TABLES)
    )
    if version is None:
        memory += memory_of(raw_keys, KEY_TABLES) + len(block)
    else:
        memory += memory_of(raw_keys, KEY_TABLES) // _UNPACKED_LATER + _SLICE_BYTES * len(pieces)
    if not budget.take(memory):
        return None
    meta = _load(raw_meta)
    if not isinstance(meta, list) or len(meta) != 8:
        raise RefusedError("bad_summary", "invalid block")
    facts, dropped, flags, gpus, comms, operations, labels, busy_share = meta
    keys: Sequence[Key] = unpack_keys(raw_keys)
    later: Sequence[Stream] = pieces
    if version is not None:
        keys, later = PackedKeys.of(keys, raw_keys), _in_file(pieces, at, version)
    sample_facts, sample_columns, union_stream = later[_SAMPLES]
    unions = PackedUnions(union_stream) if union_stream else ()
    return Process(
        facts=take_row(Facts, facts),
        dropped=take_list(int, dropped),
        gpus=take_rows(Gpu, gpus),
        comms=take_rows(Comm, comms),
        keys=keys,
        peers=unpack_peers(raw_peers) if raw_peers else (),
        nets=unpack_nets(raw_nets) if raw_nets else (),
        lines=PackedLines(later[_TABLES:]),
        operations=take_rows(Operation, operations),
        flags=take_list(str, flags),
        samples=PackedSamples(sample_facts, sample_columns, unions) if sample_facts else None,
        unions=unions,
        busy_share=_share(busy_share),
        labels=take_rows(Label, labels),
    )


def _share(value: Any) -> float | None:
    if value is not None and (type(value) not in (int, float) or not 0 <= value <= 1):
        raise RefusedError("bad_summary", "invalid busy_share")
    return None if value is None else float(value)


def _part_bytes(values: Mapping[str, Any], name: str) -> int:
    """Return the size of a part; 0 if the first line does not name it."""
    size = values.get(name, 0)
    if not isinstance(size, int) or not 0 <= size <= _PARTS[name]:
        raise RefusedError("bad_summary", f"invalid {name}")
    return size


def _check_version(values: Any) -> None:
    """Check the version of a summary's format, which its first line says."""
    said = values.get("format") if isinstance(values, dict) else None
    match = _FORMAT.fullmatch(said) if isinstance(said, str) else None
    if match is None:
        raise RefusedError("bad_summary", "not a node summary")
    version = int(match[1])
    if not OLDEST <= version <= VERSION:
        other = "a later" if version > VERSION else "an earlier"
        raise RefusedError(
            "bad_summary",
            f"{other} release wrote it (format {version}; this one reads {OLDEST} to {VERSION})",
        )


def _head(line: bytes) -> tuple[Head, Any, list[int]]:
    """Return from the first line the head, the number of processes, and the size of each part."""
    values = _load(line)
    _check_version(values)
    problems = take_list(str, values.get("problems"))
    ends = take_rows(TaskEnd, values.get("task_ends", []))
    row = [
        () if field.name in _TABLES_OF_HEAD else values.get(field.name) for field in fields(Head)
    ]
    head = replace(take_row(Head, row), problems=problems, task_ends=ends)
    return head, values.get("processes"), [_part_bytes(values, name) for name in _PARTS]


def _head_end(data: bytes) -> int:
    end = data.find(b"\n", 0, HEAD_BYTES_MAX)
    if end < 0:
        raise RefusedError("bad_summary", "no first line")
    return end


def decode_head(data: bytes) -> Head:
    """Return only the head; `data` begins with at least the first line of the summary.

    Raises:
        RefusedError: the line is missing or invalid; the reason is `bad_summary`.
    """
    return _head(data[: _head_end(data)])[0]


def decode(
    data: bytes, budget: Budget | None = None, version: SummaryVersion | None = None
) -> NodeSummary:
    """Return what `encode` was given.

    `budget`: memory for the processes; a process that does not fit is left out and counted.
    `version`: the file that has these data. What the processes do not need at once is then not
    kept, but read from the file or unpacked again whenever it is used.

    Raises:
        RefusedError: the summary is invalid in any way; the reason is `bad_summary`.
    """
    if len(data) > SUMMARY_BYTES_MAX:
        raise RefusedError("bad_summary", "the file is too long")
    end = _head_end(data)
    head, said, sizes = _head(data[:end])
    budget = budget or Budget(JOB_BYTES_MAX)
    processes: list[Process] = []
    left_out = 0
    ends = list(accumulate(sizes, initial=end + 1))
    at = ends[-1]
    if at > len(data):
        raise RefusedError("bad_summary", "incomplete")
    counters = unpack_counters(data[ends[0] : ends[1]])
    vendor = unpack_vendor(data[ends[1] : ends[2]])
    nccl_logs = data[ends[2] : at]
    view = memoryview(data)  # slices of it are not copied; most bytes of a large job are samples
    while at < len(data):
        if at + LENGTH.size > len(data):
            raise RefusedError("bad_summary", "incomplete")
        size = LENGTH.unpack_from(data, at)[0]
        at += LENGTH.size
        count = len(processes) + left_out
        if size > WHOLE_BLOCK_BYTES_MAX or at + size > len(data) or count == PROCESSES_MAX:
            raise RefusedError("bad_summary", "incomplete, or a block is too long")
        process = _process(view[at : at + size], budget, at, version)
        if process is None:
            left_out += 1
        else:
            processes.append(process)
        at += size
    if len(processes) + left_out != said:
        raise RefusedError("bad_summary", "incomplete")
    return NodeSummary(head, tuple(processes), counters, vendor, left_out, nccl_logs)
