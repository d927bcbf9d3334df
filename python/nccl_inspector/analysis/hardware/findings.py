# SPDX-License-Identifier: Apache-2.0
"""What the counters of links and GPUs mean for a job: findings, and the counters themselves.

Ports and pressure belong to the node, so they count during the job, not only because of it. A port
or GPU is compared with the others of its kind in the job: what all have is noise, what only one has
is not.
"""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from nccl_inspector.analysis.hardware.counter_rules import OTHER_XID, RULES, XIDS, CounterRule
from nccl_inspector.analysis.hardware.counter_words import (
    State,
    clock,
    count_words,
    device_name,
    elapsed_of,
    states_of,
    xid_words,
)
from nccl_inspector.analysis.hardware.other_devices import OtherDevices
from nccl_inspector.analysis.next_command import show_gpu, show_nvlinks, show_port
from nccl_inspector.counters.counter_record import THERE, YES
from nccl_inspector.counters.counter_table import load_counters
from nccl_inspector.counters.delta import STUCK
from nccl_inspector.counters.node_counters import (
    Count,
    DeviceCounters,
    DeviceTable,
    NodeCounters,
    XidSeen,
)
from nccl_inspector.model import rules
from nccl_inspector.model.card import (
    CRITICAL,
    INFO,
    MEDIUM,
    SEVERITIES,
    WARNING,
    Counter,
    Entity,
    Evidence,
    Finding,
    Period,
    Severity,
)
from nccl_inspector.summary.codec import NodeSummary

_GB = 1e9
# By kind of device (counters/counters.tsv); pressure of a node has no finding.
_RULES = {
    "port": rules.HARDWARE_PORT,
    "gpu": rules.HARDWARE_GPU,
    "nvlink": rules.HARDWARE_NVLINK,
}
_SLOWER = frozenset({"rate", "firmware", "link_layer", "interface"})  # changes that are warnings


@dataclass(frozen=True, slots=True)
class Hardware:
    """Findings and counters, the worst first."""

    findings: tuple[Finding, ...]
    counters: tuple[Counter, ...]


@dataclass(frozen=True, slots=True)
class _DeviceRise:
    """A counter of one device; `weighed` is its rise per GB moved (ports) or per second."""

    node: str
    table: DeviceTable  # in which the device is
    place: int
    name: str
    count: Count
    elapsed_s: int
    weighed: float

    @property
    def key(self) -> tuple[str, str]:
        """The kind of device and the counter's name."""
        return self.table.kind, self.name

    @property
    def device(self) -> DeviceCounters:
        """The device; nearly none of a large job's is needed."""
        return self.table[self.place]


def _moved(table: DeviceTable, place: int, what: str) -> int:
    """Return the bytes or packets that a port sent and received; 0 for other devices."""
    found = 0
    for way in ("xmit", "rcv"):
        count = table.count_at(f"port_{way}_{what}", place)
        if count:
            found += load_counters()["port", f"port_{way}_{what}"].said(count.total)
    return found


def _rises(counters: Mapping[str, NodeCounters]) -> Iterator[_DeviceRise]:
    """Yield the counters that rose, or that are stuck and may have."""
    for node, one in counters.items():
        for table in one.tables:
            risen: dict[int, list[tuple[str, Count]]] = defaultdict(list)
            for name in table.counts:
                if (table.kind, name) not in RULES:
                    continue
                for place, count in table.risen(name):
                    # A reset alone is no event; a counter that is stuck may hide some.
                    if count.total or STUCK in count.flags:
                        risen[place].append((name, count))
            elapsed_s = elapsed_of(one.spans, table.kind)
            for place in sorted(risen):
                weight = _moved(table, place, "data") / _GB or max(elapsed_s, 1)
                for name, count in risen[place]:
                    yield _DeviceRise(
                        node, table, place, name, count, elapsed_s, count.total / weight
                    )


def _devices_with(counters: Iterable[NodeCounters]) -> Tally[tuple[str, str]]:
    """Return how many devices have each counter, in the order in which they were first seen."""
    found: Tally[tuple[str, str]] = Tally()
    for table in chain.from_iterable(one.tables for one in counters):
        for name in table.counts:
            found[table.kind, name] += len(table)
    return found


def _looked_at(table: DeviceTable, risen: Container[str]) -> Iterator[DeviceCounters]:
    """Yield the devices about which there may be something to tell; `risen`: their names."""
    every = not table.alike or any(states_of(table[0]))
    return (table[at] for at, name in enumerate(table.names) if every or name in risen)


