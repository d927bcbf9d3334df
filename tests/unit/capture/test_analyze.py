# SPDX-License-Identifier: Apache-2.0
"""A capture of JSON lines becomes a report card."""

import gzip
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pytest
from click.testing import CliRunner

from nccl_inspector.analysis.histogram import bucket_of
from nccl_inspector.capture import collectives, second_look
from nccl_inspector.capture.analyze import analyze_directory
from nccl_inspector.capture.bursts import choose_bursts
from nccl_inspector.capture.contents import Capture
from nccl_inspector.capture.engine import load
from nccl_inspector.capture.exact_card import waiting_share
from nccl_inspector.capture.first_look import SLOT_BITS
from nccl_inspector.capture.joined import join
from nccl_inspector.capture.line_records import BYTES_MAX, NUMBER_MAX, TIME_US_MAX, WHEN_US_MAX
from nccl_inspector.capture.line_samples import sample_lines
from nccl_inspector.capture.members import columns
from nccl_inspector.capture.processes import as_summaries
from nccl_inspector.capture.reader import connect
from nccl_inspector.cli import cli
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary
from tests.support.json_lines import (
    START_US,
    coll,
    header,
    marker,
    metadata,
    ours,
    p2p,
    text,
    traces,
    whole,
    write,
    write_end,
    write_job,
)
from tests.support.marks import as_root
from tests.support.mounts import mounted


def _ops(capture: Capture) -> int:
    return int(capture.sql.execute("select count(*) from ops").fetchall()[0][0])


STEP_US, LATE_US = 200_000, 8_000  # an operation each 200 ms; how late a late rank is
APART_US = 400  # by which ranks that nobody is late among come apart, at most


def _random_times(operations: int, late_rank: int | None = None) -> list[list[int]]:
    """Times of four ranks; without waiting, a late rank's are shorter by what it is late."""
    rng = random.Random(7)  # noqa: S311
    times: list[list[int]] = [[] for _ in range(4)]
    for _ in range(operations):
        late = [rng.randrange(APART_US) + LATE_US * (rank == late_rank) for rank in range(4)]
        for rank in range(4):
            times[rank].append(100 + rng.randrange(10) + max(late) - late[rank])
    return times


def test_times_and_waiting_are_those_of_the_joined_operations(tmp_path: Path) -> None:
    times = _random_times(300)
    write_job(tmp_path, times)
    with load(tmp_path) as capture:
        joined = join(capture)
    least = [min(own) for own in zip(*times, strict=True)]
    (kind,) = joined.operations
    assert kind.time_ns == median(least) * 1000
    assert kind.bus_gbs == pytest.approx(1048576 * 1.5 / kind.time_ns)
    all_us = sum(map(sum, times))
    assert kind.waiting_share == pytest.approx(1 - 4 * sum(least) / all_us)
    assert waiting_share(joined) == pytest.approx(kind.waiting_share)
    assert not kind.waiting_included
    assert kind.notes == ()


def test_a_late_rank_is_named_with_how_often_it_came_last(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(300, late_rank=2), STEP_US)
    card = analyze_directory(tmp_path, None)
    assert (card.verdict.status, card.verdict.cause) == ("DEGRADED", "straggler")
    assert card.verdict.cost_share == pytest.approx(LATE_US / STEP_US, rel=0.1)
    (late,) = card.stragglers
    assert (late.rank, late.node) == ("rank 2", "n1")
    assert late.late_ns == pytest.approx(LATE_US * 1e3, rel=0.05)
    assert {one.source for one in card.findings[0].evidence} == {"json"}
    last = card.findings[0].evidence[-1]
    assert (last.value, last.reference, last.source) == (300, 300, "json")
    assert "rank 2" in last.metric
    assert card.exit_code == 1


_CALLED_US = 60_000  # after the operation before, while the GPU computes until the next one


