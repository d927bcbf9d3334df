# SPDX-License-Identifier: Apache-2.0
"""Boxes, manifests and metrics files, as the prolog and the plugin write them."""

import os
import pwd
import random
import signal
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_EX, lockf
from pathlib import Path

from nccl_inspector.analysis.histogram import bucket_of
from nccl_inspector.box.layout import (
    COMM,
    GPU,
    HEADER,
    HIST,
    KEY,
    LABEL,
    LINE,
    MAGIC,
    NET,
    NET_QUEUE,
    NOT_KNOWN,
    OP,
    PEER,
    SAMPLE,
    SAMPLE_KIND,
    SKEW,
    UNION,
    UNION_WINDOW,
    VERSION,
    WINDOW,
    Struct,
)
from nccl_inspector.box.reader import read_box
from nccl_inspector.exposition.metrics import load_metrics
from nccl_inspector.model.process import Process

# Root's tests use another user's files; without root our own must do.
JOB_UID = 65534 if os.geteuid() == 0 else os.getuid()

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
COMMS, KEYS, OPS, PEERS, LINES, NETS = 160, 256, 4096, 1024, 8, 256
SAMPLES, SAMPLE_KINDS, UNIONS, SKEWS, LABELS = 32768, 256, 8, 128, 64
HEADER_BYTES = 4096
MS = 1_000_000
NOW_S = 1_700_000_000
NOW_NS = NOW_S * 10**9
NET_NS = (1000, 2000, 3000, 4000)  # of every entry with network detail
TICK0 = 1_000_000

