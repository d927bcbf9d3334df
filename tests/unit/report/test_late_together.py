# SPDX-License-Identifier: Apache-2.0
"""How a report names ranks that are late together, and work that is uneven."""

from pathlib import Path

import pytest

from nccl_inspector.analysis.hardware.slow import find_slow_hardware
from nccl_inspector.analysis.replay.cause import LATE, Cause
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.analysis.replay.late_sets import LateSet, Sort
from nccl_inspector.model import rules
from nccl_inspector.model.card import INFO, WARNING, Finding
from nccl_inspector.report.causes import CauseFindings, JobView, tell_causes
from tests.support.boxes import BoxOf
from tests.support.summaries import process_of

_OF_NODE = 4


@pytest.fixture
def view(tmp_path: Path) -> JobView:
    """Return the view of a job of three nodes with four ranks each."""
    processes = [
        (f"n{rank // _OF_NODE}", process_of(tmp_path, BoxOf([], procid=rank))) for rank in range(12)
    ]
    names = [f"rank {rank}" for rank in range(12)]
    return JobView(processes, names, [f"GPU{rank % _OF_NODE}" for rank in range(12)], 1000.0, ())


def _told(view: JobView, among: LateSet, *, uneven: bool = False) -> CauseFindings:
    cause = Cause(
        LATE, 0.05, 0.001, 10**9, 10**12, True, members=among.members, among=among, uneven=uneven,
        late_ns=12e6, late_share=0.5,
    )  # fmt: skip
    no_counters = find_slow_hardware(())
    return tell_causes(Judged((cause,), seen=True), view, no_counters)


def _entities(finding: Finding) -> set[tuple[str, str]]:
    return {(one.kind, one.name) for one in finding.entities}


def test_a_group_within_a_node_names_its_ranks_and_not_their_node(view: JobView) -> None:
    told = _told(view, LateSet((4, 5), Sort.GROUP, "tp"))
    ((_, found),) = told.findings
    assert found.severity == WARNING
    assert found.title == (
        "rank 4, rank 5 (node n1; they share communicator tp) are late together by 12.0 ms (median)"
    )
    assert _entities(found) == {
        ("rank", "rank 4"), ("gpu", "n1 GPU0"), ("rank", "rank 5"), ("gpu", "n1 GPU1"),
    }  # fmt: skip
    assert [one.rank for one in told.stragglers] == ["rank 4", "rank 5"]


def test_of_a_set_of_whole_nodes_the_nodes_are_named(view: JobView) -> None:
    ((_, found),) = _told(view, LateSet(tuple(range(4, 8)), Sort.GROUP, "tp")).findings
    assert _entities(found) == {("node", "n1")}
    ((_, found),) = _told(view, LateSet(tuple(range(4, 12)), Sort.NODES, "n1, n2")).findings
    assert found.title.startswith("all ranks of 2 nodes (n1, n2) are late together")
    assert _entities(found) == {("node", "n1"), ("node", "n2")}


def test_a_rail_is_named_by_the_place_that_its_ranks_have(view: JobView) -> None:
    ((_, found),) = _told(view, LateSet((2, 6, 10), Sort.PLACE, "tp", 2)).findings
    assert "rank 2, rank 6, rank 10 (place 2 of each tp communicator, nodes n0, n1, n2)" in (
        found.title
    )


def test_uneven_work_has_its_cost_and_accuses_nobody(view: JobView) -> None:
    told = _told(view, LateSet((2, 6, 10), Sort.PLACE, "ep", 2), uneven=True)
    ((_, found),) = told.findings
    assert (found.rule, found.severity) == (rules.UNEVEN_WORK.id, INFO)
    assert found.cost_share == pytest.approx(0.05)
    assert (found.entities, found.victims, told.stragglers) == ((), (), ())
