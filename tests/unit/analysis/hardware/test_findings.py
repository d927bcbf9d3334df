# SPDX-License-Identifier: Apache-2.0
"""What the counters of links and GPUs mean: how bad, for whom, and beside what."""

import pytest

from nccl_inspector.analysis.hardware.counter_rules import RULES
from nccl_inspector.analysis.hardware.findings import Hardware, find_hardware
from nccl_inspector.analysis.hardware.slow import find_slow_hardware
from nccl_inspector.counters.counter_table import load_counters
from nccl_inspector.counters.delta import RESET
from nccl_inspector.counters.node_counters import (
    Change,
    Count,
    DeviceCounters,
    Level,
    NodeCounters,
    Risen,
    Span,
    XidSeen,
)
from nccl_inspector.model.card import CRITICAL, INFO, WARNING, Period
from nccl_inspector.summary.codec import NodeSummary
from tests.support.counter_summaries import SPANS, START_S, on

HOUR = tuple(
    Span(source, START_S, START_S + 3600, 3600, 61, "")
    for source in ("infiniband", "gpu", "pressure")
)
MOVED = {
    "port_xmit_data": Count(250 * 10**9), "port_rcv_data": Count(250 * 10**9),
    "port_xmit_packets": Count(10**9), "port_rcv_packets": Count(10**9),
}  # fmt: skip


def port(name: str = "mlx5_0/1", **counts: int) -> DeviceCounters:
    found = {key: Count(total) for key, total in counts.items()}
    return DeviceCounters("port", name, {**MOVED, **found}, {}, {})


def gpu(name: str = "GPU0", **counts: int) -> DeviceCounters:
    return DeviceCounters("gpu", name, {key: Count(n) for key, n in counts.items()}, {}, {})


def hardware(*nodes: list[DeviceCounters], xids: tuple[XidSeen, ...] = ()) -> Hardware:
    return find_hardware([
        on(f"n{number + 1}", NodeCounters(HOUR, tuple(devices), xids if not number else ()))
        for number, devices in enumerate(nodes)
    ])  # fmt: skip


def severity_of(name: str, found: Hardware) -> str:
    """Of a counter that is not told because it rises in every job: that it is nothing."""
    return next((one.severity for one in found.counters if one.name == name), INFO)


def test_every_rule_is_about_a_counter_that_is_read() -> None:
    assert RULES.keys() <= load_counters().keys()


def test_of_every_counter_with_a_rule_it_is_kept_when_it_rose() -> None:
    assert all(load_counters()[key].dated for key in RULES)


def test_a_port_that_lost_its_link_is_named_with_what_the_others_have() -> None:
    bad = port(link_error_recovery=3, local_ack_timeout_err=41)
    good = [port(link_error_recovery=0, local_ack_timeout_err=0) for _ in range(3)]
    found = hardware([bad], *[[one] for one in good])
    (finding,) = found.findings
    assert finding.severity == WARNING
    assert finding.title == "n1 mlx5_0/1: link_error_recovery rose and 1 more"
    assert "local_ack_timeout_err 41, median of 3 others: 0" in finding.detail
    assert [(one.kind, one.name) for one in finding.entities] == [("port", "n1 mlx5_0/1")]
    assert [(e.metric, e.value, e.reference, e.count) for e in finding.evidence] == [
        ("link_error_recovery", 3, 0, 3), ("local_ack_timeout_err", 41, 0, 3),
    ]  # fmt: skip
    assert finding.actions == ("check cable, connector and switch port",)


def test_when_it_rose_is_told() -> None:
    rows = (Risen(START_S + 60, START_S + 120, 1), Risen(START_S + 600, START_S + 660, 1))
    device = DeviceCounters("port", "p", {"link_downed": Count(2, (), rows)}, {}, {})
    (finding,) = hardware([device]).findings
    assert finding.severity == CRITICAL
    assert finding.period == Period(START_S + 60, START_S + 660)