def _severity(rise: _DeviceRise, rule: CounterRule, all_weighed: OtherDevices) -> Severity:
    if rule.alone and not all_weighed.stands_out(rise.weighed):
        return INFO
    if rule.share and not _is_share(rise, rule.share):
        return INFO
    if rule.per_hour and rise.count.total <= rule.per_hour * max(rise.elapsed_s / 3600, 1):
        return INFO
    return rule.severity


def _is_share(rise: _DeviceRise, share: float) -> bool:
    """Tell whether a rise is above a share of the time, or of the packets that the port moved.

    If the packets were not counted, the share is not known and the answer is False.
    """
    counter = load_counters()[rise.key]
    if counter.said_unit == "ns":
        whole = rise.elapsed_s * 1e9
    else:
        whole = _moved(rise.table, rise.place, "packets")
    return whole > 0 and counter.said(rise.count.total) > share * whole


def _period(counts: Iterable[Count]) -> Period | None:
    risen = [one for count in counts for one in count.risen]
    if not risen:
        return None
    return Period(min(one.from_s for one in risen), max(one.to_s for one in risen))


def _worst(severities: Iterable[Severity]) -> Severity:
    return max(severities, key=SEVERITIES.index, default=INFO)


@dataclass(frozen=True, slots=True)
class _JudgedRise:
    """A rise with its severity, and the totals of all devices to compare it with."""

    rise: _DeviceRise
    severity: Severity
    totals: OtherDevices

    @property
    def others(self) -> int:
        """How many other devices have the counter."""
        return self.totals.count

    @property
    def others_median(self) -> float:
        """The median of the other devices; 0 if there are none."""
        rise = self.rise
        known = load_counters()[rise.key]
        return self.totals.median(float(known.said(rise.count.total)))

    def counter(self) -> Counter:
        """Return the counter for the card."""
        rise = self.rise
        known = load_counters()[rise.key]
        delta = known.said(rise.count.total)
        words = count_words(known, rise.count, rise.elapsed_s)
        return Counter(
            rise.node, device_name(rise.device), rise.device.kind, rise.name, delta,
            known.said_unit, self.severity, words,
        )  # fmt: skip

    def evidence(self) -> Evidence:
        """Return the counter as evidence, with the others' median as reference."""
        one = self.counter()
        return Evidence(
            "counters", one.name, one.delta, one.unit, self.others_median if self.others else None,
            self.others or None,
        )  # fmt: skip


def _judge(counters: Mapping[str, NodeCounters]) -> Iterator[_JudgedRise]:
    """Yield the counters that rose, with their severity compared with the other devices."""
    like: dict[tuple[str, str], list[_DeviceRise]] = defaultdict(list)
    for rise in _rises(counters):
        like[rise.key].append(rise)
    for key, devices in _devices_with(counters.values()).items():
        group = like.get(key)
        if group is None:
            continue
        said, rest = load_counters()[key].said, devices - len(group)
        totals = OtherDevices((float(said(rise.count.total)) for rise in group), rest)
        weighed = OtherDevices((rise.weighed for rise in group), rest)
        for rise in group:
            severity = _severity(rise, RULES[key], weighed) if rise.count.total else INFO
            yield _JudgedRise(rise, severity, totals)


def _beside(told: _JudgedRise) -> str:
    """Return a counter and the others' median, as text."""
    words = told.counter().words
    if not told.others:
        return words
    others = f"{told.others} other{'' if told.others == 1 else 's'}"
    return f"{words}, median of {others}: {told.others_median:.3g}"


def _finding(
    node: str, device: DeviceCounters, told: Sequence[_JudgedRise], states: Sequence[State]
) -> Finding | None:
    """Return the finding about one device; None if there is only information."""
    bad = [one for one in told if one.severity != INFO]
    found = [(_severity_of(device, state), state) for state in states]
    severity = _worst([*(one.severity for one in bad), *(bad_by for bad_by, _ in found)])
    if severity == INFO:
        return None
    words = [state.words for state in states]
    name = f"{node} {device_name(device)}"
    first = [*words, *(f"{one.rise.name} rose" for one in bad)][0]
    more = len(words) + len(bad) - 1
    actions = dict.fromkeys(RULES[device.kind, one.rise.name].action for one in bad)
    return Finding(
        rule=_RULES[device.kind].id,
        severity=severity,
        confidence=MEDIUM,
        title=f"{name}: {first}{f' and {more} more' if more else ''}",
        detail="; ".join([*words, *map(_beside, bad)]) + ". Other jobs on the node count too.",
        period=_period(one.rise.count for one in bad),
        entities=(Entity("port" if device.kind == "port" else "gpu", name),),
        evidence=tuple(one.evidence() for one in bad),
        actions=tuple(action for action in actions if action),
        next=_next(node, device),
    )


