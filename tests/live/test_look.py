# SPDX-License-Identifier: Apache-2.0
"""One look at the boxes of a node, whatever a job's user has made of them."""

import os
from typing import Any

import pytest

from nccl_inspector.box import read_box
from nccl_inspector.errors import RefusedError
from tests.live.helpers import Node, only, rank_box


def test_a_box_with_many_names_is_read_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a full box takes 0.4 s, and 255 links to one cost nothing."""
    path = node.start(node.job(), "0_1", rank_box(0, [2.0] * 8))
    for number in range(2, 257):
        os.link(path, path.with_name(f"nccl_inspector_0_{number}.box"))
    reads = []

    def counted(*given: Any) -> Any:
        reads.append(given)
        return read_box(*given)

    monkeypatch.setattr("nccl_inspector.live.look.read_box", counted)
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

    monkeypatch.setattr("nccl_inspector.live.look.read_box", refuse)
    path = node.start(node.job(), "0_1", rank_box(0, [2.0] * 8))
    os.link(path, path.with_name("nccl_inspector_0_2.box"))
    node.look()
    assert len(reads) == 1
