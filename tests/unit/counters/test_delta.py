# SPDX-License-Identifier: Apache-2.0
"""What rises, wraps, sticks and is set back; and how samples are folded."""

from dataclasses import replace
from itertools import pairwise

import pytest

from nccl_inspector.counters.counter_record import (
    CHANGES_MAX,
    DEVICES_MAX,
    PROBLEMS_MAX,
    RECORD_BYTES_MAX,
    RISEN_MAX,
    CounterRecord,
    merge_risen,
)
from nccl_inspector.counters.counter_table import load_counters
from nccl_inspector.counters.delta import RESET, STUCK, Rise, rise
from nccl_inspector.counters.node_counters import Count, NodeCounters, Risen, Span
from nccl_inspector.counters.sample import GPU, INFINIBAND, Device, Sample
from nccl_inspector.errors import RefusedError

TIMEOUTS = load_counters()["port", "local_ack_timeout_err"]  # 32 bits, wraps
DOWNED = load_counters()["port", "link_downed"]  # 8 bits, sticks
DATA = load_counters()["port", "port_xmit_data"]  # 64 bits, in words
NOW_S = 1_700_000_000


def port(time_s: float, counters: dict[str, int], **facts: str) -> Sample:
    device = Device("port", "mlx5_0/1", counters, {}, {"state": "ACTIVE", **facts})
    return Sample(INFINIBAND, NOW_S + time_s, 100 + time_s, (device,))


def folded(*samples: Sample) -> CounterRecord:
    record = CounterRecord()
    for sample in samples:
        record.add(sample)
    return record


def count(record: CounterRecord, name: str) -> Count:
    (device,) = record.counters().devices
    return device.counts[name]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (5, 5, Rise(0)),
        (5, 9, Rise(4)),
        ((1 << 32) - 3, 4, Rise(7)),
        (3_000_000_000, 10, Rise(1_294_967_306)),
        (100, 0, Rise(0, RESET)),  # around it would be 2^32 - 100: nobody's rise of a minute
        (2_000_000_000, 7, Rise(7, RESET)),
        ((1 << 33), 7, Rise(7, RESET)),  # so it is wider than 32 bits here
    ],
)
def test_a_counter_of_32_bits_wraps_or_is_set_back(before: int, after: int, found: Rise) -> None:
    assert rise(TIMEOUTS, before, after) == found


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (250, 254, Rise(4)),
        (250, 255, Rise(5, STUCK)),
        (255, 255, Rise(0, STUCK)),
        (255, 3, Rise(3, RESET)),
        (250, 300, Rise(50)),  # a driver with wider ones
    ],
)
def test_a_classic_counter_sticks_at_its_highest_value(
    before: int, after: int, found: Rise
) -> None:
    assert rise(DOWNED, before, after) == found


def test_a_counter_of_64_bits_never_wraps() -> None:
    assert rise(DATA, (1 << 64) - 1, 5) == Rise(5, RESET)


def test_data_of_a_port_are_words_of_four_bytes() -> None:
    assert (DATA.said(1000), DATA.said_unit) == (4000, "bytes")


def test_the_table_knows_every_kind_and_unit() -> None:
    for counter in load_counters().values():
        assert counter.kind in ("port", "gpu", "nvlink", "node")
        assert counter.bits in (4, 8, 16, 32, 64)
        assert counter.said(1) >= 1
        assert (counter.field is not None) == (counter.kind in ("gpu", "nvlink"))


def test_what_was_there_before_the_job_is_not_the_jobs() -> None:
    record = folded(port(0, {"link_downed": 7}))
    assert count(record, "link_downed") == Count(0)


def test_a_rise_has_its_time_and_what_did_not_rise_is_there_with_zero() -> None:
    record = folded(
        port(0, {"link_downed": 7, "symbol_error": 1}),
        port(60, {"link_downed": 7, "symbol_error": 1}),
        port(120, {"link_downed": 9, "symbol_error": 1}),
    )
    risen = (Risen(NOW_S + 60, NOW_S + 120, 2),)
    assert count(record, "link_downed") == Count(2, (), risen)
    assert count(record, "symbol_error") == Count(0)
    assert record.counters().spans == (Span(INFINIBAND, NOW_S, NOW_S + 120, 120, 3, ""),)


def test_several_wraps_in_a_job_are_all_counted() -> None:
    step = 1 << 30
    record = folded(*(port(60 * n, {"out_of_buffer": step * n % (1 << 32)}) for n in range(13)))
    assert count(record, "out_of_buffer").total == 12 * step
    assert not count(record, "out_of_buffer").flags


def test_a_reset_makes_the_total_the_least_that_it_can_be() -> None:
    record = folded(*(port(60 * n, {"symbol_error": v}) for n, v in enumerate((10, 12, 1))))
    assert (count(record, "symbol_error").total, count(record, "symbol_error").flags) == (
        3,
        (RESET,),
    )


def test_a_clock_that_is_set_changes_no_elapsed_time() -> None:
    second = replace(port(60, {"symbol_error": 0}), time_s=NOW_S - 5000.0)
    (span,) = folded(port(0, {"symbol_error": 0}), second).counters().spans
    assert span.elapsed_s == 60