def _called(line: Any, kind: str, called_us: int) -> Any:
    """Return our line, or NVIDIA's verbose one, with this time of the call."""
    own = line["coll_perf"]
    if kind == "ours":
        return line | {"coll_perf": own | {"coll_start_us": called_us}}
    end_us = own["coll_end_us"]
    traced = traces("coll", end_us - own["coll_exec_time_us"] - 2)  # its first kernel begins then
    traced["event_trace_ts"]["coll_start_ts"] = called_us
    return whole(
        line["header"]["rank"], coll_perf=coll(own["coll_sn"], own["coll_exec_time_us"], **traced)
    )


@pytest.mark.parametrize("kind", ["ours", "NVIDIA's"])
@pytest.mark.parametrize(("late_call_us", "by"), [(LATE_US, "host"), (0, "gpu")])
def test_lines_say_whether_a_late_rank_called_late_or_its_gpu_was_behind(
    kind: str, late_call_us: int, by: str, tmp_path: Path
) -> None:
    for rank, own in enumerate(_random_times(300, late_rank=2)):
        lines = []
        for at, us in enumerate(own):
            end_us = START_US + at * STEP_US
            called_us = end_us - STEP_US + _CALLED_US + (late_call_us if rank == 2 else 0)
            lines.append(_called(ours(at, rank, us * 1000, end_us), kind, called_us))
        write(tmp_path, f"{rank}.log", lines)
    card = analyze_directory(tmp_path, None)
    (late,) = card.stragglers
    assert (late.rank.removesuffix(" of dp"), late.kind) == ("rank 2", by)


def test_each_of_two_late_ranks_is_told_how_often_it_came_last_itself(tmp_path: Path) -> None:
    for first, comm, operations in ((0, "0xa", 300), (4, "0xb", 290)):
        for at, own in enumerate(_random_times(operations, late_rank=2)):
            rank = first + at
            lines = [ours(n, rank, us * 1000, START_US + n * STEP_US) for n, us in enumerate(own)]
            lines = [line | {"header": header(at, comm=comm)} for line in lines]
            write(tmp_path, f"{rank}.log", lines)
    card = analyze_directory(tmp_path, None)
    told = {
        one.entities[0].name: (one.evidence[-1].metric, one.evidence[-1].value)
        for one in card.findings
        if one.rule == "straggler"
    }
    assert told == {
        "rank 2": ("operations of 0xa that rank 2 came last in", 300),
        "rank 6": ("operations of 0xb that rank 6 came last in", 290),
    }


def test_what_json_lines_do_not_tell_is_not_made_up(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(50)[:2])
    card = analyze_directory(tmp_path, None)
    assert (card.job.user, card.job.uid) == ("", None)
    assert [one.source for one in card.data_quality.inputs] == ["json", "counters"]
    classes = {one.transport for one in card.communicators}
    assert classes == {one.transport for one in card.transports}


def test_a_healthy_job_is_healthy(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(300), STEP_US)
    card = analyze_directory(tmp_path, None)
    assert (card.verdict.status, card.exit_code) == ("HEALTHY", 0)
    assert card.data_quality.inputs[0].state == "present"
    assert (card.job.job_id, card.job.cluster, card.job.nodelist) == (810, "c", "n0,n1")


def test_where_small_operations_have_no_line_the_verdict_says_so(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(300), STEP_US)
    for path in tmp_path.glob("*.log"):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:100] + lines[110:]))
    card = analyze_directory(tmp_path, None)
    assert (card.verdict.status, card.verdict.confidence) == ("HEALTHY", "low")
    assert "40 operations have no line" in card.verdict.summary


def test_without_word_of_their_ends_nobody_knows_that_a_job_was_healthy(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(300), STEP_US)
    for path in tmp_path.glob("*.end"):
        path.unlink()
    card = analyze_directory(tmp_path, None)
    assert (card.verdict.status, card.exit_code) == ("CANNOT TELL", 3)
    assert "all 4 processes ended in order" in card.verdict.summary


