# SPDX-License-Identifier: Apache-2.0
"""Words and figures of a report that contradicted themselves, or said what nobody knew."""

from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.analysis.hardware.counter_words import count_words
from nccl_inspector.analysis.hardware.slow import find_slow_hardware
from nccl_inspector.analysis.slow_times.attribution import attribute
from nccl_inspector.analysis.slow_times.comparison import ClassChange, Comparison
from nccl_inspector.counters.counter_table import load_counters
from nccl_inspector.counters.node_counters import Count, DeviceCounters, NodeCounters
from nccl_inspector.model import rules
from nccl_inspector.model.card import WARNING, Card, Entity, Evidence, Finding
from nccl_inspector.model.wording import said_evidence
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.run.user_summaries import job_head
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary
from tests.support import example_cards
from tests.support.boxes import MS, BoxOf, CommOf, KeyOf
from tests.support.counter_summaries import SPANS, on
from tests.support.summaries import FIRST, eight_ranks, process_of, times

HOUR_S = 3600


def card_of(folder: Path, boxes: list[BoxOf], start: int = 1, end: int = 1 + HOUR_S) -> Card:
    head = replace(FIRST, nodelist="n1", num_nodes=1, job_start=start, start=start, end=end)
    processes = tuple(process_of(folder, box) for box in boxes)
    return build_card(Loaded((NodeSummary(head, processes),), (0,), ()))


def test_operations_that_overlap_take_no_more_than_all_of_the_jobs_time(tmp_path: Path) -> None:
    boxes = [
        BoxOf([CommOf(7, rank, 2, 2, "a"), CommOf(8, rank, 2, 2, "b")],
              [KeyOf(0, [90 * MS] * 100), KeyOf(1, [90 * MS] * 100)], procid=rank)
        for rank in range(2)
    ]  # fmt: skip
    card = card_of(tmp_path, boxes, end=1 + 12)
    (net,) = card.transports
    assert net.busy_s > 12
    assert net.wall_share == 1.0
    assert "operations, which overlap here" in " ".join(render_text(card).split())


def test_a_dip_is_explained_by_no_more_than_all_of_it() -> None:
    slow = Comparison((ClassChange("net", -0.5, 0.4),), 0.0, -0.1, -0.1)
    found = attribute(slow)
    assert found.predicted is not None
    assert found.longer is not None
    assert found.predicted > 2 * found.longer
    assert found.explained == 1.0


def test_a_counter_of_time_stands_for_no_more_than_all_of_the_time() -> None:
    busy = DeviceCounters("node", "", {"cpu_some": Count(601 * 10**6)}, {}, {})
    (one,) = find_slow_hardware([on("n1", NodeCounters(SPANS, (busy,)))]).evidence("n1", "")
    assert one.value == 1.0
    held = count_words(load_counters()["gpu", "thermal"], Count(601 * 10**9), 596)
    assert "(100.0% of the time)" in held


def test_a_figure_that_stands_beside_no_others_does_not_say_of_0() -> None:
    busy = DeviceCounters("node", "", {"cpu_some": Count(300 * 10**6)}, {}, {})
    (one,) = find_slow_hardware([on("n1", NodeCounters(SPANS, (busy,)))]).evidence("n1", "")
    assert one.count is None
    assert said_evidence(one) == "cpu_some: 50% (counters)"
    assert said_evidence(Evidence("boxes", "in flight", 9.0, "s", count=0)) == (
        "in flight: 9.00 s (boxes)"
    )


def test_what_was_split_from_a_communicator_without_a_name_is_not_called_as_it(
    tmp_path: Path,
) -> None:
    boxes = [
        BoxOf([CommOf(7, rank, 4, 1, "world"), CommOf(8 + rank // 2, rank % 2, 2, 1, "world"),
               CommOf(20 + rank % 2, rank // 2, 2, 1, "dp")],
              [KeyOf(n, times(5)) for n in range(3)], procid=rank)
        for rank in range(4)
    ]  # fmt: skip
    card = card_of(tmp_path, boxes)
    names = {one.id: one.name for one in card.communicators}
    assert names == {
        "0x7": "world", "0x8": "world (split of 2)", "0x9": "world (split of 2)",
        "0x14": "dp", "0x15": "dp",
    }  # fmt: skip


def test_a_process_id_is_not_called_the_number_of_a_job(tmp_path: Path) -> None:
    head = job_head({}, 1)
    process = process_of(tmp_path, BoxOf([CommOf(7, 0, 1)], [KeyOf(0, times(5))]))
    text = render_text(
        build_card(Loaded((NodeSummary(replace(head, node="n1"), (process,)),), (0,), ()))
    )
    assert f"run of process {head.job_id}" in text
    assert f"job {head.job_id}" not in text


def test_the_line_of_what_is_usual_is_not_called_the_baseline_of_similar_jobs() -> None:
    text = render_text(replace(example_cards.network(), baseline=None))
    timeline = text[text.index("TIMELINE") : text.index("LINKS AND GPUS")]
    assert "usually 338 GB/s" in timeline
    assert "baseline" not in timeline


def test_a_finding_names_where_its_entities_are() -> None:
    where = Entity("rank", "rank 15", node="n02", gpu="GPU7", pid=4711)
    finding = Finding(rules.STRAGGLER.id, WARNING, "high", "late", "late", entities=(where,))
    text = render_text(replace(example_cards.network(), findings=(finding,)))
    assert "who: rank 15 (n02 GPU7, pid 4711)" in text


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (DeviceCounters("gpu", "GPU1", {"hw_thermal": Count(300 * 10**9)}, {}, {}),
         "When it called is not known; its GPU's counters say that the GPU may be behind."),
        (DeviceCounters("node", "", {"cpu_some": Count(300 * 10**6)}, {}, {}),
         "When it called is not known; its node's counters say that the host may be late."),
    ],
)  # fmt: skip
def test_counters_alone_do_not_say_when_a_late_rank_called(
    device: DeviceCounters, why: str
) -> None:
    summaries = [
        replace(one, counters=NodeCounters(SPANS, (device,))) if one.head.node == "n3" else one
        for one in eight_ranks()
    ]
    found = build_card(Loaded(tuple(summaries), (0,), ())).findings
    (late,) = [one for one in found if one.rule == rules.STRAGGLER.id]
    assert late.title.startswith("rank 5 (n3 GPU1) is late")
    assert why in late.detail
    assert "called in time" not in late.detail
    assert "called late" not in late.detail
