# SPDX-License-Identifier: Apache-2.0
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from nccl_inspector.analysis.bandwidth import bus_factor, size_class, size_label
from nccl_inspector.analysis.histogram import bucket_of, lower_ns, median_ns, merge, quantile_ns
from nccl_inspector.analysis.join import Communicator, join_communicators
from nccl_inspector.analysis.straggler import rank_stragglers
from nccl_inspector.card.build import build_card
from nccl_inspector.card.text import render_text
from nccl_inspector.errors import InspectorError
from nccl_inspector.hostlist import expand
from nccl_inspector.model import FUNCS, Histogram, Process
from nccl_inspector.report import Loaded, Report, build_report, load_summaries
from nccl_inspector.summary import NodeSummary, encode, encode_process
from tests.boxes import MS, BoxOf, CommOf, KeyOf, fixed_chance, write_box
from tests.test_box import run_c
from tests.test_collect import HEAD, read_process

FIRST = HEAD.__class__(42, 1, "amy", "phys", "gpu", "c1", "n1", "n[1-4]", 4, 0, 1, 1, 2, "", ())


def head(node: str, restart: int = 0) -> object:
    return FIRST.__class__(
        42, 1, "amy", "phys", "gpu", "c1", node, "n[1-4]", 4, restart, 1, 1, 2, "", ()
    )


def times(middle_ms: float, count: int = 50) -> list[int]:
    """Return times around a middle, two percent apart."""
    return [int(middle_ms * MS * (0.99 + 0.02 * n / count)) for n in range(count)]


def process_of(folder: Path, box: BoxOf) -> Process:
    folder.mkdir(exist_ok=True)
    return read_process(write_box(folder, f"0_{box.procid}", box))


def joined(
    folder: Path, medians_ms: Mapping[int, float], func: int = 1, size: int = 1 << 20
) -> Communicator:
    """Return the communicator of ranks with these medians."""
    count = len(medians_ms)
    processes = [
        process_of(
            folder,
            BoxOf([CommOf(7, rank, count)], [KeyOf(0, times(ms), func, size)], procid=rank),
        )
        for rank, ms in medians_ms.items()
    ]
    (comm,) = join_communicators(("n1", process) for process in processes)
    return comm


def late_rank(comm: Communicator) -> int | None:
    late = comm.figures[0].late
    return late.rank if late else None


def test_the_last_rank_is_the_one_with_the_least_median(tmp_path: Path) -> None:
    comm = joined(tmp_path, {0: 15, 1: 15.1, 2: 5, 3: 15.2})
    late = comm.figures[0].late
    assert late is not None
    assert late.rank == 2
    assert late.late_ns == pytest.approx(10.1 * MS, rel=0.03)
    assert late.waited_ns == pytest.approx(50 * 30.3 * MS, rel=0.03)
    assert comm.figures[0].waiting == pytest.approx(30.3 / 50.3, rel=0.03)
    assert comm.figures[0].time_ns == pytest.approx(5 * MS, rel=0.03)


@pytest.mark.parametrize(
    "medians",
    [
        {0: 5, 1: 5.05, 2: 5.1, 3: 5.02},
        {0: 5, 1: 5.14},
        {0: 0.1, 1: 0.25},
        {0: 5, 1: 9, 2: 13, 3: 17},
        {0: 5},
    ],
    ids=["even", "below 3 %", "below 200 us", "no outlier", "alone"],
)
def test_without_a_clear_distance_nobody_is_named(
    tmp_path: Path, medians: dict[int, float]
) -> None:
    assert late_rank(joined(tmp_path, medians)) is None


def test_of_two_ranks_a_clear_distance_decides(tmp_path: Path) -> None:
    assert late_rank(joined(tmp_path, {0: 9, 1: 5})) == 1


def test_a_distance_that_chance_makes_names_nobody(tmp_path: Path) -> None:
    def rank(number: int, times_ms: list[float]) -> Process:
        key = KeyOf(0, [int(ms * MS) for ms in times_ms])
        return process_of(tmp_path, BoxOf([CommOf(7, number, 2)], [key], procid=number))

    few_and_wide = [4.2, 4.6, 4.8, 5.0, 5.3, 5.6, 6.1]
    wider_still = [4.3, 4.7, 5.1, 5.4, 5.6, 6.0, 6.5]
    processes = [rank(0, few_and_wide), rank(1, wider_still)]
    (comm,) = join_communicators(("n1", process) for process in processes)
    assert late_rank(comm) is None


@pytest.mark.parametrize("func", ["Broadcast", "Reduce", "Send", "Recv"])
def test_where_ranks_do_not_wait_for_all_nobody_is_named(tmp_path: Path, func: str) -> None:
    comm = joined(tmp_path, {0: 15, 1: 15, 2: 5, 3: 15}, FUNCS.index(func))
    assert late_rank(comm) is None
    assert comm.figures[0].waiting == 0


