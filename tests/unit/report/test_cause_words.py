# SPDX-License-Identifier: Apache-2.0
"""What the findings of causes say, and which command they give to run next."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nccl_inspector.analysis.hang.ending import Ending
from nccl_inspector.analysis.hardware.slow import SlowHardware
from nccl_inspector.analysis.replay.cause import LATE, OUTSIDE, Cause
from nccl_inspector.analysis.replay.judge import Judged
from nccl_inspector.analysis.replay.late_calls import LateCalls
from nccl_inspector.analysis.replay.late_sets import LateSet, Sort
from nccl_inspector.model.card import (
    CANNOT_TELL,
    GPU,
    HEALTHY,
    HOST,
    INFO,
    UNKNOWN,
    Evidence,
    Finding,
    Verdict,
)
from nccl_inspector.report.causes import JobView, tell_causes
from nccl_inspector.report.verdict import judge

S = 10**9
NO_HARDWARE = SlowHardware({}, {})
LATE_RANK = Cause(LATE, 0.1, 0.001, 0, 100 * S, whole=True, members=(1,), late_ns=50e6,
                  late_share=1.0)  # fmt: skip
SLOWER = Cause(OUTSIDE, 0.05, 0.0, 20 * S, 80 * S, whole=False, ratio=1.25)


class Told(Judged):
    """Causes, and when those who are late called."""

    calls: LateCalls | None = None

    def late_calls(self, _cause: Cause, _samples: object) -> LateCalls | None:
        """Return the same for all."""
        return type(self).calls


def findings(causes: Sequence[Cause], calls: LateCalls | None = None, seen: bool = True,
             slow: SlowHardware = NO_HARDWARE) -> tuple[list[Finding], Any]:  # fmt: skip
    """Return the findings of causes in a job of two ranks on two nodes, and the late ranks."""
    process = SimpleNamespace(gpus=[], facts=SimpleNamespace(calls=0, call_ns=0))
    view = JobView(cast(Any, [("n1", process), ("n2", process)]), ["rank 0", "rank 1"],
                   ["GPU0", "GPU0"], 100.0, [])  # fmt: skip
    judged = type("It", (Told,), {"calls": calls})(tuple(causes), seen)
    told = tell_causes(judged, view, slow)
    return [one for _, one in told.findings], told.stragglers


def calls_of(kind: str, called_late_ms: float) -> LateCalls:
    return LateCalls(kind, 40, 50e6, called_late_ms * 1e6, 1e6, 1e6, 2e6, 0.1)


def test_a_late_host_is_said_with_how_late_it_calls_and_the_next_command_looks_at_its_cpus() -> (
    None
):
    (found,), (row,) = findings([LATE_RANK], calls_of(HOST, 49.0))
    assert (
        "Its host called late: it begins 50.0 ms after the others because it calls 49.0 ms later"
        in found.detail
    )
    assert "ps -eo" in found.next
    assert "nvidia-smi" not in found.next
    assert row.kind == HOST


def test_a_slow_gpu_is_said_with_when_it_called_and_the_next_command_looks_at_it() -> None:
    (found,), (row,) = findings([LATE_RANK], calls_of(GPU, 1.0))
    assert (
        "Its GPU was behind: it begins 50.0 ms after the others, and calls only 1.00 ms later"
        in found.detail
    )
    assert found.next.startswith("ssh n2 nvidia-smi -q")
    assert row.kind == GPU


@pytest.mark.parametrize("calls", [None, calls_of(UNKNOWN, 20.0)])
def test_if_neither_is_known_the_next_command_looks_at_both(calls: LateCalls | None) -> None:
    (found,), (row,) = findings([LATE_RANK], calls)
    assert "Whether its host or its GPU was late is not known" in found.detail
    assert "ps -eo" in found.next
    assert "nvidia-smi" in found.next
    assert row.kind == UNKNOWN


def test_if_calls_and_counters_contradict_each_other_neither_is_told() -> None:
    hot = SlowHardware({("n2", "GPU0"): (Evidence("counters", "hw_thermal", 0.3, "share"),)}, {})
    (found,), (row,) = findings([LATE_RANK], calls_of(HOST, 49.0), slow=hot)
    assert "contradict each other" in found.detail
    assert row.kind == UNKNOWN


def test_a_rank_that_is_late_for_a_time_is_not_said_to_be_late_in_a_share_of_all_gaps() -> None:
    (found,), _ = findings([replace(LATE_RANK, whole=False, start=60 * S, late_share=0.27)])
    assert "27%" not in found.title
    assert found.title.endswith("is late by 50.0 ms (median), for 40 s")


def test_that_nobody_is_waited_for_is_not_said_beside_a_late_rank() -> None:
    (alone,), _ = findings([SLOWER])
    assert "The ranks do not wait for one of them" in alone.detail
    (_, beside), _ = findings([LATE_RANK, SLOWER])
    assert "do not wait for one of them" not in beside.detail
    assert "besides that in which the others wait for rank 1" in beside.detail
    (_, apart), _ = findings([replace(LATE_RANK, end=10 * S), SLOWER])
    assert "The ranks do not wait for one of them" in apart.detail
    node = replace(LATE_RANK, members=(0, 1), among=LateSet((0, 1), Sort.NODE, "n1"))
    (_, beside), _ = findings([node, SLOWER])
    assert "besides that in which the others wait for all ranks of node n1." in beside.detail
    (_, uneven), _ = findings([replace(node, uneven=True), SLOWER])
    assert "The ranks do not wait for one of them" in uneven.detail


def test_nothing_slow_is_not_what_is_said_beside_a_rank_that_costs_much() -> None:
    told, _ = findings([LATE_RANK], seen=False)
    verdict = judge(
        ending=Ending(""), no_data="", most_missing=False, findings=told, hangs=(), wall_s=100.0,
        waiting_share=0.1, sampled=Judged(why_not="a node is missing"),
    )  # fmt: skip
    assert verdict.status == CANNOT_TELL
    assert "nothing slow was found" not in verdict.summary
    assert verdict.summary.startswith("rank 1 (n2 GPU0) is late by 50.0 ms")
    assert verdict.summary.endswith("but another rank may be slower: a node is missing")


def _verdict(told: Sequence[Finding], sampled: Judged, **more: Any) -> Verdict:
    return judge(
        ending=Ending("COMPLETED"), no_data="", most_missing=False, findings=told, hangs=(),
        wall_s=100.0, waiting_share=0.1, sampled=sampled, **more,
    )  # fmt: skip


STOP = Cause(LATE, 0.04, 0.001, 0, 100 * S, whole=False, members=(1,), late_ns=4e9, rare=True,
             once=True, times=1, saved_s=4.0)  # fmt: skip


def test_a_short_stop_that_happened_once_is_information() -> None:
    (found,), (row,) = findings([STOP])
    assert (found.severity, row.flagged) == (INFO, False)
    assert found.title == "rank 1 (n2 GPU0) makes the others wait once, for 4.00 s"
    assert "It happened once: a part of the program, as a checkpoint, looks the same." in (
        found.detail
    )
    assert found.actions == ("if it saves or logs then, let it do so beside the training",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"saved_s": 70.0, "cost_share": 0.7, "late_ns": 70e9}, "longer than 60 s"),
        ({"saved_s": 25.0, "cost_share": 0.25, "late_ns": 25e9}, "a fifth of the job"),
        ({"times": 3, "once": False}, "three times"),
        ({"rare": False, "times": 0, "once": True}, "no stop"),
    ],
)
def test_what_a_program_hardly_does_by_itself_stays_a_warning(
    change: dict[str, Any], why: str
) -> None:
    (found,), _ = findings([replace(STOP, **change)])
    assert found.severity != INFO, why


def test_what_is_counted_over_the_whole_job_is_not_said_to_be_replayed() -> None:
    (stop,), _ = findings([STOP])
    assert not any("replaying" in one.metric for one in stop.evidence)
    (late,), _ = findings([LATE_RANK])
    assert any("replaying" in one.metric for one in late.evidence)


def test_of_a_node_no_single_gpu_is_looked_at() -> None:
    node = LateSet((0, 1), Sort.NODE, "n1")
    (found,), _ = findings([replace(LATE_RANK, members=(0, 1), among=node)])
    assert "Whether their hosts or their GPUs were late is not known." in found.detail
    assert " -i " not in found.next


@pytest.mark.parametrize(
    ("sort", "uneven", "than"),
    [
        (Sort.NODE, False, "their peers'"),
        (Sort.STAGE, False, "at other times"),
        (Sort.STAGE, True, "those of other stages"),
    ],
)
def test_what_a_set_is_compared_with_is_said(sort: Sort, uneven: bool, than: str) -> None:
    among = LateSet((0, 1), sort, "n1")
    (found,), _ = findings([replace(LATE_RANK, members=(0, 1), among=among, uneven=uneven)])
    assert found.evidence[0].metric == f"own gaps longer than {than} by"
    assert uneven or found.actions[0].startswith("compare their input and hosts")


def test_a_slow_time_at_the_begin_is_not_said_to_last() -> None:
    times = np.arange(0, 100 * S, S)
    records = SimpleNamespace(begin=times, end=times + S)
    for start, words in ((0, "The job began with it"), (90 * S, "It does not come back")):
        cause = replace(SLOWER, start=start, end=start + 10 * S, whole=True)
        view = JobView([], [], [], 100.0, [])
        told = tell_causes(Judged((cause,), True, records=cast(Any, records)), view, NO_HARDWARE)
        ((_, found),) = told.findings
        assert words in found.detail


def test_healthy_says_how_many_causes_may_be_the_programs_own_doing() -> None:
    told, _ = findings([STOP, replace(STOP, members=(0,), cost_share=0.03, saved_s=3.0)])
    verdict = _verdict(told, Judged(seen=True))
    assert verdict.status == HEALTHY
    assert verdict.summary.endswith(f"{told[0].title} (4.0%) and 1 more")
    assert "no rank and no link" not in verdict.summary


def test_nothing_slow_is_not_said_beside_a_port_that_hides_and_a_stop() -> None:
    told, _ = findings([STOP])
    verdict = _verdict(told, Judged(seen=True), unseen="a port has errors")
    assert verdict.status == CANNOT_TELL
    assert verdict.summary == (
        f"{told[0].title} (4.0%), but what is slow might not have shown: a port has errors"
    )


def test_that_the_others_wait_for_a_node_without_data_is_said() -> None:
    sampled = Judged(why_not="only 0% have records of all their ranks", missing_last=0.97)
    verdict = _verdict([], sampled, nodes_missing=("n3",))
    assert verdict.status == CANNOT_TELL
    assert verdict.summary == (
        "the measured ranks wait for ranks of n3, that left no data, in 97% of the operations with "
        "these: whether they are slow, or wait for others themselves, is not known"
    )


def test_the_costs_of_several_are_no_more_than_all_of_the_time() -> None:
    told, _ = findings([replace(LATE_RANK, cost_share=0.7), replace(LATE_RANK, members=(0,),
                                                                    cost_share=0.7)])  # fmt: skip
    verdict = _verdict(told, Judged(seen=True))
    assert (verdict.cost_s, verdict.cost_share) == (100.0, 1.0)


@pytest.mark.parametrize(
    ("node", "uuid", "next_"),
    [
        ("n2", "GPU-1; curl x | sh", "ssh n2 nvidia-smi -q"),
        ("-oProxyCommand=id", "GPU-1", ""),
        ("n2;id", "GPU-1", ""),
    ],
)
def test_what_a_box_or_a_line_claims_is_no_part_of_the_next_command(
    node: str, uuid: str, next_: str
) -> None:
    gpu = SimpleNamespace(label="GPU0", uuid=uuid)
    process = SimpleNamespace(gpus=[gpu], facts=SimpleNamespace(calls=0, call_ns=0))
    view = JobView(cast(Any, [("n1", process), (node, process)]), ["rank 0", "rank 1"],
                   ["GPU0", "GPU0"], 100.0, [])  # fmt: skip
    judged = type("It", (Told,), {"calls": calls_of(GPU, 1.0)})((LATE_RANK,), True)
    ((_, found),) = tell_causes(judged, view, NO_HARDWARE).findings
    assert found.next.startswith(next_)
    assert bool(found.next) == bool(next_)
    assert not {";", "|", "="} & {*found.next}
