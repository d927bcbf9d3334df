# SPDX-License-Identifier: Apache-2.0
"""One look at the boxes of a node, whatever a job's user has made of them."""

import os
from typing import Any

import pytest

from nccl_inspector.box.layout import STATE_FINALIZED
from nccl_inspector.box.reader import read_box
from nccl_inspector.errors import RefusedError
from tests.support.boxes import BoxOf, write_box
from tests.support.live_node import Node, only, rank_box


def test_a_box_with_many_names_is_read_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a full box takes 0.4 s, and 255 links to one cost nothing."""
    path = node.start(node.job(), "0_1", rank_box(0, [2.0] * 8))
    for number in range(2, 257):
        os.link(path, path.with_name(f"nccl_inspector_0_{number}.box"))
    reads = []

    def counted(*given: Any) -> Any:
        reads.append(given)
        return read_box(*given)

    monkeypatch.setattr("nccl_inspector.live.node_look.read_box", counted)
    view = node.look()
    assert len(reads) == 1
    assert len(only(view).ranks) == 1
    assert len([one for one in view.unread if one.endswith("is refused: same_file")]) == 255


def test_a_box_that_is_refused_is_not_read_again_by_its_other_names(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def refuse(*given: Any) -> Any:
        reads.append(given)
        raise RefusedError("bad_box")

    monkeypatch.setattr("nccl_inspector.live.node_look.read_box", refuse)
    path = node.start(node.job(), "0_1", rank_box(0, [2.0] * 8))
    os.link(path, path.with_name("nccl_inspector_0_2.box"))
    node.look()
    assert len(reads) == 1


@pytest.mark.long
def test_boxes_of_ended_processes_leave_no_living_one_out(node: Node) -> None:
    raw = node.job()
    for number in range(300):
        write_box(raw, f"0_{1000 + number}", BoxOf(state=STATE_FINALIZED))
    node.start(raw, "9_5", rank_box(0))
    view = node.look()
    assert len(only(view).ranks) == 1
    assert view.unread == ()


def test_living_ones_beyond_the_limit_are_said(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccl_inspector.live.node_look.BOXES_MAX", 2)
    raw = node.job()
    for number in range(3):
        node.start(raw, f"0_{number + 1}", rank_box(number))
    view = node.look()
    assert len(only(view).ranks) == 2
    assert any("the rest is left out" in one for one in view.unread)