def test_bandwidth_is_bytes_times_factor_over_t(tmp_path: Path) -> None:
    size = 1 << 24
    comm = joined(tmp_path, {0: 15, 1: 15, 2: 5, 3: 15}, size=size)
    assert comm.figures[0].bus_gbs == pytest.approx(size * 1.5 / (5 * MS), rel=0.02)
    comm = joined(
        tmp_path / "gather", {0: 5, 1: 5, 2: 5, 3: 5}, FUNCS.index("AllGather"), size=size
    )
    assert comm.figures[0].bus_gbs == pytest.approx(size * 3 / (5 * MS), rel=0.02)


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


def eight_ranks(folder: Path, slow: int = 5) -> list[NodeSummary]:
    """Return four nodes of two ranks: a world, a communicator per node, and one per position.

    The slow rank makes its node's other rank late too, in that one's position.
    """
    summaries = []
    for node in range(4):
        processes = []
        for rank in (2 * node, 2 * node + 1):
            comms = [
                CommOf(0xABC, rank, 8, 4, "world"),
                CommOf(0x100 + node, rank % 2, 2, 1, "node"),
                CommOf(0x200 + rank % 2, node, 4, 4, "position"),
            ]
            mate = node == slow // 2 and rank != slow
            keys = [
                KeyOf(0, times(4 if rank == slow else 12), size=1 << 22),
                KeyOf(
                    1, times(2 if rank == slow or node != slow // 2 else 10), func=2, size=1 << 20
                ),
                KeyOf(
                    2, times(3 if rank == slow or mate else 9 + rank / 100), func=3, size=1 << 16
                ),
            ]
            box = BoxOf(comms, keys, procid=rank, gpu=f"GPU{rank % 2}", state=1 if rank == 7 else 2)
            processes.append(process_of(folder, box))
        summaries.append(NodeSummary(head(f"n{node + 1}"), tuple(processes)))  # type: ignore[arg-type]
    return summaries


def report_of(summaries: list[NodeSummary]) -> Report:
    return build_report(Loaded(tuple(summaries), (0,), ()))


def text_of(summaries: Sequence[NodeSummary], everything: bool = False) -> str:
    return render_text(build_card(Loaded(tuple(summaries), (0,), ())), everything)


def test_a_rank_that_was_late_because_it_waited_itself_is_not_named(tmp_path: Path) -> None:
    report = report_of(eight_ranks(tmp_path))
    late = {
        one.late.place.name for comm in report.communicators for one in comm.figures if one.late
    }
    assert late == {"rank 4", "rank 5"}
    named = rank_stragglers(report.communicators)
    assert [(one.place.name, len(one.communicators)) for one in named] == [("rank 5", 3)]
    assert rank_stragglers([]) == []


def test_the_report_says_the_verdict_first_and_fits_a_terminal(tmp_path: Path) -> None:
    text = text_of(eight_ranks(tmp_path))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    at = next(at for at, line in enumerate(lines) if line.startswith("VERDICT"))
    assert "DEGRADED (straggler), low confidence: rank 5 (n3 GPU1) came late: 7.97 ms" in lines[at]
    titles = [line.split()[0] for line in lines[:at] if line and line[0] != " "]
    assert titles == ["NCCL", "nodes", "ran", "data", "sources"]
    assert "died without finalizing, data up to the last event: rank 7 (n4)" in text
    assert "Late in 3 of 3 communicators" in text
    assert re.search(r" rank 5 +n3 +GPU1 +7.97 ms +[0-9.]+ s +3 of 3", text)


def test_the_report_says_what_is_missing(tmp_path: Path) -> None:
    text = text_of(eight_ranks(tmp_path)[:2])
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


def write_summary(place: Path, summary: NodeSummary) -> None:
    place.mkdir(exist_ok=True)
    blocks = [encode_process(process) for process in summary.processes]
    name = f"{summary.head.node}.{summary.head.restart}.nodesummary"
    (place / name).write_bytes(encode(summary.head, blocks))


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


def test_histogram_and_bandwidth_rules_are_the_plugins(tmp_path: Path) -> None:
    chance = fixed_chance(7)
    values = [
        0,
        1,
        1023,
        1024,
        1 << 37,
        (1 << 37) - 1,
        1 << 63,
        *(chance.randrange(1 << 38) for _ in range(200)),
    ]
    body, mine = "char label[32];\n", []
    for value in values:
        body += f'printf("%u %u ", hist_bucket({value}ull), bandwidth_size_class({value}ull));\n'
        mine += [str(bucket_of(value)), str(size_class(value))]
    for bucket in range(896):
        body += f'printf("%llu ", (unsigned long long)hist_lower_ns({bucket}));\n'
        mine.append(str(lower_ns(bucket)))
    for class_ in range(64):
        body += f'bandwidth_size_label({class_}, label, sizeof(label)); printf("%s ", label);\n'
        mine.append(size_label(class_))
    for func, name in enumerate(FUNCS):
        for nranks in (0, 1, 2, 7, 64):
            body += f'printf("%.9f ", bandwidth_bus_factor({func}, {nranks}));\n'
            mine.append(f"{bus_factor(name, nranks):.9f}")
    assert run_c(tmp_path, body) == mine


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
        assert merge([histogram, histogram]) == twice
    assert quantile_ns(Histogram(), 0.5) == 0
    assert median_ns(Histogram((3,), (0,))) == 0
