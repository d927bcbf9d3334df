# SPDX-License-Identifier: Apache-2.0
"""Boxes with something of everything, or with more than goes into a summary; and spoilt ones."""

import os
from collections.abc import Iterator
from functools import cache

from nccl_inspector.box.layout import LINE_WINDOWS
from nccl_inspector.box.reader import read_box
from nccl_inspector.model.process import Process
from tests.support.boxes import (
    MS,
    NOW_S,
    PEERS,
    TICK0,
    BoxOf,
    CommOf,
    KeyOf,
    LineOf,
    NetWords,
    box_bytes,
    fixed_chance,
    window,
)


def full_box(**words: int) -> bytearray:
    comms = [CommOf(7, 0, 4, name="world"), CommOf(8, 1, 2)]
    keys = [KeyOf(0, [5 * MS] * 20), KeyOf(1, [MS, 2 * MS, 3 * MS], func=9, size=4096)]
    operations = [{"comm": 0, "kind": 1 | 2 << 8 | 3 << 16, "index": 9, "enqueue_tick": TICK0}]
    peers = [{"comm": 0, "peer": 3, "begun": 5, "ops": 5, "bytes": 500, "busy_ns": 50}]
    queues = [{"pair": 1 << 24 | 4711, "requests": 17, "bytes": 5 << 20}]
    nets: list[NetWords] = [
        {"comm": 1, "peer": 1, "is_send": 1, "steps": 17, "bytes": 5 << 20, "queues": queues}
    ]
    lines = [LineOf([window(NOW_S - 20), window(NOW_S)])]
    return box_bytes(BoxOf(comms, keys, operations, peers, lines, nets, header=words))


def read(data: bytes, size: int | None = None, alive: bool = False) -> Process:
    fd = os.memfd_create("box")
    try:
        os.write(fd, data)
        return read_box(fd, len(data) if size is None else size, "0_1", alive)
    finally:
        os.close(fd)


def some_line(seed: int, count: int = LINE_WINDOWS) -> LineOf:
    """Return a line of a kind that has seed times the time of the first; many windows are full."""
    chance = fixed_chance(seed)
    windows = []
    index = 1
    for number in range(count):
        ops = chance.randrange(90, 110)
        start_s = NOW_S - 10 * (count - number)
        median_ns = seed * 31_250 * chance.randrange(30, 36)  # the plugin's are of few buckets
        windows.append(window(start_s, ops, median_ns, index) | {"late_ms": ops})
        index += ops + chance.randrange(5)
    return LineOf(windows, {"comm_id": seed, "rank": seed, "since_s": NOW_S - 10 * count})


@cache
def big_process(keys: int = 240, peers: int = PEERS, windows: int = LINE_WINDOWS) -> Process:
    """Return more than goes into a block, unless asked for less."""
    chance = fixed_chance(5)
    some_keys = [
        KeyOf(
            number // 30,
            [chance.randrange(1000, 10**9) for _ in range(300)],
            size=1 << number % 30,
        )
        for number in range(keys)
    ]
    comms = [CommOf(chance.randrange(1 << 60), n, 512, name=f"{chance.random()}") for n in range(8)]
    some_peers = [
        {
            "comm": number // 256,
            "func": 9 + number // 128 % 2,
            "peer": number % 128,
            "ops": (1 << 20) + chance.randrange(1 << 20),
            "bytes": chance.randrange(1 << 40),
            "busy_ns": chance.randrange(1 << 40),
            "log2_rate_q20": -chance.randrange(1 << 40),
            "best_rate_q20": -chance.randrange(1 << 22),
        }
        for number in range(peers)
    ]
    lines = [some_line(1 + number, windows) for number in range(8)] if windows else []
    nets = [
        {"comm": n % 8, "peer": n, "steps": n, "bytes": n << 20, "refused": n % 3}
        for n in range(256)
    ]
    return read(bytes(box_bytes(BoxOf(comms, some_keys, (), some_peers, lines, nets))))


def spoil(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield the data with one to three bytes changed, or cut, or longer."""
    chance = fixed_chance(seed)
    for _ in range(1000):
        spoilt = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            spoilt[chance.randrange(len(data))] = chance.choice((0, 255, chance.randrange(256)))
        yield bytes(chance.choice((spoilt, spoilt + b"\0", spoilt[: chance.randrange(len(data))])))
