# SPDX-License-Identifier: Apache-2.0
"""What the collection of a node with eight full boxes takes of the agent's CPU."""

import os
import struct
import time
from pathlib import Path

from nccl_inspector.box.layout import SAMPLE, SAMPLES_MAX
from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.model.sample_columns import MANTISSA_BITS
from nccl_inspector.summary.codec import encode_process
from tests.bench.figure import Figure
from tests.support.boxes import MS, NOW_NS, NOW_S, SAMPLE_AT, BoxOf, CommOf, UnionOf, box_bytes

_BOXES = 8
_AHEAD_NS = 3 * 10**17  # of Unix time, beside the GPU's clock
_EVERY_NS = 15 * MS
_SAMPLE = struct.Struct("<QQIHHIHBB")
# Ranks of the job: a process's share of its samples is the whole table, or a small part.
_RANKS = 32, 8192


def _full_box() -> bytes:
    first_ns = NOW_NS - _AHEAD_NS - SAMPLES_MAX * _EVERY_NS
    windows = [
        {"start_s": NOW_S - 3840 + 10 * at, "operations": 640, "busy_ns": 900 * MS,
         "ahead_ns": _AHEAD_NS + 1024 * at}
        for at in range(384)
    ]  # fmt: skip
    kinds: list[dict[str, int | str]] = [{"func": 2 + at, "comm_id": 7 + at} for at in range(4)]
    comms = [CommOf(7 + at, 0, 8) for at in range(4)]
    box = box_bytes(BoxOf(comms, sample_kinds=kinds, unions=[UnionOf(windows)]))
    assert _SAMPLE.size == SAMPLE.size
    for at in range(SAMPLES_MAX):
        start_ns = first_ns + at * _EVERY_NS + at * 7919 % 100_000
        stop_ns = start_ns + 600_000 + at * 104_729 % 300_000
        _SAMPLE.pack_into(
            box, SAMPLE_AT + at * SAMPLE.size, start_ns, stop_ns, 1 + at // 4, at % 4, 0,
            40 + at % 50, 1 << MANTISSA_BITS, 0, 4,
        )  # fmt: skip
    return bytes(box)


def measure(folder: Path) -> list[Figure]:
    """Read, thin and pack eight boxes of full tables of samples; `folder` is left empty."""
    data, boxes = _full_box(), [folder / f"{at}.box" for at in range(_BOXES)]
    for path in boxes:
        path.write_bytes(data)
    found = []
    for ranks in _RANKS:
        begin = time.process_time()
        for path in boxes:
            fd = os.open(path, os.O_RDONLY)
            process = read_box(fd, len(data), "0_1", alive=False)
            encode_process(add_samples(fd, len(data), process, ranks))
            os.close(fd)
        seconds = time.process_time() - begin
        what = f"collection of {_BOXES} full boxes of a job of {ranks:,} ranks: CPU"
        found.append(Figure(what, "s", seconds))
    for path in boxes:
        path.unlink()
    return found