def test_many_rises_become_fewer_longer_ones_and_lose_nothing() -> None:
    record = folded(*(port(60 * n, {"out_of_sequence": n * n}) for n in range(1000)))
    risen = count(record, "out_of_sequence").risen
    assert len(risen) == RISEN_MAX
    assert sum(one.amount for one in risen) == count(record, "out_of_sequence").total == 999**2
    assert all(a.to_s == b.from_s for a, b in pairwise(risen))
    lengths = [one.to_s - one.from_s for one in risen]
    assert max(lengths) <= 4 * min(lengths)


def test_what_rises_all_the_time_in_every_job_has_only_its_total() -> None:
    record = folded(*(port(60 * n, {"port_xmit_data": n}) for n in range(9)))
    assert count(record, "port_xmit_data") == Count(8)


def test_two_flaps_far_apart_stay_two() -> None:
    flaps = [Risen(0, 60, 1), Risen(60, 120, 1), Risen(9000, 9060, 5)]
    assert merge_risen(flaps, 2) == [Risen(0, 120, 2), Risen(9000, 9060, 5)]


def test_a_port_that_vanishes_and_comes_back_says_so_and_goes_on_counting() -> None:
    record = folded(
        port(0, {"link_downed": 1}),
        Sample(INFINIBAND, NOW_S + 60, 160, (), "no port of InfiniBand or RoCE"),
        port(120, {"link_downed": 2}),
    )
    (device,) = record.counters().devices
    assert [change.text for change in device.facts["there"]] == ["yes", "no", "yes"]
    assert device.counts["link_downed"].total == 1
    assert record.counters().spans[0].absent == ""
    assert "no port of InfiniBand or RoCE" in record.counters().problems[0]


def test_a_state_that_changes_is_kept_with_its_time_but_not_for_ever() -> None:
    states = ["ACTIVE", "DOWN"] * 50
    record = folded(*(port(n, {}, state=state) for n, state in enumerate(states)))
    (device,) = record.counters().devices
    assert len(device.facts["state"]) == CHANGES_MAX
    assert device.facts["state"][0].text == "ACTIVE"
    assert device.facts["state"][-1] == (NOW_S + 99, "DOWN")


def test_an_agent_that_starts_again_goes_on_where_the_other_stopped() -> None:
    first = folded(port(0, {"out_of_buffer": 1}), port(60, {"out_of_buffer": (1 << 32) - 1}))
    first.kernel_log_next = 12
    second = CounterRecord.decode(first.encode())
    for record in (first, second):
        record.add(port(120, {"out_of_buffer": 5}))
    assert second.counters() == first.counters()
    assert second.kernel_log_next == 12


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100000, b'{"format":1}', b"\xff", b"3"])
def test_a_spoiled_record_is_refused(data: bytes) -> None:
    with pytest.raises(RefusedError, match="bad_counters"):
        CounterRecord.decode(data)


def everything(devices: int, samples: int) -> CounterRecord:
    """A record of so many ports on which every counter rises all the time."""
    names = [name for kind, name in load_counters() if kind == "port"]
    record = CounterRecord()
    for n in range(samples):
        values = dict.fromkeys(names, n * 10**15)
        ports = [
            Device("port", f"mlx5_{i}/1", values, {}, {"state": "x" * 5000}) for i in range(devices)
        ]
        problems = tuple(f"{n} {i} {'p' * 5000}" for i in range(20))
        record.add(Sample(INFINIBAND, NOW_S + n, n, tuple(ports), problems=problems))
    return record


def test_a_record_is_bounded_whatever_the_hardware_says() -> None:
    record = everything(DEVICES_MAX + 10, 3)
    assert len(record.counters().devices) == DEVICES_MAX
    assert len(record.counters().problems) == PROBLEMS_MAX
    assert len(record.encode()) <= RECORD_BYTES_MAX


def test_where_there_is_no_room_rises_are_told_coarser_and_totals_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = everything(4, 20)
    whole = len(record.encode())
    for room, most in ((whole - 1, 4), (whole * 5 // 9, 1), (whole // 2, 0)):
        monkeypatch.setattr("nccl_inspector.counters.counter_record.RECORD_BYTES_MAX", room)
        (first, *_) = CounterRecord.decode(record.encode()).counters().devices
        assert len(first.counts["out_of_buffer"].risen) == most
        assert first.counts["out_of_buffer"].total == 19 * 10**15


def test_levels_keep_lowest_highest_and_mean() -> None:
    record = CounterRecord()
    for n, clock in enumerate((1980, 300, 1980)):
        device = Device("gpu", "GPU0", {}, {"sm_clock_mhz": clock}, {})
        record.add(Sample(GPU, NOW_S + n, n, (device,)))
    level = record.counters().devices[0].levels["sm_clock_mhz"]
    assert (level.low, level.high, level.sum / level.samples) == (300, 1980, 1420)


def test_nothing_at_all_is_no_error() -> None:
    assert CounterRecord().counters() == NodeCounters()