@pytest.mark.parametrize("text", ["", "{", "[]", '{"end_us":-1,"operations_unfinished":0}'])
def test_what_is_no_word_of_an_end_is_none(tmp_path: Path, text: str) -> None:
    write_job(tmp_path, _random_times(300), STEP_US)
    for path in tmp_path.glob("*.end"):
        path.write_text(text)
    assert analyze_directory(tmp_path, None).verdict.status == "CANNOT TELL"


def test_operations_under_way_at_the_end_are_told(tmp_path: Path) -> None:
    times = _random_times(300)
    write_job(tmp_path, times, STEP_US)
    for rank in (0, 1, 3):
        write_end(tmp_path, f"node{rank // 2}-pid{1000 + rank}.log", START_US + 10**9, 2)
    card = analyze_directory(tmp_path, None)
    assert card.verdict.status == "CANNOT TELL"
    assert "under way when rank 0, rank 1, rank 3 ended" in card.verdict.summary
    assert "(rank 2 had none)" in card.verdict.summary


def test_ranks_whose_lines_end_at_different_operations_are_told(tmp_path: Path) -> None:
    times = _random_times(300)
    write_job(tmp_path, [*times[:3], times[3][:-1]], STEP_US)
    card = analyze_directory(tmp_path, None)
    assert card.verdict.status == "CANNOT TELL"
    said = "the lines of rank 3 end at AllReduce 299 of dp, those of 3 others at 300"
    assert said in card.verdict.summary


def test_nvidias_lines_have_begins_if_they_are_verbose(tmp_path: Path) -> None:
    for rank, own in enumerate(_random_times(300, late_rank=2)):
        lines = []
        for at, us in enumerate(own):
            end_us = START_US + at * STEP_US
            verbose = traces("coll", end_us - us - 2)  # kernels begin 2 us later
            lines.append(whole(rank, coll_perf=coll(at, us, **verbose)))
        write(tmp_path, f"{rank}.log", lines)
    card = analyze_directory(tmp_path, None)
    assert (card.verdict.status, card.verdict.cause) == ("DEGRADED", "straggler")
    assert card.stragglers[0].late_ns == pytest.approx(LATE_US * 1e3, rel=0.05)


def test_without_begins_nobody_is_accused_and_the_verdict_says_why(tmp_path: Path) -> None:
    for rank, own in enumerate(_random_times(300, late_rank=2)):
        lines = [whole(rank, coll_perf=coll(at, us)) for at, us in enumerate(own)]
        write(tmp_path, f"{rank}.log", lines)
    card = analyze_directory(tmp_path, None)
    assert card.verdict.status == "CANNOT TELL"
    assert "do not say when an operation began" in card.verdict.summary
    assert card.stragglers == ()


def test_sends_with_lost_lines_are_not_joined(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(300), STEP_US)
    for rank, func, times in ((0, "Send", 300), (1, "Recv", 299)):
        line = ours(0, rank, 20_000, START_US, lines_dropped=300 - times)
        del line["coll_perf"]
        lines = [
            line | {"p2p_perf": p2p(at, 1 - rank, func=func) | {
                "p2p_gpu_start_ns": (START_US + at * STEP_US) * 1000,
                "p2p_end_us": START_US + at * STEP_US + 30}}
            for at in range(times)
        ]  # fmt: skip
        write(tmp_path, f"p2p{rank}.log", lines)
    card = analyze_directory(tmp_path, None)
    assert card.verdict.status == "CANNOT TELL"
    assert "cannot be joined" not in str(card.findings)
    assert "lines are missing" in card.verdict.summary