COMM_AT = HEADER_BYTES
KEY_AT = COMM_AT + COMMS * COMM.size
HIST_AT = KEY_AT + KEYS * KEY.size
OP_AT = HIST_AT + KEYS * HIST.size
PEER_AT = OP_AT + OPS * OP.size
LINE_AT = PEER_AT + PEERS * PEER.size
NET_AT = LINE_AT + LINES * LINE.size
SAMPLE_AT = NET_AT + NETS * NET.size
SAMPLE_KIND_AT = SAMPLE_AT + SAMPLES * SAMPLE.size
UNION_AT = SAMPLE_KIND_AT + SAMPLE_KINDS * SAMPLE_KIND.size
SKEW_AT = UNION_AT + UNIONS * UNION.size
LABEL_AT = SKEW_AT + SKEWS * SKEW.size
BOX_BYTES = -(-(LABEL_AT + LABELS * LABEL.size) // 4096) * 4096


# Words of an entry of network detail, and under "queues" those of its queue pairs.
NetWords = Mapping[str, int | Sequence[Mapping[str, int]]]


@dataclass(frozen=True)
class CommOf:
    """A communicator as this process is in it."""

    id: int
    rank: int
    nranks: int
    nnodes: int = 1
    name: str = ""
    state: int = 1


@dataclass(frozen=True)
class KeyOf:
    """Times of one kind of operation; `func`, `algo`, `proto`: numbers of plugin/box/box.h."""

    comm: int
    times_ns: Sequence[int]
    func: int = 1
    size: int = 1 << 20
    algo: int = 2
    proto: int = 3
    words: dict[str, int] = field(default_factory=dict)  # override single words


@dataclass(frozen=True)
class LineOf:
    """A time line: words of each window, and of the line."""

    windows: Sequence[dict[str, int]]
    words: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class UnionOf:
    """How long a GPU was busy: words of each window, and of the union."""

    windows: Sequence[dict[str, int]]
    words: dict[str, int] = field(default_factory=dict)


@dataclass
class BoxOf:
    """What goes into a box; some rows by their words; `header` overrides single words."""

    comms: Sequence[CommOf] = ()
    keys: Sequence[KeyOf] = ()
    operations: Sequence[dict[str, int]] = ()
    peers: Sequence[dict[str, int]] = ()
    lines: Sequence[LineOf] = ()
    nets: Sequence[NetWords] = ()
    sample_kinds: Sequence[dict[str, int | str]] = ()
    samples: Sequence[dict[str, int]] = ()
    unions: Sequence[UnionOf] = ()
    labels: Sequence[dict[str, int | str]] = ()
    procid: int = 0
    state: int = 2
    gpu: str = "GPU0"
    header: dict[str, int] = field(default_factory=dict)


def window(start_s: int, ops: int = 4, median_ns: int = 2 * MS, first: int = 1) -> dict[str, int]:
    """Return the words of a window; without `late_ms`."""
    return {
        "start_s": start_s, "ops": ops, "bytes": ops << 20, "busy_ns": ops * median_ns,
        "min_ns": median_ns // 2, "median_ns": median_ns,
        "first_index": first, "last_index": first + ops - 1,
    }  # fmt: skip


def put(data: bytearray, record: Struct, base: int, **words: int | str) -> None:
    """Write members of a record."""
    for name, value in words.items():
        code = record.codes[name]
        raw = value.encode() if isinstance(value, str) else value
        struct.pack_into("<" + code, data, base + record.offsets[name], raw)


def _put_header(data: bytearray, box: BoxOf) -> None:
    words: dict[str, int | str] = {
        "magic": MAGIC.decode(), "version": VERSION,
        "header_bytes": HEADER_BYTES, "file_bytes": BOX_BYTES,
        "comm_offset": COMM_AT, "comm_bytes": COMM.size, "comm_count": COMMS,
        "key_offset": KEY_AT, "key_bytes": KEY.size, "key_count": KEYS,
        "hist_offset": HIST_AT, "hist_bytes": HIST.size, "hist_count": KEYS,
        "op_offset": OP_AT, "op_bytes": OP.size, "op_count": OPS,
        "peer_offset": PEER_AT, "peer_bytes": PEER.size, "peer_count": PEERS,
        "line_offset": LINE_AT, "line_bytes": LINE.size, "line_count": LINES,
        "net_offset": NET_AT, "net_bytes": NET.size, "net_count": NETS,
        "sample_offset": SAMPLE_AT, "sample_bytes": SAMPLE.size, "sample_count": SAMPLES,
        "sample_kind_offset": SAMPLE_KIND_AT, "sample_kind_bytes": SAMPLE_KIND.size,
        "sample_kind_count": SAMPLE_KINDS,
        "union_offset": UNION_AT, "union_bytes": UNION.size, "union_count": UNIONS,
        "skew_offset": SKEW_AT, "skew_bytes": SKEW.size, "skew_count": SKEWS,
        "label_offset": LABEL_AT, "label_bytes": LABEL.size, "label_count": LABELS,
        "sample_length_bits": 34, "sample_period_bits": 34,
        "pid": 100 + box.procid, "uid": JOB_UID, "step_id": 0, "procid": box.procid, "localid": 0,
        "array_job_id": NOT_KNOWN, "array_task_id": NOT_KNOWN,
        "api_version": 5, "nccl_version": 23007, "job_id": 42,
        "plugin_version": "0.1.0", "node": "n1",
        "clock.tick0": TICK0, "clock.real0_ns": NOW_NS,
        "clock.ns_per_tick_q32": 1 << 32,
        "timing": 1, "sampling": 1, "state": box.state,
        "beat_tick": TICK0 + 1000 * MS, "beat_real_ns": NOW_NS + 1000 * MS,
    }  # fmt: skip
    put(data, HEADER, 0, **{**words, **box.header})
    gpu: dict[str, int | str] = {
        "uuid": "GPU-1a2b",
        "pci_bus_id": "0000:01:00.0",
        "minor": 0,
        "used": 1,
        "label": box.gpu,
    }
    put(data, GPU, HEADER.offsets["gpu"], **gpu)


def _put_key(data: bytearray, index: int, key: KeyOf) -> None:
    times = key.times_ns
    words: dict[str, int | str] = {
        "ops": len(times), "begun": len(times), "bytes": key.size * len(times),
        "busy_ns": sum(times),
        "min_ns": min(times, default=0), "max_ns": max(times, default=0),
        "log2_rate_q20": -5 << 20, "first_index": min(1, len(times)), "last_index": len(times),
        "used": 1, "comm": key.comm, "func": key.func,
        "size_class": key.size.bit_length() - 1, "algo": key.algo, "proto": key.proto,
    }  # fmt: skip
    put(data, KEY, KEY_AT + index * KEY.size, **{**words, **key.words})
    for ns in times:
        at = HIST_AT + index * HIST.size + 4 * bucket_of(ns)
        struct.pack_into("<I", data, at, struct.unpack_from("<I", data, at)[0] + 1)


def _put_line(data: bytearray, index: int, line: LineOf) -> None:
    base = LINE_AT + index * LINE.size
    words: dict[str, int | str] = {
        "comm_id": 7, "used": 1, "windows": len(line.windows), "window_s": 10,
        "since_s": NOW_S, "func": 1, "size_class": 20,
    }  # fmt: skip
    put(data, LINE, base, **{**words, **line.words})
    for number, window in enumerate(line.windows):
        put(data, WINDOW, base + LINE.offsets["window"] + number * WINDOW.size, **window)


def _put_samples(data: bytearray, box: BoxOf) -> None:
    for index, kind in enumerate(box.sample_kinds):
        words: dict[str, int | str] = {
            "comm_id": 7, "nranks": 4, "nnodes": 1, "func": 1, "size_class": 20, "algo": 2,
            "proto": 3, "used": 1, "created_real_ns": NOW_NS, **kind,
        }  # fmt: skip
        put(data, SAMPLE_KIND, SAMPLE_KIND_AT + index * SAMPLE_KIND.size, **words)
    for index, sample in enumerate(box.samples):
        put(data, SAMPLE, SAMPLE_AT + index * SAMPLE.size, **sample)
    for index, union in enumerate(box.unions):
        base = UNION_AT + index * UNION.size
        own = {"used": 1, "window_s": 10, "windows": len(union.windows), **union.words}
        put(data, UNION, base, **own)
        for number, window in enumerate(union.windows):
            at = base + UNION.offsets["window"] + number * UNION_WINDOW.size
            put(data, UNION_WINDOW, at, **window)


def _put_net(data: bytearray, index: int, words: NetWords) -> None:
    base = NET_AT + index * NET.size
    own = {name: word for name, word in words.items() if isinstance(word, int)}
    put(data, NET, base, **{"used": 1, **own})
    struct.pack_into("<4Q", data, base + NET.offsets["ns"], *NET_NS)
    queues = words.get("queues", ())
    for place, queue in enumerate(() if isinstance(queues, int) else queues):
        put(data, NET_QUEUE, base + NET.offsets["queues"] + place * NET_QUEUE.size, **queue)


def box_bytes(box: BoxOf) -> bytearray:
    """Return a box of the plugin's own dimensions."""
    data = bytearray(BOX_BYTES)
    _put_header(data, box)
    for index, comm in enumerate(box.comms):
        put(
            data, COMM, COMM_AT + index * COMM.size,
            id=comm.id, state=comm.state, nranks=comm.nranks, nnodes=comm.nnodes,
            rank=comm.rank, gpu=0,
            created_real_ns=NOW_NS, enqueued=10, started=9, completed=8, last_sequence=8,
            last_progress_tick=TICK0 + 500 * MS, folded=1, name=comm.name,
        )  # fmt: skip
    for index, key in enumerate(box.keys):
        _put_key(data, index, key)
    for index, words in enumerate(box.operations):
        put(data, OP, OP_AT + index * OP.size, **{"generation": 2, "peer": -1, **words})
    for index, words in enumerate(box.peers):
        put(data, PEER, PEER_AT + index * PEER.size, **{"used": 1, "func": 9, **words})
    for index, one in enumerate(box.lines):
        _put_line(data, index, one)
    for index, net in enumerate(box.nets):
        _put_net(data, index, net)
    _put_samples(data, box)
    for index, label in enumerate(box.labels):
        base = LABEL_AT + index * LABEL.size
        put(data, LABEL, base, **{"used": 1, "comm": NOT_KNOWN, "first_tick": TICK0, **label})
    return data


def manifest_text(job: int = 42, **words: object) -> str:
    """Return a manifest; `words` override its values."""
    values: dict[str, object] = {
        "format": 1, "job_id": job, "uid": JOB_UID, "gid": JOB_UID, "user": "amy",
        "account": "phys",
        "partition": "gpu", "node": "n1", "nodelist": "n[1-4]", "num_nodes": 4,
        "cluster": "c1", "gpus": "0,1",
        "restart": 0, "boot_id": BOOT_ID, "het_job_id": "", "work_dir": "/home/amy",
        "mode": "prom", "start": 1700000000, "job_start": 1699999990,
    }  # fmt: skip
    return "".join(f"{key}={value}\n" for key, value in (values | words).items()) + "end\n"


def make_run_dir(path: Path) -> Path:
    """Make the run directory of a node."""
    for name in ("jobs", "ended", "prom", "control"):
        (path / name).mkdir(parents=True)
    return path


def make_reports(place: Path) -> str:
    """Make a report directory of an account that has no rights elsewhere; return its settings."""
    reports = place / "reports"
    reports.mkdir(mode=0o711)
    give(reports)
    return f"report_dir = {reports}\nreport_user = {pwd.getpwuid(JOB_UID).pw_name}\n"


def fixed_chance(seed: int) -> random.Random:
    """Return chance that is the same in each run."""
    return random.Random(seed)  # noqa: S311


def names(folder: Path) -> list[str]:
    """Return what is in a directory, sorted."""
    return sorted(path.name for path in folder.iterdir())


def give(path: Path, uid: int = JOB_UID) -> None:
    """Make a file or directory the user's."""
    os.chown(path, uid, -1)


def make_job(place: Path, job: int = 42, **words: object) -> Path:
    """Make a job's directory as the prolog does; return its raw directory."""
    raw = place / "raw"
    raw.mkdir(parents=True, mode=0o700)
    give(raw)
    (place / "manifest").write_text(manifest_text(job, **words))
    return raw


def write_user_file(path: Path, data: bytes) -> Path:
    """Write a file that belongs to the job's user."""
    path.write_bytes(data)
    give(path)
    return path


def write_box(raw: Path, stem: str, box: BoxOf) -> Path:
    """Write a process's box."""
    return write_user_file(raw / f"nccl_inspector_{stem}.box", bytes(box_bytes(box)))


# Words that the plugin might write; others are the text `x`.
WORDS = {
    "version": "v7.1", "gpu": "GPU0", "rank": "0", "comm": "0x1f", "n_nodes": "1", "nranks": "8",
    "collective": "AllReduce", "p2p_operation": "Send", "message_size": "1-2MB",
    "algo_proto": "RING_SIMPLE", "peer": "1", "direction": "send", "state": "gpu",
    "reason": "no_slot", "gpu_uuid": "unknown", "pci_bus_id": "unknown",
}  # fmt: skip


def line(name: str, value: str = "1", **labels: str) -> str:
    """Return a line as the plugin writes it, with every label that the table wants."""
    words = WORDS | labels
    pairs = ",".join(f'{label}="{words.get(label, "x")}"' for label in load_metrics()[name].labels)
    return f"{name}{{{pairs}}} {value}\n"


def metrics_text(*lines: str) -> bytes:
    """Return a whole file of a process."""
    return ("".join(lines) + "# EOF\n").encode()


@contextmanager
def lock_held(path: Path) -> Iterator[int]:
    """Hold the record lock of a box in another process, as its owner does; give its id."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            fd = os.open(path, os.O_RDWR)
            lockf(fd, LOCK_EX)
            os.write(told, b"y")
            signal.pause()
        finally:
            os._exit(0)
    os.read(ready, 1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


def read_dead_box(path: Path, stem: str = "") -> Process:
    """Return what the box of a process that is over says; `stem`: in place of its file's name."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_box(fd, path.stat().st_size, stem or path.stem, alive=False)
    finally:
        os.close(fd)
