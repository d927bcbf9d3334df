# SPDX-License-Identifier: Apache-2.0
"""The trace of a job for Perfetto and Chrome: what is on which track, and where arrows go."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nccl_inspector.commands.trace import trace as command
from nccl_inspector.errors import InspectorError
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.joined_job import build_report
from nccl_inspector.report.trace import ARROW_NS_MIN, about, make_trace, write_trace
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary
from tests.support.summaries import eight_ranks, write_summary

SLOW = "rank 5"
Event = dict[str, Any]


def trace_of(summaries: list[NodeSummary]) -> dict[str, Any]:
    loaded = Loaded(tuple(summaries), (0,), ())
    placed = [(one.head.node, process) for one in summaries for process in one.processes]
    made = make_trace(placed, build_report(loaded).names, build_card(loaded))
    found: dict[str, Any] = json.loads("".join(write_trace(made, about(made))))
    return found


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return trace_of(eight_ranks())


@pytest.fixture(scope="module")
def ranks(trace: dict[str, Any]) -> dict[int, str]:
    """The processes of the trace by number."""
    return {
        one["pid"]: one["args"]["name"]
        for one in trace["traceEvents"]
        if one["ph"] == "M" and one["name"] == "process_name"
    }


def slices(trace: dict[str, Any], category: str) -> list[Event]:
    return [one for one in trace["traceEvents"] if one["ph"] == "X" and one["cat"] == category]


def test_a_rank_is_a_process_with_its_place_and_its_communicators_are_tracks(
    trace: dict[str, Any], ranks: dict[int, str]
) -> None:
    assert len(ranks) == 1 + trace["otherData"]["ranks"]
    assert f"{SLOW} (n3 GPU1)" in ranks.values()
    tracks = defaultdict(set)
    for one in trace["traceEvents"]:
        if one["ph"] == "M" and one["name"] == "thread_name":
            tracks[ranks[one["pid"]]].add(one["args"]["name"])
    assert tracks[f"{SLOW} (n3 GPU1)"] == {"world, 8 ranks", "node, 2 ranks", "position, 4 ranks"}


def test_slices_of_a_track_lie_one_behind_the_other(trace: dict[str, Any]) -> None:
    tracks = defaultdict(list)
    for one in slices(trace, "nccl"):
        tracks[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    for times in tracks.values():
        times.sort()
        assert all(end <= begin + 0.001 for (_, end), (begin, _) in pairwise(times))


def test_the_others_wait_for_the_slow_rank_within_their_operations(
    trace: dict[str, Any], ranks: dict[int, str]
) -> None:
    waits = slices(trace, "waiting")
    world = [one for one in waits if one["name"] == f"waits for {SLOW}"]
    long = Counter(one["name"] for one in waits if one["dur"] > ARROW_NS_MIN / 1000)
    assert long.most_common(1)[0][0] == f"waits for {SLOW}"
    assert SLOW not in {ranks[one["pid"]].partition(" (")[0] for one in world}
    operations = {(one["pid"], one["tid"], one["ts"]): one for one in slices(trace, "nccl")}
    for one in waits:
        outer = operations[one["pid"], one["tid"], one["ts"]]
        assert one["dur"] <= outer["dur"]
        assert outer["args"]["last"] == one["name"].removeprefix("waits for ")


def test_an_arrow_goes_from_who_came_last_to_each_that_waited_long(
    trace: dict[str, Any], ranks: dict[int, str]
) -> None:
    ends = {kind: [one for one in trace["traceEvents"] if one["ph"] == kind] for kind in "sf"}
    assert ends["s"]
    assert [one["id"] for one in ends["s"]] == [one["id"] for one in ends["f"]]
    began = {(one["pid"], one["tid"], one["ts"]) for one in slices(trace, "nccl")}
    assert all((one["pid"], one["tid"], one["ts"]) in began for one in ends["s"])
    sources = Counter(ranks[one["pid"]].partition(" (")[0] for one in ends["s"])
    # Its node's other rank is late, too, because it waits for it.
    assert [name for name, _ in sources.most_common(2)] == [SLOW, "rank 4"]


def test_the_findings_are_slices_of_their_time(trace: dict[str, Any]) -> None:
    (found,) = [one for one in slices(trace, "finding") if SLOW in one["name"]]
    assert found["dur"] > 0
    assert found["pid"] == 0


def test_the_head_says_how_exact_the_clock_is_and_what_is_missing(trace: dict[str, Any]) -> None:
    head = trace["otherData"]
    assert head["operations"] == len(slices(trace, "nccl"))
    assert 0 <= head["ends_of_one_operation_apart_us_median"] < 100
    assert head["ranks_left_out"] == 8 - head["ranks"]


def test_a_job_without_exact_records_has_no_trace() -> None:
    with pytest.raises(InspectorError, match="no process has exact records"):
        trace_of(eight_ranks(sampled=False))


def test_the_command_writes_a_packed_file_and_says_how_to_open_it(tmp_path: Path) -> None:
    for summary in eight_ranks():
        write_summary(tmp_path / "42", replace(summary, head=replace(summary.head, job_id=42)))
    path = tmp_path / "trace.json.gz"
    done = CliRunner().invoke(command, ["42", "--report-dir", str(tmp_path), "--output", str(path)])
    assert done.exit_code == 0, done.output
    assert "ui.perfetto.dev" in done.output
    assert "clocks: the ends of one operation lie" in done.output
    assert json.loads(gzip.decompress(path.read_bytes()))["otherData"]["job"] == 42


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    for summary in eight_ranks():
        write_summary(tmp_path / "42", replace(summary, head=replace(summary.head, job_id=42)))
    done = CliRunner().invoke(
        command, ["42", "--report-dir", str(tmp_path), "--output", str(tmp_path / "no" / "t")]
    )
    assert done.exit_code != 0
    assert "cannot be written: No such file or directory" in str(done.exception or done.output)


def test_a_task_of_an_array_is_no_job_of_another_number(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["4_2", "--report-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "for an array task give its own job id" in " ".join(done.output.split())