def test_clocks_that_cannot_be_true_cost_their_records(tmp_path: Path) -> None:
    for rank, own in enumerate(_random_times(300)):
        lines = [ours(at, rank, us * 1000, START_US + at * STEP_US) for at, us in enumerate(own)]
        lines[7]["coll_perf"]["coll_gpu_start_ns"] = 5
        lines[8]["coll_perf"]["coll_gpu_start_ns"] = -5
        lines[9]["coll_perf"]["coll_gpu_start_ns"] = 2**63 - 1
        write(tmp_path, f"{rank}.log", lines)
    with load(tmp_path) as capture:
        found = sample_lines(capture)
    assert [len(one) for one in found.values()] == [299] * 4
    for one in found.values():
        starts = one.columns().start_ns
        assert abs(int(starts.min()) - START_US * 1000) < 10**9
        assert int(starts.max()) - int(starts.min()) < 301 * STEP_US * 1000


@pytest.mark.parametrize(("seconds", "most"), [(3600, 500_000), (100, 5_000), (3600, 10_000)])
def test_bursts_are_chosen_until_there_is_room(seconds: int, most: int) -> None:
    ends_ns = START_US * 1000 + np.arange(seconds * 1000) * 10**6
    slots, counts = np.unique(ends_ns >> SLOT_BITS, return_counts=True)
    found = choose_bursts(slots, counts, most)
    inside = ends_ns & ((1 << found.period_bits) - 1) < 1 << found.length_bits
    kept = int(np.count_nonzero(inside))
    assert most / 5 <= kept <= most * 1.1