@pytest.mark.parametrize(
    ("name", "total", "severity"),
    [
        ("symbol_error", 10, INFO),
        ("symbol_error", 11, WARNING),
        ("packet_seq_err", 2000, INFO),
        ("packet_seq_err", 2001, WARNING),
        ("np_ecn_marked_roce_packets", 100_000_000, INFO),
        ("np_ecn_marked_roce_packets", 100_000_001, WARNING),
        ("req_transport_retries_exceeded", 1, CRITICAL),
        ("rnr_nak_retry_err", 2000, INFO),
        ("rnr_nak_retry_err", 2001, WARNING),
        ("local_ack_timeout_err", 1, INFO),
        ("local_ack_timeout_err", 11, WARNING),
        ("roce_adp_retrans", 50, INFO),
        ("out_of_sequence", 1, INFO),
    ],
)
def test_how_bad_a_port_counter_is_depends_on_how_much(
    name: str, total: int, severity: str
) -> None:
    others = [port(f"q{number}", **{name: 0}) for number in range(4)]
    assert severity_of(name, hardware([port("p", **{name: total}), *others])) == severity


def test_marks_of_congestion_that_all_ports_have_are_information() -> None:
    ports = [port(f"mlx5_{n}/1", np_ecn_marked_roce_packets=300_000_000 + n) for n in range(8)]
    assert hardware(ports).findings == ()


def test_a_share_of_what_nobody_counted_says_nothing() -> None:
    counts = {"roce_adp_retrans": Count(1000)}
    assert hardware([DeviceCounters("port", "p", counts, {}, {})]).findings == ()


@pytest.mark.parametrize(
    ("name", "total", "severity"),
    [
        ("hw_thermal", 35 * 10**9, INFO),
        ("hw_thermal", 37 * 10**9, WARNING),
        ("power_cap", 1000 * 10**9, INFO),
        ("nvlink_replay", 100, INFO),
        ("nvlink_replay", 101, WARNING),
        ("pcie_replay", 1000, INFO),
        ("ecc_uncorrected", 1, CRITICAL),
    ],
)
def test_how_bad_a_gpu_counter_is_depends_on_how_much(name: str, total: int, severity: str) -> None:
    assert severity_of(name, hardware([gpu("GPU0", **{name: total})])) == severity


def test_what_all_ports_have_is_noise_and_what_one_has_is_not() -> None:
    names = [f"mlx5_{number}/1" for number in range(8)]
    alike = [port(name, out_of_sequence=10_000 + n) for n, name in enumerate(names)]
    assert hardware(alike).findings == ()
    alike[3] = port(names[3], out_of_sequence=90_000)
    (finding,) = hardware(alike).findings
    assert finding.title == "n1 mlx5_3/1: out_of_sequence rose"


def test_a_port_that_moved_more_may_have_more() -> None:
    names = [f"mlx5_{number}/1" for number in range(8)]
    ports = [port(name, port_xmit_wait=10**8 + n) for n, name in enumerate(names)]
    busy = dict(MOVED, port_xmit_data=Count(2500 * 10**9), port_xmit_wait=Count(55 * 10**7))
    ports[0] = DeviceCounters("port", names[0], busy, {}, {})
    assert hardware(ports).findings == ()


def test_one_gpu_whose_power_is_capped_more_than_the_others_is_named() -> None:
    gpus = [gpu(f"GPU{n}", power_cap=(200 + n) * 10**9) for n in range(8)]
    assert hardware(gpus).findings == ()
    gpus[5] = gpu("GPU5", power_cap=2000 * 10**9)
    (finding,) = hardware(gpus).findings
    assert finding.title == "n1 GPU5: power_cap rose"


@pytest.mark.parametrize(
    ("device", "severity", "words"),
    [
        (DeviceCounters("port", "p", {}, {}, {"rate": (Change(1, "400"), Change(9, "200"))}),
         WARNING, "rate 400 -> 200"),
        (DeviceCounters("port", "p", {}, {}, {"state": (Change(1, "ACTIVE"), Change(9, "DOWN"))}),
         CRITICAL, "state ACTIVE -> DOWN"),
        (DeviceCounters("gpu", "GPU0", {}, {}, {"there": (Change(1, "yes"), Change(9, "no"))}),
         CRITICAL, "it is gone"),
        (DeviceCounters("gpu", "GPU0", {}, {"nvlinks_active": Level(17, 18, 35, 2)}, {}),
         CRITICAL, "NVLinks that were up: 17 to 18"),
        (DeviceCounters("gpu", "GPU0", {}, {"pcie_width": Level(4, 8, 12, 2),
                                           "pcie_width_max": Level(16, 16, 32, 2)}, {}),
         WARNING, "pcie_width 8 of 16"),
    ],
)  # fmt: skip
def test_a_device_that_is_slower_or_gone_is_named(
    device: DeviceCounters, severity: str, words: str
) -> None:
    (finding,) = hardware([device]).findings
    assert finding.severity == severity
    assert words in finding.title


