# SPDX-License-Identifier: Apache-2.0
"""The wire format of plugin/box.h: names, types and the offsets that follow from C's alignment."""

import struct
from dataclasses import dataclass

MAGIC = b"NCCLIBOX"
VERSION = 2
NOT_KNOWN = 0xFFFFFFFF
HIST_BUCKETS = 896
OP_USED = 1
STATE_LIVE, STATE_FINALIZED, STATE_EXITED = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Record:
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

    def text(self, data: bytes, name: str, base: int = 0) -> str:
        """Return a text up to its NUL; bytes that are not printable ASCII become `?`."""
        (raw,) = struct.unpack_from("<" + self.codes[name], data, base + self.offsets[name])
        plain = bytes(raw).split(b"\0", 1)[0]
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in plain)


def _record(*members: str) -> Record:
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
    return Record(offsets, codes, -(-at // widest) * widest)


GPU = _record("uuid:48s", "pci_bus_id:32s", "minor:i", "used:I", "label:40s")
GPUS = 16
HEADER = _record(
    "magic:8s", "version:I", "header_bytes:I", "file_bytes:Q",
    "comm_offset:I", "comm_bytes:I", "comm_count:I", "key_offset:I", "key_bytes:I", "key_count:I",
    "hist_offset:I", "hist_bytes:I", "hist_count:I", "op_offset:I", "op_bytes:I", "op_count:I",
    "pid:I", "uid:I", "step_id:I", "procid:I", "localid:I", "api_version:I", "nccl_version:I",
    "array_job_id:I", "array_task_id:I", "reserved0:I",
    "job_id:Q", "plugin_version:16s", "node:64s",
    "clock.tick0:Q", "clock.real0_ns:Q", "clock.ns_per_tick_q32:Q",
    f"gpu:{GPUS * GPU.size}s", "state:I", "layout_seq:I", "beat_tick:Q", "beat_real_ns:Q",
    "dropped:16Q", "series_dropped:Q", "self_ns:Q", "comms_created:Q", "comms_destroyed:Q",
)  # fmt: skip
COMM = _record(
    "id:Q", "state:I", "generation:I", "nranks:i", "nnodes:i", "rank:i", "gpu:I",
    "created_real_ns:Q", "destroyed_real_ns:Q", "enqueued:Q", "started:Q", "completed:Q",
    "last_sequence:Q", "last_progress_tick:Q", "folded:Q", "name:64s", "reserved:12Q",
)  # fmt: skip
KEY = _record(
    "ops:Q", "bytes:Q", "busy_ns:Q", "min_ns:Q", "max_ns:Q", "log2_rate_q20:q", "first_index:Q",
    "last_index:Q", "used:I", "comm:I", "func:B", "size_class:B", "algo:B", "proto:B",
    "reserved0:I", "begun:Q", "reserved:5Q",
)  # fmt: skip
OP = _record(
    "generation:I", "flags:I", "comm:I", "comm_generation:I", "key:I", "kind:I", "index:Q",
    "sequence:Q", "bytes:Q", "enqueue_tick:Q", "event_tick:Q", "gpu_start_ns:Q", "gpu_stop_ns:Q",
    "started_channels:Q", "stopped_channels:Q", "peer:i", "next_free:I", "reserved:3Q",
)  # fmt: skip
HIST = _record(f"count:{HIST_BUCKETS}I")
