# SPDX-License-Identifier: Apache-2.0
"""The layout of plugin/box/box.h: names and types of members, and offsets by C's alignment."""

import struct
from dataclasses import dataclass

MAGIC = b"NCCLIBOX"
WORD_MAX = (1 << 64) - 1
AHEAD_NS_MAX = 1 << 62  # the most that a node's clock and a GPU's may differ
VERSION = 6
NOT_KNOWN = 0xFFFFFFFF
HIST_BUCKETS = 896
OP_STATE_MASK, OP_USED = 3, 2
LINE_WINDOWS = 384
UNION_WINDOWS = 384
NET_QUEUES = 4
QUEUE_NUMBER_BITS, QUEUE_DEVICES = 24, 4
SAMPLES_MAX = 32768
STATE_LIVE, STATE_FINALIZED, STATE_EXITED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads some single integers of a record at once; `names` are in the order of the record."""

    names: tuple[str, ...]
    words: struct.Struct  # of the size of the record

    def at(self, data: bytes, base: int) -> dict[str, int]:
        """Return the integers by name, from the record that begins at `base`."""
        return dict(zip(self.names, self.words.unpack_from(data, base), strict=True))


@dataclass(frozen=True, slots=True)
class Struct:
    """A C struct: the offset of each member, and how to read its single integers."""

    offsets: dict[str, int]
    codes: dict[str, str]
    size: int

    def number(self, data: bytes, name: str, base: int = 0) -> int:
        """Return one integer of the record that begins at `base`."""
        value: int = struct.unpack_from("<" + self.codes[name], data, base + self.offsets[name])[0]
        return value

    def numbers(self, data: bytes, name: str, base: int = 0) -> tuple[int, ...]:
        """Return an array of integers of the record that begins at `base`."""
        return struct.unpack_from("<" + self.codes[name], data, base + self.offsets[name])

    def reader(self, *names: str) -> Reader:
        """Return a reader of these integers."""
        ordered = sorted(names, key=self.offsets.__getitem__)
        words, at = "<", 0
        for name in ordered:
            words += f"{self.offsets[name] - at}x{self.codes[name]}"
            at = self.offsets[name] + struct.calcsize("<" + self.codes[name])
        return Reader(tuple(ordered), struct.Struct(f"{words}{self.size - at}x"))

    def text(self, data: bytes, name: str, base: int = 0) -> str:
        """Return a text up to its NUL; bytes that are not printable ASCII become `?`."""
        (raw,) = struct.unpack_from("<" + self.codes[name], data, base + self.offsets[name])
        plain = bytes(raw).split(b"\0", 1)[0]
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in plain)


def _record(*members: str) -> Struct:
    """Lay out `name:code` members (codes of the struct module) as C does."""
    offsets, codes = {}, {}
    at, widest = 0, 1
    for member in members:
        name, code = member.split(":")
        align = struct.calcsize("<" + code[-1])
        at = -(-at // align) * align
        offsets[name], codes[name] = at, code
        at += struct.calcsize("<" + code)
        widest = max(widest, align)
    return Struct(offsets, codes, -(-at // widest) * widest)


GPU = _record("uuid:48s", "pci_bus_id:32s", "minor:i", "used:I", "label:40s")
GPUS = 16
HEADER = _record(
    "magic:8s", "version:I", "header_bytes:I", "file_bytes:Q",
    "comm_offset:I", "comm_bytes:I", "comm_count:I", "key_offset:I", "key_bytes:I", "key_count:I",
    "hist_offset:I", "hist_bytes:I", "hist_count:I", "op_offset:I", "op_bytes:I", "op_count:I",
    "peer_offset:I", "peer_bytes:I", "peer_count:I", "line_offset:I", "line_bytes:I",
    "line_count:I", "net_offset:I", "net_bytes:I", "net_count:I",
    "sample_offset:I", "sample_bytes:I", "sample_count:I",
    "sample_kind_offset:I", "sample_kind_bytes:I", "sample_kind_count:I",
    "union_offset:I", "union_bytes:I", "union_count:I",
    "skew_offset:I", "skew_bytes:I", "skew_count:I",
    "label_offset:I", "label_bytes:I", "label_count:I",
    "pid:I", "uid:I", "step_id:I", "procid:I", "localid:I", "api_version:I", "nccl_version:I",
    "array_job_id:I", "array_task_id:I", "timing:I",
    "job_id:Q", "plugin_version:16s", "node:64s",
    "clock.tick0:Q", "clock.real0_ns:Q", "clock.ns_per_tick_q32:Q",
    f"gpu:{GPUS * GPU.size}s", "state:I", "layout_seq:I", "beat_tick:Q", "beat_real_ns:Q",
    "dropped:16Q", "series_dropped:Q", "self_ns:Q", "comms_created:Q", "comms_destroyed:Q",
    "hot_ns:Q", "silent:I", "sampling:I", "silent_ns:Q", "sampled_ns:Q", "json_lines:Q",
    "net_on:I", "net_missed:I", "net_ns:Q",
    "sample_seq:I", "sample_length_bits:I", "sample_period_bits:I", "net_every:I",
    "samples_kept:Q", "samples_lost:Q", "samples_unkinded:Q",
    "calls.count:Q", "calls.ns:Q", "calls.max_ns:Q",
    "launches.count:Q", "launches.ns:Q", "launches.max_ns:Q", "net_left_out:Q",
)  # fmt: skip
COMM = _record(
    "id:Q", "state:I", "generation:I", "nranks:i", "nnodes:i", "rank:i", "gpu:I",
    "created_real_ns:Q", "destroyed_real_ns:Q", "folded:Q", "named:I", "reserved0:I",
    "enqueued:Q", "untimed:Q", "lost:Q", "looks:Q", "mixed_since:Q",
    "mixed_why:I", "reserved1:I", "reserved2:2Q",
    "busy:I", "end_place:I", "completed:Q", "started:Q", "last_sequence:Q", "last_progress_tick:Q",
    "clock_ahead_ns:q", "clock_ahead_before_ns:q", "clock_since_tick:Q",
    "name:64s",
)  # fmt: skip
KEY = _record(
    "begun:Q", "ops:Q", "bytes:Q", "busy_ns:Q", "min_ns:Q", "max_ns:Q", "log2_rate_q20:q",
    "last_index:Q", "used:I", "comm:I", "func:B", "size_class:B", "algo:B", "proto:B",
    "queued_looks:I", "first_index:Q", "untimed_ops:Q", "untimed_bytes:Q", "phased_ops:Q",
    "wait_ns:Q", "queued_ns:Q",
)  # fmt: skip
OP = _record(
    "generation:I", "comm:I", "comm_generation:I", "key:I", "kind:I", "peer:i", "peer_entry:I",
    "group:I", "index:Q", "sequence:Q", "bytes:Q", "enqueue_tick:Q", "gpu_start_ns:Q",
    "gpu_stop_ns:Q", "started_channels:Q", "stopped_channels:Q", "synced_ns:Q", "event_tick:Q",
    "known_tick:Q", "handle:Q",
)  # fmt: skip
PEER = _record(
    "begun:Q", "ops:Q", "bytes:Q", "busy_ns:Q", "log2_rate_q20:q", "best_rate_q20:i", "peer:i",
    "used:I", "comm:I", "func:I", "reserved:I",
)  # fmt: skip
WINDOW = _record(
    "start_s:I", "late_ms:I", "ops:Q", "bytes:Q", "busy_ns:Q", "min_ns:Q", "median_ns:Q",
    "first_index:Q", "last_index:Q",
)  # fmt: skip
LINE = _record(
    "comm_id:Q", "comm:I", "comm_generation:I", "used:I", "windows:I", "window_s:I", "since_s:I",
    "rank:i", "func:B", "size_class:B", "reserved0:2B", "reserved1:3Q",
    f"window:{LINE_WINDOWS * WINDOW.size}s",
)  # fmt: skip
NET_QUEUE = _record("requests:Q", "bytes:Q", "pair:I", "reserved:I")
NET = _record(
    "steps:Q", "ns:4Q", "used:I", "comm:I", "comm_generation:I", "peer:i", "is_send:I",
    "refused:I", "bytes:Q", "socket_requests:Q", "other_requests:Q", "other_bytes:Q",
    f"queues:{NET_QUEUES * NET_QUEUE.size}s",
)  # fmt: skip
SAMPLE_KIND = _record(
    "comm_id:Q", "created_real_ns:Q", "nranks:i", "nnodes:i", "rank:i", "gpu:I", "incarnation:I",
    "func:B", "size_class:B", "algo:B", "proto:B", "used:I", "reserved0:I", "reserved1:2Q",
    "name:64s",
)  # fmt: skip
SKEW = _record("ops:Q", "time_ns:Q", "channels:Q", "reserved:5Q", "late_ns:64Q")
LABEL = _record(
    "used:I", "kind:B", "func:B", "reserved0:2B", "comm:I", "reserved1:I", "value:Q", "text:40s",
    "ops:Q", "bytes:Q", "timed_ops:Q", "busy_ns:Q", "called_ops:Q", "called_bytes:Q",
    "first_tick:Q", "last_tick:Q",
)  # fmt: skip
SAMPLE = _record(
    "start_ns:Q", "stop_ns:Q", "index:I", "kind:H", "peer:H", "queued_us:I", "mantissa:H",
    "flags:B", "channels:B",
)  # fmt: skip
UNION_WINDOW = _record(
    "start_s:I", "operations:I", "lost:I", "reserved:I", "busy_ns:Q", "ahead_ns:q",
)  # fmt: skip
UNION = _record(
    "used:I", "gpu:I", "windows:I", "window_s:I", "operations:Q", "lost:Q", "busy_ns:Q",
    "ahead_ns:q", "reserved:2Q", f"window:{UNION_WINDOWS * UNION_WINDOW.size}s",
)  # fmt: skip
HIST = _record(f"count:{HIST_BUCKETS}I")
