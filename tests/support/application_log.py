"""What a measurement must say, computed a second time from the application's own log.

Nothing here comes from the product, on purpose: a mistake of its must not be made twice.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from math import exp, fsum, log
from pathlib import Path
from typing import Any

P2P = ("Send", "Recv")

Record = dict[str, Any]


def read_log(directory: Path, rank: int) -> list[Record]:
    """The application's own records of a rank, in the order of their ends; without a half one."""
    whole, _, _ = (directory / f"{rank}.jsonl").read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def size_class(size_bytes: int) -> int:
    """The power of two at or below it, as an exponent."""
    return size_bytes.bit_length() - 1 if size_bytes else 0


def size_label(class_: int) -> str:
    """How the label `message_size` spells a class."""
    low, unit = class_ % 10, ("B", "KB", "MB", "GB")[class_ // 10]
    return f"{1 << low}-{2 << low}{unit}"


def by_kind(records: Iterable[Record]) -> dict[tuple[str, str, int], list[Record]]:
    """Records by communicator's name, function and size class, in their order."""
    table = defaultdict(list)
    for op in records:
        table[op["comm_name"], op["func"], size_class(op["bytes"])].append(op)
    return table


def factor(func: str, nranks: int) -> float:
    """Bus bytes for each message byte (one rank's share for AllGather and ReduceScatter)."""
    return {
        "AllReduce": 2 * (nranks - 1) / nranks,
        "AllGather": nranks - 1,
        "ReduceScatter": nranks - 1,
    }.get(func, 1.0)


def time_ns(op: Record) -> int:
    """How long the operation took by the application's own clock."""
    return int(op["stop_ns"] - op["start_ns"])


def busy_ns(ops: Iterable[Record]) -> int:
    """The sum of their times."""
    return sum(map(time_ns, ops))


def geometric_gbs(ops: list[Record]) -> float:
    """The geometric mean of their bus bandwidths, GB/s (1e9 bytes)."""
    rates = [op["bytes"] * factor(op["func"], op["nranks"]) / time_ns(op) for op in ops]
    return exp(fsum(log(rate) for rate in rates) / len(rates))


def median_range_ns(ops: list[Record]) -> tuple[int, int]:
    """The lower and the upper median time: of an even number any value between is one."""
    times = sorted(map(time_ns, ops))
    return times[(len(times) - 1) // 2], times[len(times) // 2]