def test_an_idle_gpu_that_lowers_its_link_is_not() -> None:
    levels = {"pcie_generation": Level(1, 5, 6, 2), "pcie_generation_max": Level(5, 5, 10, 2)}
    assert hardware([DeviceCounters("gpu", "GPU0", {}, levels, {})]).findings == ()


@pytest.mark.parametrize(
    ("number", "severity"), [(79, CRITICAL), (13, INFO), (45, INFO), (63, WARNING), (999, WARNING)]
)
def test_an_xid_says_what_it_is(number: int, severity: str) -> None:
    xids = (XidSeen(START_S + 9, "GPU3", number), XidSeen(START_S + 5, "GPU3", number))
    (finding,) = hardware([], xids=xids).findings
    assert finding.severity == severity
    assert finding.title.startswith(f"n1 GPU3: XID {number}, ")
    assert finding.evidence[0].value == 2
    assert finding.period == Period(START_S + 5, START_S + 9)


def test_the_worst_comes_first_and_a_reset_alone_is_nothing() -> None:
    reset = DeviceCounters("port", "p", {"symbol_error": Count(0, (RESET,))}, {}, {})
    found = hardware([reset, port(link_error_recovery=1), port("mlx5_1/1", link_downed=1)])
    assert [one.severity for one in found.findings] == [CRITICAL, WARNING]
    assert hardware([reset]).findings == ()


def test_without_counters_there_is_nothing() -> None:
    assert find_hardware([on("n1", None), on("n2", NodeCounters(absent="no agent"))]) == Hardware(
        (), ()
    )


def test_a_gpu_with_held_clocks_and_a_node_short_of_cpu_are_told_apart() -> None:
    def pressed(us: int) -> DeviceCounters:
        return DeviceCounters("node", "", {"cpu_some": Count(us)}, {}, {})

    def node(name: str, *devices: DeviceCounters, xids: tuple[XidSeen, ...] = ()) -> NodeSummary:
        return on(name, NodeCounters(SPANS, devices, xids))

    found = find_slow_hardware([
        node("n1", gpu("GPU0", hw_thermal=60 * 10**9), gpu("GPU1", hw_thermal=0), pressed(0)),
        node("n2", gpu("GPU0", hw_thermal=0), pressed(200 * 10**6)),
        node("n3", gpu("GPU0", hw_thermal=0), pressed(0), xids=(XidSeen(START_S, "GPU0", 79),)),
        node("n4", gpu("GPU0", hw_thermal=0), pressed(0), xids=(XidSeen(START_S, "GPU0", 43),)),
    ])  # fmt: skip
    kinds = {(node, gpu): found.kind_of(node, gpu) for node in ("n1", "n2", "n3", "n4")
             for gpu in ("GPU0", "GPU1")}  # fmt: skip
    assert kinds == {
        ("n1", "GPU0"): "gpu", ("n1", "GPU1"): "unknown", ("n2", "GPU0"): "host",
        ("n2", "GPU1"): "host", ("n3", "GPU0"): "gpu", ("n3", "GPU1"): "unknown",
        ("n4", "GPU0"): "unknown", ("n4", "GPU1"): "unknown",
    }  # fmt: skip
    (one,) = found.evidence("n2", "GPU0")
    assert one.metric == "cpu_some"
    assert one.value == pytest.approx(200 / 596)


def test_pressure_that_all_nodes_have_excuses_nobody() -> None:
    nodes = [
        on(f"n{n}", NodeCounters(SPANS, (DeviceCounters(
            "node", "", {"cpu_some": Count(200 * 10**6)}, {}, {}),)))
        for n in range(4)
    ]  # fmt: skip
    assert find_slow_hardware(nodes).hosts == {}