def test_a_slow_time_is_in_its_windows(tmp_path: Path) -> None:
    slow = range(200, 300)  # an operation each 100 ms, so seconds 20 to 30
    write_job(tmp_path, [[400 if at in slow else 100 for at in range(400)]] * 4, gap_us=100_000)
    with load(tmp_path) as capture:
        line = join(capture).timeline
    assert (line.window_s, line.start_s) == (10, START_US // 10**6)
    gbs = [one for one in line.series[0].bus_gbs if one is not None]
    assert sum(line.series[0].operations) == 400
    assert [one < 0.5 * max(gbs) for one in gbs[:4]] == [False, False, True, False]


def test_a_rank_without_a_file_is_said_to_be_missing(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(50)[:3])
    card = analyze_directory(tmp_path, None)
    assert card.communicators[0].notes == ("1 of 4 ranks have no record",)
    assert any("3 of 4 ranks" in words for words in card.data_quality.missing)
    assert "3 of 4 ranks" in card.operations[0].notes[0]


def test_one_rank_alone_has_no_transfer_time(tmp_path: Path) -> None:
    write_job(tmp_path, _random_times(50)[:1])
    (kind,) = analyze_directory(tmp_path, None).operations
    assert (kind.waiting_included, kind.waiting_share) == (True, None)


def test_different_clocks_are_not_compared(tmp_path: Path) -> None:
    for rank, source in enumerate(("kernel_gpu", "collective_cpu")):
        lines = [whole(rank, coll_perf=coll(at, coll_timing_source=source)) for at in range(9)]
        write(tmp_path, f"{rank}.log", lines)
    card = analyze_directory(tmp_path, None)
    assert card.operations[0].waiting_included
    assert card.data_quality.timing == "mixed"


def test_collectives_of_different_sizes_are_counted(tmp_path: Path) -> None:
    for rank in range(2):
        size = 1048576 * (rank + 1)
        write(tmp_path, f"{rank}.log", [whole(rank, coll_perf=coll(coll_msg_size_bytes=size))])
    with load(tmp_path) as capture:
        assert join(capture).mismatched == 1


def test_sends_and_collectives_of_nvidia_s_formats_are_all_read(tmp_path: Path) -> None:
    write(tmp_path, "a.log", [whole(0, coll_perf=coll(at)) for at in range(5)])
    write(tmp_path, "b.jsonl", [whole(1, p2p_perf=p2p(at, 0)) for at in range(7)])
    write(tmp_path, "c.log.gz", [whole(2, "v4.2", coll_perf=coll(at)) for at in range(3)])
    bare = [marker(3, 2, 1, "v4.3", dropped=4), *({"coll_perf": coll(at)} for at in range(2))]
    write(tmp_path, "d.jsonl.gz", [*bare, {"p2p_perf": p2p(0, 2)}])
    with load(tmp_path) as capture:
        counts = capture.sql.execute(
            "select rank, kind, count(*) from ops group by all order by all"
        )
        assert counts.fetchall() == [
            (0, "coll", 5), (1, "p2p", 7), (2, "coll", 3), (3, "coll", 2), (3, "p2p", 1),
        ]  # fmt: skip
        assert (capture.refused, capture.dropped) == ({}, {"ring_full": 4})


MOST = 2**63 - 1
IMPLAUSIBLE: tuple[dict[str, Any], ...] = (
    {"time_us": -5}, {"time_us": MOST}, {"coll_exec_time_ns": 2**62}, {"number": MOST},
    {"coll_msg_size_bytes": 2**64 - 8}, {"coll_end_us": MOST}, {"coll_end_us": -MOST},
)  # fmt: skip
HOSTILE = {
    "not_a_record": b'hello\n17\nnull\n[1]\n{"header":\n\xff\xfe\n{"a":"\x00"}\n'
    + b"[" * 9000
    + b"\n",
    "incomplete": text([{"header": 1, "metadata": 2, "coll_perf": coll()}])
    + text([whole(0, coll_perf=coll(coll_sn="x")), whole(0, coll_perf=coll(coll_sn=10**30))]),
    "implausible": text([whole(99, coll_perf=coll())])
    + text([{**whole(0, coll_perf=coll()), "header": header(nranks=-3_000_000_000)}])
    + text([{**whole(0, coll_perf=coll()), "header": header() | {"nnodes": -2}}])
    + text([whole(0, coll_perf=coll(**odd)) for odd in IMPLAUSIBLE]),
    "line_too_long": b'{"x":"' + b"y" * (40 << 20) + b'"}\n',
}
HOSTILE_LINES = {
    "not_a_record": 8,
    "incomplete": 3,
    "implausible": 3 + len(IMPLAUSIBLE),
    "line_too_long": 1,
}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A directory with a file of five good lines, and room for others."""
    write(tmp_path, "good.log", [ours(at, 0, 20_000, START_US) for at in range(5)])
    return tmp_path


@pytest.mark.parametrize("reason", HOSTILE)
@pytest.mark.parametrize("gzipped", [False, True])
def test_bad_lines_are_counted_and_the_rest_is_read(good: Path, reason: str, gzipped: bool) -> None:
    data = (
        text([whole(1, coll_perf=coll(7))]) + HOSTILE[reason] + text([whole(1, coll_perf=coll(8))])
    )
    path = good / ("bad.log.gz" if gzipped else "bad.log")
    path.write_bytes(gzip.compress(data) if gzipped else data)
    with load(good) as capture:
        assert capture.refused == {reason: HOSTILE_LINES[reason]}
        assert _ops(capture) == 7


def test_a_torn_last_line_costs_that_line(good: Path) -> None:
    data = text([whole(1, coll_perf=coll(at)) for at in range(3)])
    (good / "torn.log").write_bytes(data[:-100])
    (good / "torn.log.gz").write_bytes(gzip.compress(data.replace(b'"rank":1', b'"rank":2'))[:-6])
    with load(good) as capture:
        assert _ops(capture) == 5 + 2 + 3
        assert capture.refused == {"not_a_record": 1}


def test_the_same_file_twice_counts_once(good: Path) -> None:
    (good / "copy.log").write_bytes((good / "good.log").read_bytes())
    sends = [whole(0, p2p_perf=p2p(at)) for at in range(3)]
    for name in ("p2p.log", "p2p.jsonl"):
        write(good, name, sends)
    with load(good) as capture:
        assert _ops(capture) == 8
        assert capture.refused == {"duplicate": 8}


def test_communicators_have_the_same_place_in_each_process_whichever_began_first(
    tmp_path: Path,
) -> None:
    # Two of one size: many operations of the one, few of the other, which half of the ranks
    # happened to begin first.
    for rank in range(4):
        lines = []
        for comm, every in (("0xa", 1), ("0xb", 10)):
            early_us = 5_000 if (comm == "0xb") == (rank < 2) else 0
            for number in range(1, 201, every):
                start_us = START_US + number * 20_000 - early_us
                line = ours(number, rank, 2_000_000, start_us)
                lines.append(line | {"header": header(rank, comm=comm)})
        write(tmp_path, f"{rank}.log", lines)
    with load(tmp_path) as capture:
        found = sample_lines(capture)
    places = {(kind.comm_id, kind.created_ns) for one in found.values() for kind in one.kinds}
    assert len(places) == 2


def test_a_communicator_of_many_ranks_has_no_repeated_operations_until_one_is(
    tmp_path: Path,
) -> None:
    lines = [whole(rank, coll_perf=coll(at)) for rank in range(70) for at in range(3)]
    for line in lines:
        line["header"]["n_ranks"] = 70
    write(tmp_path, "all.log", lines)
    for repeated in (0, 1):
        write(tmp_path, "again.log", lines[-1:] * repeated)
        with load(tmp_path) as capture:
            assert (_ops(capture), capture.refused["duplicate"]) == (210, repeated)
            assert {
                row[0] for row in capture.sql.execute("select seen from joined").fetchall()
            } == {70}


@pytest.mark.long
def test_the_greatest_numbers_that_may_be_true_are_no_overflow(tmp_path: Path) -> None:
    most: dict[str, Any] = {
        "coll_exec_time_ns": TIME_US_MAX * 1000,
        "coll_msg_size_bytes": BYTES_MAX,
    }
    ranks = range(10_000)  # times of so many sum up to more than 64 bits hold
    lines = [whole(rank, coll_perf=coll(0, **most, coll_end_us=WHEN_US_MAX)) for rank in ranks]
    lines += [whole(rank, coll_perf=coll(NUMBER_MAX, **most)) for rank in ranks[:20]]
    for line in lines:
        line["header"]["n_ranks"] = len(ranks)
    events = traces("coll")
    events["event_trace_ts"]["coll_start_ts"] = MOST
    lines += [whole(0, coll_perf=coll(7, **events)), marker(0, 1, dropped=MOST)]
    write(tmp_path, "all.log", lines)
    card = analyze_directory(tmp_path, None)
    assert card.data_quality.refused == {}
    assert "ring_full" not in card.data_quality.dropped
    assert card.operations[0].time_ns == TIME_US_MAX * 1000
    for words in ([], ["--json"], ["--html", str(tmp_path / "page.html")]):
        done = CliRunner().invoke(cli, ["analyze", str(tmp_path), *words])
        assert done.exit_code in (0, 1, 3), done.output


def test_an_operation_without_any_time_of_its_end_is_in_no_window(tmp_path: Path) -> None:
    lines = [whole(rank, coll_perf=coll(at)) for rank in range(2) for at in range(2)]
    for line in (lines[0], lines[2]):
        del line["metadata"]["dump_timestamp_us"]
    write(tmp_path, "all.log", lines)
    card = analyze_directory(tmp_path, None)
    assert [one.count for one in card.operations] == [2]
    assert [sum(one.operations) for one in card.timeline.series] == [1]


def test_an_algorithm_that_one_rank_tells_is_that_of_all(tmp_path: Path) -> None:
    for rank, told in enumerate(({}, {"coll_algo": "RING"})):
        lines = [whole(rank, coll_perf=coll(at) | told) for at in range(3)]
        write(tmp_path, f"{rank}.log", lines)
    with load(tmp_path) as capture:
        assert {one.algo_proto for one in join(capture).operations} == {"RING_Unknown"}


def test_of_ranks_that_took_equally_long_the_lowest_came_last(tmp_path: Path) -> None:
    """In whatever order they are read: or a report would change from one reading to the next."""
    for comm, ranks in (("0xa", range(4)), ("0xb", reversed(range(4)))):
        for at, rank in enumerate(ranks):
            line = whole(rank, coll_perf=coll(0, 50 if rank in (1, 3) else 90))
            line["header"]["id"] = comm
            write(tmp_path, f"{comm}.{at}.log", [line])
    with load(tmp_path) as capture:
        last = dict(capture.sql.execute("select comm, last from joined").fetchall())
    assert last == {"0xa": 1, "0xb": 1}


def _without_samples(loaded: Loaded) -> list[NodeSummary]:
    """The summaries without their arrays, which cannot be compared as wholes."""
    return [
        replace(one, processes=tuple(replace(own, samples=None) for own in one.processes))
        for one in loaded.summaries
    ]


@pytest.mark.long
def test_what_is_joined_in_parts_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path, _random_times(300), STEP_US)
    whole_card = analyze_directory(tmp_path, None)
    with load(tmp_path) as capture:
        summaries = _without_samples(as_summaries(capture))
    monkeypatch.setattr(collectives, "_OPERATIONS_AT_ONCE", 100)
    monkeypatch.setattr(second_look, "_OPERATIONS_AT_ONCE", 100)
    assert analyze_directory(tmp_path, None) == whole_card
    with load(tmp_path) as capture:
        assert _without_samples(as_summaries(capture)) == summaries
    assert len(summaries[0].processes[0].lines[0].windows) > 3


def test_links_and_pipes_are_not_opened(good: Path) -> None:
    outside = good.parent / "outside.log"
    outside.write_bytes(text([whole(3, coll_perf=coll(1))]))
    (good / "link.log").symlink_to(outside)
    os.mkfifo(good / "pipe.log")
    with load(good) as capture:
        assert (_ops(capture), capture.refused) == (5, {"file_not_regular": 2})


def test_files_that_go_meanwhile_are_passed_over_and_unreadable_folders_told(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def walk(
        top: Path, onerror: Callable[[OSError], None] | None = None
    ) -> Iterator[tuple[str, list[str], list[str], int]]:
        for folder, folders, names, folder_fd in os_fwalk(top):
            yield folder, folders, [*names, "renamed-meanwhile.log"], folder_fd
        if onerror:
            onerror(PermissionError(13, "Permission denied", "closed"))

    os_fwalk = os.fwalk
    monkeypatch.setattr(os, "fwalk", walk)
    with load(good) as capture:
        assert (_ops(capture), capture.refused) == (5, {"folder_unreadable": 1})


def test_a_name_with_a_quote_or_a_pattern_is_a_name(good: Path) -> None:
    write(good, "it's *[a].log", [whole(1, coll_perf=coll(7))])
    with load(good) as capture:
        assert (_ops(capture), capture.refused) == (6, {})


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    line = ours(0, 0, 20_000, START_US, node="n\x1b[2J", cluster="\x9bc")
    line["header"]["comm_name"] = "\x1b]0;x\x07"
    line["coll_perf"]["coll_algo"] = "R\x1b[1m"
    write(tmp_path, "a.log", [line])
    shown = CliRunner().invoke(cli, ["analyze", str(tmp_path)]).output
    assert "analyze" not in shown
    assert all(char.isprintable() or char == "\n" for char in shown)


def test_what_the_writer_lost_is_said(tmp_path: Path) -> None:
    lines = [ours(at, 0, 20_000, START_US, lines_dropped=at, operations_unmeasured=2 * at)
             for at in range(200)]  # fmt: skip
    write(tmp_path, "a.log", lines)
    write(tmp_path, "b.log.gz", [ours(0, 1, 20_000, START_US, lines_dropped=3)])
    with load(tmp_path) as capture:
        assert capture.dropped == {"line_dropped": 199 + 3, "unmeasured": 398}


def test_the_times_of_a_process_are_counted_as_a_box_does(tmp_path: Path) -> None:
    rng = random.Random(3)  # noqa: S311
    times_ns = [rng.choice((900, 1023, 1024, 31_337, 2**20 - 1, 2**20, 2**38)) for _ in range(99)]
    write(tmp_path, "a.log", [ours(at, 0, ns, START_US) for at, ns in enumerate(times_ns)])
    with load(tmp_path) as capture:
        (summary,) = as_summaries(capture).summaries
    (key,) = summary.processes[0].keys
    wanted = sorted({(bucket, sum(bucket_of(ns) == bucket for ns in times_ns))
                     for bucket in map(bucket_of, times_ns)})  # fmt: skip
    assert list(key.histogram.pairs()) == wanted
    assert (key.ops, key.busy_ns, key.min_ns, key.max_ns) == (
        99, sum(times_ns), min(times_ns), max(times_ns),
    )  # fmt: skip


def _flat(line: Any) -> list[Any]:
    if isinstance(line, dict):
        return [one for value in line.values() for one in _flat(value)]
    if isinstance(line, list):
        return [one for value in line for one in _flat(value)]
    return [line]


def test_parquet_has_every_value_of_every_line(tmp_path: Path) -> None:
    lines = [
        whole(0, coll_perf=coll(3) | traces("coll")),
        whole(1, p2p_perf=p2p(4, 0) | traces("p2p")),
        ours(5, 2, 21_500, START_US + 7),
        whole(3, coll_perf=coll(6, coll_user_tag=2**63, coll_kernel_variant="v")),
    ]
    write(tmp_path, "a.log", lines)
    path = tmp_path / "out.parquet"
    done = CliRunner().invoke(cli, ["analyze", str(tmp_path), "--parquet", str(path), "--json"])
    assert json.loads(done.output)["data_quality"]["refused"] == {}
    found = duckdb.execute("select * from read_parquet(?) order by rank", [str(path)])
    assert [column[0] for column in found.description] == [name for name, _, _ in columns()]
    for line, row in zip(lines, found.fetchall(), strict=True):
        values = _flat(dict(enumerate(row)))
        assert [one for one in _flat(line) if one not in values] == []
    assert metadata(0)["hostname"] == "node0"


@as_root
@pytest.mark.long
def test_a_full_tmpdir_is_an_error_of_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, lines = tmp_path / "tmp", tmp_path / "lines"
    place.mkdir()
    lines.mkdir()
    write_job(lines, _random_times(20_000))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with mounted(place, "-t", "tmpfs", "-o", "size=128k", "none"):
        done = CliRunner().invoke(cli, ["analyze", str(lines)])
        assert list(place.iterdir()) == []
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.splitlines() == [
        f"nccl-inspector: {lines}: not analysed, with {place} as TMPDIR: No space left on device"
    ]


def test_a_query_that_takes_two_seconds_draws_no_bar_into_the_report(tmp_path: Path) -> None:
    with closing(connect(tmp_path)) as sql:
        found = sql.execute("select current_setting('enable_progress_bar')").fetchall()
    assert found == [(False,)]


def test_a_directory_without_lines_is_an_error_of_one_line(tmp_path: Path) -> None:
    for words in (["analyze", str(tmp_path)], ["analyze", str(tmp_path / "none")]):
        assert CliRunner().invoke(cli, words).exit_code == 3
    (tmp_path / "a.log").write_text("nothing of ours\n")
    done = CliRunner().invoke(cli, ["analyze", str(tmp_path)])
    assert done.exit_code == 3
    assert "no operation" in done.output
    assert done.output.count("\n") == 1
