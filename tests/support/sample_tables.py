# SPDX-License-Identifier: Apache-2.0
"""The samples and unions of a box, read straight from its tables by box/layout.py."""

from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.box.layout import (
    HEADER,
    SAMPLE,
    SAMPLE_KIND,
    UNION,
    UNION_WINDOW,
    Struct,
)

GROUP = 1
_NUMBERS = tuple(name for name in SAMPLE.offsets)
_KIND_NUMBERS = tuple(name for name in SAMPLE_KIND.offsets if name not in {"name", "reserved1"})
_UNION_NUMBERS = ("used", "gpu", "windows", "window_s", "operations", "lost", "busy_ns", "ahead_ns")
_WINDOW_NUMBERS = ("start_s", "operations", "lost", "busy_ns", "ahead_ns")

Row = dict[str, int]


@dataclass(frozen=True)
class SampleBox:
    """What a box has of samples: rows by member, `samples` with those of their kind."""

    header: Row
    samples: list[Row]
    unions: list[Row]
    windows: list[list[Row]]  # of each union


def _rows(data: bytes, word: str, record: Struct, names: tuple[str, ...]) -> list[Row]:
    offset, size, count = (
        HEADER.number(data, f"{word}_{part}") for part in ("offset", "bytes", "count")
    )
    assert size == record.size
    return [
        {name: record.number(data, name, offset + index * size) for name in names}
        for index in range(count)
    ]


def _bytes(sample: Row) -> int:
    return sample["mantissa"] << max(0, sample["size_class"] - 15)


def read_samples(path: Path) -> SampleBox:
    """Return the samples and unions of a box."""
    data = path.read_bytes()
    words = [name for name in HEADER.offsets if name.startswith("sample")]
    kinds = _rows(data, "sample_kind", SAMPLE_KIND, _KIND_NUMBERS)
    samples = []
    for one in _rows(data, "sample", SAMPLE, _NUMBERS):
        if not one["start_ns"]:
            continue
        kind = kinds[one["kind"]]
        assert kind["used"] == 1
        samples.append({**one, **kind, "bytes": _bytes({**one, **kind})})
    unions = [one for one in _rows(data, "union", UNION, _UNION_NUMBERS) if one["used"] == 1]
    windows = []
    for index, union in enumerate(unions):
        first = HEADER.number(data, "union_offset") + index * UNION.size + UNION.offsets["window"]
        windows.append(
            [
                {
                    name: UNION_WINDOW.number(data, name, first + number * UNION_WINDOW.size)
                    for name in _WINDOW_NUMBERS
                }
                for number in range(union["windows"])
            ]
        )
    return SampleBox({name: HEADER.number(data, name) for name in words}, samples, unions, windows)
