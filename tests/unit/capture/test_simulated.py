# SPDX-License-Identifier: Apache-2.0
"""What `analyze` says of the JSON lines of a simulated job is what the report says of its boxes."""

from pathlib import Path

import numpy as np
import pytest

from nccl_inspector.model.card import INFO, Card
from tests.simulator import plans
from tests.simulator.case import Make, healthy, of_size
from tests.simulator.cases import gpu, host, make, straggler
from tests.simulator.making import make_job
from tests.simulator.play import analyzed, card_of, play
from tests.simulator.truth import Truth

COST_SHARE, COST_RATIO = 0.005, 0.2  # by which two costs may differ


def of(make: Make, seed: int, folder: Path) -> tuple[Card, Card, Truth]:
    """Play a job; return the cards of report and analyze, and what is true."""
    job, truth = make_job(make(np.random.default_rng(seed * 77 + 3), seed), seed)
    play(job, folder, json=True)
    return card_of(job, folder), analyzed(folder), truth


def small(planner: object) -> object:
    """Return jobs of some minutes on two nodes."""
    return of_size(planner, wall_s=(150.0, 300.0), nodes=(2,))  # type: ignore[arg-type]


def culprits(card: Card) -> set[str]:
    return {
        entity.name
        for one in card.findings
        if one.severity != INFO
        for entity in one.entities
        if entity.kind == "rank"
    }


LONG = pytest.mark.long
STRAGGLERS = {
    "data parallel": (plans.ddp, gpu, 1),
    "sharded": (plans.fsdp, gpu, 1),
    "tensor parallel": (plans.tensor_data, gpu, 4),
    "tensor parallel, synchronised by operations without a line": (plans.tensor_data, gpu, 2),
    "pipeline": (plans.pipeline, gpu, 4),
    "experts": (plans.experts, host, 3),
}


@LONG
@pytest.mark.parametrize("name", STRAGGLERS)
def test_report_and_analyze_agree_on_a_straggler(name: str, tmp_path: Path) -> None:
    planner, fault, seed = STRAGGLERS[name]
    scenario = straggler(small(planner), fault, 0.02, 0.06)  # type: ignore[arg-type]
    report, analyze, truth = of(scenario, seed, tmp_path)
    assert (analyze.verdict.status, analyze.verdict.cause) == ("DEGRADED", "straggler")
    assert (report.verdict.status, report.verdict.cause) == ("DEGRADED", "straggler")
    assert culprits(analyze) == culprits(report) == {
        name for kind, name in truth.guilty if kind == "rank"
    }  # fmt: skip
    by_line, by_box = ({one.kind for one in card.stragglers} for card in (analyze, report))
    assert by_line == by_box == {truth.late_by}
    cost = analyze.verdict.cost_share
    for other in (report.verdict.cost_share, truth.cost_share):
        assert cost is not None
        assert other is not None
        assert abs(cost - other) <= max(COST_SHARE, COST_RATIO * other)


@pytest.mark.parametrize(
    "planner",
    [
        pytest.param(plans.ddp, marks=LONG),
        pytest.param(plans.inference, marks=LONG),
        pytest.param(plans.tensor_data, marks=LONG),
        pytest.param(plans.experts, marks=LONG),
    ],
)
def test_nobody_is_accused_in_a_healthy_job(planner: object, tmp_path: Path) -> None:
    report, analyze, _ = of(healthy(small(planner)), 2, tmp_path)  # type: ignore[arg-type]
    assert analyze.verdict.status == report.verdict.status == "HEALTHY"
    assert culprits(analyze) == set()


@LONG
def test_servers_whose_requests_came_more_seldom_for_a_while_are_not_slow(tmp_path: Path) -> None:
    job, _ = make("healthy-inference", 1)
    play(job, tmp_path, json=True)
    card = analyzed(tmp_path)
    assert card.verdict.status == "HEALTHY"
    assert all(one.severity == INFO for one in card.findings)


FAULTS = {
    # Its steps end with an operation that has no line, and it is late for a quarter of the job.
    "host-stall-tp-dp": ("straggler", {"rank 7"}),
    # Longer than the time between two bursts.
    "storage-outage": ("outside communication", set()),
    # Ranks of one place on their nodes share a rail.
    "nic-rail-all": ("network", {"rail 6"}),
}


@LONG
@pytest.mark.parametrize("case", FAULTS)
def test_lines_tell_a_fault_as_boxes_do(case: str, tmp_path: Path) -> None:
    cause, who = FAULTS[case]
    job, truth = make(case, 3)
    play(job, tmp_path, json=True)
    card = analyzed(tmp_path)
    assert (card.verdict.status, card.verdict.cause) == ("DEGRADED", cause)
    found = [one for one in card.findings if one.severity != INFO]
    named = {entity.name for one in found for entity in one.entities}
    assert who <= named
    assert named <= who | {name for _, name in truth.guilty} | {"n02 GPU-0553509f", "n02"}
    assert card.verdict.cost_share is not None
    cost = abs(card.verdict.cost_share - truth.cost_share)
    assert cost <= max(COST_SHARE, COST_RATIO * truth.cost_share)


@pytest.mark.parametrize(
    "case", [pytest.param("hang-ddp", marks=LONG), pytest.param("hang-dies", marks=LONG)]
)
def test_a_job_that_did_not_end_is_not_healthy(case: str, tmp_path: Path) -> None:
    job, _ = make(case, 1)
    play(job, tmp_path, json=True)
    card = analyzed(tmp_path)
    assert card.verdict.status == "CANNOT TELL"
    assert "nccl-inspector report" in card.verdict.summary
    assert card.exit_code == 3
