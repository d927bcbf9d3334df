# SPDX-License-Identifier: Apache-2.0
import re
from pathlib import Path

import pytest

from nccl_inspector.analysis.histogram import HistogramSum, bucket_of, median_ns, quantile_ns
from nccl_inspector.analysis.join import join_communicators
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import CANNOT_TELL, HEALTHY
from nccl_inspector.model.hostlist import expand
from nccl_inspector.model.process import FUNCS, Histogram
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.codec import NodeSummary
from tests.support.boxes import MS, BoxOf, CommOf, KeyOf, fixed_chance
from tests.support.summaries import (
    FIRST,
    eight_ranks,
    joined,
    process_of,
    text_of,
    times,
    write_summary,
)


def head(node: str, restart: int = 0) -> object:
    return FIRST.__class__(
        42, 1, "amy", "phys", "gpu", "c1", node, "n[1-4]", 4, restart, 1, 1, 2, "", ()
    )


def test_the_time_of_the_last_rank_is_the_transfer_and_the_rest_is_waiting(tmp_path: Path) -> None:
    figures = joined(tmp_path, {0: 15, 1: 15.1, 2: 5, 3: 15.2}).figures[0]
    assert figures.time_ns == pytest.approx(5 * MS, rel=0.03)
    assert figures.waiting == pytest.approx(30.3 / 50.3, rel=0.03)


def test_the_transfer_is_told_also_where_another_rank_is_the_last_each_time(tmp_path: Path) -> None:
    waited, transfer = times(15, 75), times(5, 25)
    processes = [
        process_of(
            tmp_path,
            BoxOf([CommOf(7, rank, 4)], [KeyOf(0, [*waited, *transfer])], procid=rank),
        )
        for rank in range(4)
    ]
    (comm,) = join_communicators(("n1", process) for process in processes)
    figures = comm.figures[0]
    assert figures.time_ns == pytest.approx(5 * MS, rel=0.03)
    assert figures.waiting == pytest.approx(30 / 50, rel=0.03)
    assert figures.error_ns is not None
    assert figures.error_ns < 0.02 * figures.time_ns


@pytest.mark.parametrize("func", ["Broadcast", "Reduce", "Send", "Recv"])
def test_where_ranks_do_not_wait_for_all_no_waiting_is_told(tmp_path: Path, func: str) -> None:
    figures = joined(tmp_path, {0: 15, 1: 15, 2: 5, 3: 15}, FUNCS.index(func)).figures[0]
    assert (figures.waits, figures.waiting) == (False, 0)


def test_bandwidth_is_bytes_times_factor_over_t(tmp_path: Path) -> None:
    size = 1 << 24
    comm = joined(tmp_path, {0: 15, 1: 15, 2: 5, 3: 15}, size=size)
    assert comm.figures[0].bus_gbs == pytest.approx(size * 1.5 / (5 * MS), rel=0.02)
    comm = joined(
        tmp_path / "gather", {0: 5, 1: 5, 2: 5, 3: 5}, FUNCS.index("AllGather"), size=size
    )
    assert comm.figures[0].bus_gbs == pytest.approx(size * 3 / (5 * MS), rel=0.03)


def test_send_and_recv_have_the_bandwidth_of_their_own_median(tmp_path: Path) -> None:
    comm = joined(tmp_path, {0: 5, 1: 5}, FUNCS.index("Send"), size=1 << 24)
    assert comm.figures[0].operations == 50
    assert comm.figures[0].bus_gbs == pytest.approx((1 << 24) / (5 * MS), rel=0.02)


def test_ranks_that_counted_different_operations_are_noted(tmp_path: Path) -> None:
    one = process_of(tmp_path, BoxOf([CommOf(7, 0, 3)], [KeyOf(0, times(5, 20))]))
    two = process_of(tmp_path, BoxOf([CommOf(7, 1, 3)], [KeyOf(0, times(5, 18))], procid=1))
    (comm,) = join_communicators([("n1", one), ("n2", two)])
    assert comm.notes == ("1 of 3 ranks missing",)
    assert comm.figures[0].notes == ("1 of 3 ranks missing", "ranks have 18 to 20 operations")


def test_two_processes_with_the_same_rank_are_noted_and_the_first_counts(tmp_path: Path) -> None:
    one = process_of(tmp_path, BoxOf([CommOf(7, 0, 2)], [KeyOf(0, times(5))]))
    two = process_of(tmp_path, BoxOf([CommOf(7, 0, 2)], [KeyOf(0, times(9))], procid=1))
    (comm,) = join_communicators([("n1", one), ("n2", two)])
    assert list(comm.members) == [0]
    assert len(comm.notes) == 2


def test_a_late_rank_is_named_with_its_cost_and_its_mate_only_as_its_victim() -> None:
    card = build_card(Loaded(tuple(eight_ranks()), (0,), ()))
    late = next(one for one in card.findings if one.rule == "straggler")
    assert [one.name for one in late.entities] == ["rank 5", "n3", "n3 GPU1"]
    assert late.cost_share == pytest.approx(8 / 97, rel=0.1)
    assert [one.name for one in late.victims] == ["rank 4"]
    assert [one.rank for one in card.stragglers] == ["rank 5"]
    assert {one.waited_for for one in card.operations} == {"", "rank 5"}
    assert {name for name, _ in card.heat} <= {"rank 5"}


