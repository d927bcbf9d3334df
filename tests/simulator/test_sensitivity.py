# SPDX-License-Identifier: Apache-2.0
"""Numbers that judge get other values everywhere, and have their own again afterwards."""

import importlib
from contextlib import suppress
from pathlib import Path

import pytest

from nccl_inspector.analysis.replay import cause, late_calls, lone_stops, stop_calls
from tests.simulator.sensitivity import (
    GROUPS,
    changed,
    halved_and_doubled,
    in_turns,
    page,
)


@pytest.mark.parametrize(
    ("value", "half", "double"),
    [(8, 4, 16), (1, 0, 2), (0.2, 0.1, 0.4), (0.75, 0.5, 0.875), (1.15, 1.075, 1.3),
     (-0.8, -0.6, -0.9), (4.0, 2.0, 8.0), (2e5, 1e5, 4e5)],
)  # fmt: skip
def test_half_and_double_are_possible_values(value: float, half: float, double: float) -> None:
    assert halved_and_doubled(value) == pytest.approx((half, double))
    assert [type(one) for one in halved_and_doubled(value)] == [type(value)] * 2


def test_a_number_is_changed_wherever_it_is_used_and_only_for_a_while() -> None:
    was = cause.TOLD_MIN
    with changed(cause, "TOLD_MIN", 0.6):
        assert {cause.TOLD_MIN, vars(lone_stops)["TOLD_MIN"]} == {0.6}
    assert {cause.TOLD_MIN, vars(lone_stops)["TOLD_MIN"]} == {was}
    with suppress(ValueError), changed(late_calls, "SHORT_SHARE", 0.1):
        assert vars(stop_calls)["SHORT_SHARE"] == 0.1
        raise ValueError
    assert {vars(stop_calls)["SHORT_SHARE"], late_calls.SHORT_SHARE} == {1 / 3}


def test_another_module_s_number_of_the_same_name_stays() -> None:
    other = importlib.import_module("nccl_inspector.analysis.replay.longer_transfers")
    usual = vars(other)["_PIECES_MIN"]
    owner = importlib.import_module("nccl_inspector.analysis.replay.late_stages")
    with changed(owner, "_PIECES_MIN", 99):
        assert vars(owner)["_PIECES_MIN"] == 99
        assert vars(other)["_PIECES_MIN"] == usual


def test_a_few_jobs_are_of_all_kinds() -> None:
    names = ("gpu-ddp-1", "gpu-ddp-2", "gpu-pp-1", "healthy-fsdp-1", "healthy-fsdp-2", "nic-rail-1")
    found = in_turns([Path(f"{one}.pickle") for one in names], ("gpu-*", "healthy-*"))
    assert [one.stem for one in found] == [
        "gpu-ddp-1", "healthy-fsdp-1", "gpu-ddp-2", "healthy-fsdp-2", "gpu-pp-1",
    ]  # fmt: skip


@pytest.mark.parametrize("group", GROUPS, ids=lambda one: one.module)
def test_the_numbers_that_are_asked_exist(group: object) -> None:
    owner = importlib.import_module(f"nccl_inspector.analysis.replay.{group.module}")  # type: ignore[attr-defined]  # a Group
    for name in group.names:  # type: ignore[attr-defined]
        assert isinstance(getattr(owner, name), int | float)


def test_the_page_says_what_becomes_worse_and_what_does_not_change() -> None:
    change = {"job": "gpu-pp-3", "what": "cost 5% -> 9%", "is": "worse"}
    row = {
        "module": "paths", "name": "_MOST", "value": 0.8, "jobs": 7,
        "half": {"value": 0.6, "changes": [change]}, "double": {"value": 0.9, "changes": []},
    }  # fmt: skip
    assert "| `paths.MOST` | 0.8 | 7 | 0.6: 1 worse (gpu-pp-3) | - |" in page([row])