def _next(node: str, device: DeviceCounters) -> str:
    """Return the command that shows the device's present state."""
    if device.kind == "port":
        return show_port(node, device.name)
    if device.kind == "nvlink":
        return show_nvlinks(node, device.name.partition("/")[0].removeprefix("GPU"))
    return show_gpu(node, _address(device))


def _address(device: DeviceCounters) -> str:
    """Return a GPU's PCI address, else its index."""
    found = device.facts.get("pci")
    return found[-1].text if found else device.name.removeprefix("GPU")


def _seen(xids: Iterable[XidSeen]) -> dict[tuple[str, int], list[int]]:
    """Return the times of each XID of each GPU."""
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    for xid in xids:
        seen[xid.gpu, xid.number].append(xid.time_s)
    return seen


def _xid_findings(node: str, found: NodeCounters) -> Iterator[Finding]:
    gpus = {one.name: _address(one) for one in found.of_kind("gpu")}
    for (gpu, number), times in _seen(found.xids).items():
        rule = XIDS.get(number, OTHER_XID)
        yield Finding(
            rule=rules.HARDWARE_XID.id,
            severity=rule.severity,
            confidence=MEDIUM,
            title=f"{node} {gpu}: XID {number}, {rule.words}",
            detail=f"{len(times)} in the kernel log, the first at {clock(min(times))}.",
            period=Period(min(times), max(times)),
            entities=(Entity("gpu", f"{node} {gpu}"),),
            evidence=(Evidence("counters", f"XID {number}", len(times), "events"),),
            actions=(rule.action,) if rule.action else (),
            next=show_gpu(node, gpus.get(gpu, gpu.removeprefix("GPU"))),
        )


def _severity_of(device: DeviceCounters, state: State) -> Severity:
    if state.name.startswith("pcie_") or state.name in _SLOWER:
        return WARNING
    back = state.name == THERE and device.facts[THERE][-1].text == YES
    return WARNING if back else CRITICAL


def _rows(told: Iterable[_JudgedRise]) -> Iterator[Counter]:
    """Yield the card's counters that rose and that are bad, or worth a line in any case."""
    for one in told:
        if one.severity != INFO or load_counters()[one.rise.key].told:
            yield one.counter()


def _state_rows(node: str, device: DeviceCounters, states: Iterable[State]) -> Iterator[Counter]:
    for state in states:
        yield Counter(
            node, device_name(device), device.kind, state.name, state.delta, state.unit,
            _severity_of(device, state), state.words,
        )  # fmt: skip


def _xid_rows(node: str, counters: NodeCounters) -> Iterator[Counter]:
    for (gpu, number), times in _seen(counters.xids).items():
        severity = XIDS.get(number, OTHER_XID).severity
        words = xid_words(number, times)
        yield Counter(node, gpu, "xid", f"XID {number}", len(times), "events", severity, words)


def find_hardware(summaries: Sequence[NodeSummary]) -> Hardware:
    """Return the findings and counters of the links and GPUs of a job's nodes."""
    counters = {one.head.node: one.counters for one in summaries if one.counters is not None}
    judged = list(_judge(counters))
    by_device: dict[tuple[str, str], dict[str, list[_JudgedRise]]] = defaultdict(dict)
    for told in judged:
        rise = told.rise
        name = rise.table.names[rise.place]
        by_device[rise.node, rise.table.kind].setdefault(name, []).append(told)
    findings: list[Finding] = []
    rows = list(_rows(judged))
    for node, one in counters.items():
        for table in one.tables:
            risen = by_device[node, table.kind]
            for device in _looked_at(table, risen):
                states = list(states_of(device))
                rows += _state_rows(node, device, states)
                if device.kind != "node":
                    finding = _finding(node, device, risen.get(device.name, ()), states)
                    findings += [finding] if finding else []
    for node, one in counters.items():
        rows += _xid_rows(node, one)
        findings += _xid_findings(node, one)
    return Hardware(
        tuple(sorted(findings, key=lambda one: (-SEVERITIES.index(one.severity), one.title))),
        tuple(
            sorted(rows, key=lambda one: (-SEVERITIES.index(one.severity), one.node, one.device))
        ),
    )