@pytest.mark.parametrize(("slow", "sampled"), [(None, True), (5, False)])
def test_nobody_is_named_who_is_not_late_or_where_exact_records_do_not_tell(
    slow: int | None, sampled: bool
) -> None:
    card = build_card(Loaded(tuple(eight_ranks(slow, sampled=sampled)), (0,), ()))
    assert card.verdict.status == (HEALTHY if sampled else CANNOT_TELL)
    assert (card.stragglers, card.heat) == ((), ())
    assert {one.waited_for for one in card.operations} == {""}
    assert "exact records" in card.verdict.summary or sampled


def test_the_report_says_the_verdict_first_and_fits_a_terminal() -> None:
    text = text_of(eight_ranks())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    at = next(at for at, line in enumerate(lines) if line.startswith("VERDICT"))
    assert "high confidence: rank 5 (n3 GPU1) cost this job 8% of its time" in lines[at]
    titles = [line.split()[0] for line in lines if line and line[0] != " "]
    assert titles[:6] == ["NCCL", "VERDICT", "nodes", "ran", "data", "sources"]
    assert "did not end in order, data up to the last event: rank 7 (n4)" in text
    assert re.search(r" rank 5 +n3 +GPU1 +8.0[0-9] ms +[0-9.]+ s +3 of 3", text)


def test_the_report_says_what_is_missing() -> None:
    text = text_of(eight_ranks()[:2])
    assert "no summary of 2 nodes: n[3-4]" in text
    assert "4 of 8 ranks missing" in text


def test_a_job_without_any_operation_has_no_verdict(tmp_path: Path) -> None:
    process = process_of(tmp_path, BoxOf())
    text = text_of([NodeSummary(FIRST, (process,))])
    assert "VERDICT  NO DATA" in text


def test_a_name_that_a_user_chose_cannot_break_the_table(tmp_path: Path) -> None:
    comms = [CommOf(7, 0, 1, name="x" * 63), CommOf(8, 0, 1, name="\x1b[31m{}%s")]
    process = process_of(tmp_path, BoxOf(comms, [KeyOf(0, times(5)), KeyOf(1, times(5))]))
    text = text_of([NodeSummary(FIRST, (process,))])
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_latest_attempt_is_shown_and_others_on_request(tmp_path: Path) -> None:
    for restart in (0, 2):
        write_summary(tmp_path / "42", NodeSummary(head("n1", restart), ()))  # type: ignore[arg-type]
    assert load_summaries(42, tmp_path, None).summaries[0].head.restart == 2
    assert load_summaries(42, tmp_path, 0).summaries[0].head.restart == 0
    with pytest.raises(InspectorError, match="has no attempt 1; it has 0, 2"):
        load_summaries(42, tmp_path, 1)


def test_a_summary_that_cannot_be_read_is_a_problem_not_an_end(tmp_path: Path) -> None:
    write_summary(tmp_path / "42", NodeSummary(FIRST, ()))
    (tmp_path / "42" / "n2.0.nodesummary").write_bytes(b"garbage")
    (tmp_path / "42" / "n3.0.nodesummary").symlink_to("/etc/passwd")
    (tmp_path / "42" / "n4.0.nodesummary").write_bytes(
        (tmp_path / "42" / "n1.0.nodesummary").read_bytes()
    )
    loaded = load_summaries(42, tmp_path, None)
    assert [problem.split(":")[0] for problem in loaded.problems] == ["n2", "n3", "n4"]


def test_an_unknown_job_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InspectorError, match="no report of job 7"):
        load_summaries(7, tmp_path, None)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-4,7],m01", ["n1", "n2", "n3", "n4", "n7", "m01"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
    ],
)
def test_a_node_list_is_expanded_as_slurm_does(text: str, nodes: list[str]) -> None:
    assert expand(text) == nodes


@pytest.mark.parametrize(
    "text",
    ["n[1-", "n]1[", "n[[1]]", "n[]", "n[a-b]", "n[1-99999999]", "n[1-9999]x[1-9999]", "n[1--2]"],
)
def test_a_node_list_that_is_none_or_has_no_end_is_refused(text: str) -> None:
    with pytest.raises(InspectorError, match="node list"):
        expand(text)


def test_a_median_is_within_two_percent_and_sums_merge() -> None:
    chance = fixed_chance(8)
    for _ in range(50):
        middle = chance.randrange(1000, 10**10)
        spread = [int(middle * chance.uniform(0.9, 1.1)) for _ in range(1001)]
        counts: dict[int, int] = {}
        for ns in spread:
            counts[bucket_of(ns)] = counts.get(bucket_of(ns), 0) + 1
        histogram = Histogram.of(counts.items())
        assert median_ns(histogram) == pytest.approx(sorted(spread)[500], rel=0.02)
        twice = Histogram.of((bucket, 2 * count) for bucket, count in histogram.pairs())
        total = HistogramSum()
        total.add(histogram)
        total.add(histogram)
        assert total.total() == twice
    assert quantile_ns(Histogram(), 0.5) == 0
    assert median_ns(Histogram((3,), (0,))) == 0
