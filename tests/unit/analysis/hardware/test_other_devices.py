# SPDX-License-Identifier: Apache-2.0
"""Each device beside all others of its kind: as plain arithmetic says, in a job of any size."""

import random
from collections.abc import Callable, Sequence
from statistics import median

import pytest

from nccl_inspector.analysis.hardware.counter_rules import RULES
from nccl_inspector.analysis.hardware.findings import find_hardware
from nccl_inspector.analysis.hardware.other_devices import TIMES_MIN, Z_MIN, OtherDevices
from nccl_inspector.analysis.hardware.slow import find_slow_hardware
from nccl_inspector.analysis.straggler.lateness import MAD_TO_SIGMA
from nccl_inspector.counters.counter_table import load_counters
from nccl_inspector.counters.delta import RESET, STUCK
from nccl_inspector.counters.node_counters import Count, DeviceCounters, NodeCounters, Span
from nccl_inspector.model.card import INFO
from nccl_inspector.summary.codec import NodeSummary
from tests.support.counter_summaries import START_S, on

HOURS = 2
SPANS = tuple(
    Span(source, START_S, START_S + 3600 * HOURS, 3600 * HOURS, 61, "")
    for source in ("infiniband", "gpu", "pressure")
)
MOVED = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")


def plainly_stands_out(value: float, others: Sequence[float]) -> bool:
    if not others:
        return False
    middle = median(others)
    spread = MAD_TO_SIGMA * median([abs(one - middle) for one in others])
    return value > TIMES_MIN * middle and value - middle > Z_MIN * spread


def plain_severity(device: DeviceCounters, name: str, others: Sequence[DeviceCounters]) -> str:
    """What a counter of a device means, by the words of its rule and nothing else."""
    rule, known = RULES[device.kind, name], load_counters()[device.kind, name]

    def moved(one: DeviceCounters, what: str) -> int:
        counters = (f"port_xmit_{what}", f"port_rcv_{what}")
        return sum(load_counters()["port", n].said(one.counts[n].total)
                   for n in counters if n in one.counts)  # fmt: skip

    def weighed(one: DeviceCounters) -> float:
        gb = moved(one, "data") / 1e9
        return one.counts[name].total / (gb or 3600 * HOURS)

    total = device.counts[name].total
    whole = 3600e9 * HOURS if known.said_unit == "ns" else float(moved(device, "packets"))
    if rule.alone and not plainly_stands_out(weighed(device), [weighed(one) for one in others]):
        return INFO
    if rule.share and not (whole > 0 and known.said(total) > rule.share * whole):
        return INFO
    if rule.per_hour and total <= rule.per_hour * HOURS:
        return INFO
    return rule.severity if total else INFO


def random_device(chance: random.Random, kind: str, number: int, scale: float) -> DeviceCounters:
    """A device with some of its kind's counters; several have the same values, and many zero."""
    counts: dict[str, Count] = {}
    for of, name in RULES:
        if of == kind and chance.random() < 0.7:
            value = chance.choice((0, 0, 1, 20, 700, 700, int(scale * chance.lognormvariate(0, 1))))
            value *= chance.choice((1, 1, 1, 40))
            flags = chance.choice(((), (), (), (RESET,), (STUCK,)))
            counts[name] = Count(value, flags)
    if kind == "port" and chance.random() < 0.8:
        counts |= {name: Count(chance.randrange(10**9, 10**12)) for name in MOVED}
    name = {"port": f"mlx5_{number}/1", "gpu": f"GPU{number}", "nvlink": f"GPU{number}/3"}[kind]
    return DeviceCounters(kind, name, counts, {}, {})


def random_job(seed: int) -> list[NodeSummary]:
    chance = random.Random(seed)  # noqa: S311 - no secret
    scale = 10.0 ** chance.randrange(2, 12)
    return [
        on(f"n{node}", NodeCounters(SPANS, tuple(
            random_device(chance, kind, number, scale)
            for kind in ("port", "gpu", "nvlink") for number in range(chance.randrange(4))
        )))
        for node in range(chance.randrange(1, 9))
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_a_job_is_judged_as_if_each_device_were_compared_with_all_others(seed: int) -> None:
    job = random_job(seed)
    devices = [(one.head.node, device) for one in job
               for device in (one.counters or NodeCounters()).devices]  # fmt: skip
    found = find_hardware(job)
    judged = {(one.node, one.device.replace(" NVLink ", "/"), one.name): one.severity
              for one in found.counters}  # fmt: skip
    beside = {(one.entities[0].name.replace(" NVLink ", "/"), e.metric): (e.reference, e.count)
              for one in found.findings for e in one.evidence}  # fmt: skip
    wanted, wanted_beside = {}, {}
    for node, device in devices:
        for name, count in device.counts.items():
            key = device.kind, name
            if key not in RULES or not (count.total or STUCK in count.flags):
                continue
            others = [other for _, other in devices
                      if other is not device and other.kind == device.kind
                      and name in other.counts]  # fmt: skip
            severity = plain_severity(device, name, others)
            if severity != INFO or load_counters()[key].told:
                wanted[node, device.name, name] = severity
            if severity != INFO:
                said = [load_counters()[key].said(other.counts[name].total) for other in others]
                middle = median(said) if said else None
                wanted_beside[f"{node} {device.name}", name] = middle, len(said) or None
    assert judged == wanted
    assert beside == wanted_beside


@pytest.mark.parametrize("seed", range(40))
def test_a_value_is_compared_with_the_others_as_plain_arithmetic_does(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    values = [chance.choice((0.0, 1.0, 3.0, chance.expovariate(0.1)))
              for _ in range(chance.randrange(1, 12))]  # fmt: skip
    zeros = chance.randrange(4)
    compared = OtherDevices(values, zeros)
    for at, value in enumerate(values):
        others = values[:at] + values[at + 1 :] + [0.0] * zeros
        assert compared.count == len(others)
        assert compared.median(value) == (median(others) if others else 0.0)
        assert compared.stands_out(value) == plainly_stands_out(value, others)


class Watched(float):
    """A number that counts how often it is compared."""

    compared = 0

    def __mul__(self, other: float) -> "Watched":
        return Watched(float(self) * other)

    def __truediv__(self, other: float) -> "Watched":
        return Watched(float(self) / other)

    def __sub__(self, other: float) -> "Watched":
        return Watched(float(self) - other)

    def __abs__(self) -> "Watched":
        return Watched(abs(float(self)))

    def __lt__(self, other: float) -> bool:
        Watched.compared += 1
        return float(self) < float(other)


@pytest.mark.parametrize("judge", [find_hardware, find_slow_hardware])
def test_a_job_of_four_times_as_many_devices_takes_few_more_comparisons_than_four_times(
    judge: Callable[[Sequence[NodeSummary]], object],
) -> None:
    def compared(nodes: int) -> int:
        chance = random.Random(nodes)  # noqa: S311 - no secret
        Watched.compared = 0
        judge([
            on(f"n{node}", NodeCounters(SPANS, tuple(
                DeviceCounters("gpu", f"GPU{number}", {
                    "power_cap": Count(Watched(1e12 * chance.lognormvariate(0, 1))),  # type: ignore[arg-type]
                }, {}, {})
                for number in range(8)
            )))
            for node in range(nodes)
        ])  # fmt: skip
        return Watched.compared

    assert 0 < compared(64) < 8 * compared(16)
