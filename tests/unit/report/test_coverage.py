# SPDX-License-Identifier: Apache-2.0
"""What a report says of operations without a time, other clocks and times without measuring."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.model.process import DROP_REASONS, FUNCS, Process
from nccl_inspector.summary.codec import NodeSummary, decode, encode, encode_process
from tests.support.boxes import BoxOf, CommOf, KeyOf
from tests.support.summaries import FIRST, process_of, text_of, times

MINUTE_NS = 60 * 10**9
UNTIMED = {"untimed_ops": 48, "untimed_bytes": 48 << 20}
BROADCAST = FUNCS.index("Broadcast")


def ranks(
    folder: Path,
    keys: list[KeyOf],
    first: Mapping[str, int] | None = None,
    rest: Mapping[str, int] | None = None,
    nranks: int = 4,
) -> list[Process]:
    """Return four ranks of a communicator; the first's header has words of its own."""
    return [
        process_of(
            folder,
            BoxOf(
                [CommOf(7, rank, nranks, name="world")],
                keys,
                procid=rank,
                header=dict((rest if rank else first) or {}),
            ),
        )
        for rank in range(4)
    ]


def report(processes: list[Process]) -> str:
    """Return the report as it is after the way through a summary, every line whole."""
    blocks = [encode_process(process) for process in processes]
    summary = decode(encode(FIRST, blocks))
    assert summary == NodeSummary(FIRST, tuple(processes))
    text = text_of([summary])
    assert max(map(len, text.splitlines())) <= 100
    return text.replace("\n   ", " ")


def verdict(text: str) -> str:
    """Return the verdict of a report that has no data to judge."""
    found = text.partition("VERDICT  NO DATA, low confidence: ")[2].partition("\n\n")[0]
    return " ".join(found.split())


TIMED = [KeyOf(0, times(5))]


def test_where_all_was_measured_nothing_is_said(tmp_path: Path) -> None:
    text = report(ranks(tmp_path, TIMED))
    for word in ("clock", "switch", "spare", "counted", "JSON", "without a time", "list"):
        assert word not in text.split("MISSING")[1]


def test_operations_without_a_time_are_counted_by_function(tmp_path: Path) -> None:
    keys = [*TIMED, KeyOf(0, [], func=BROADCAST, words=UNTIMED), KeyOf(0, [], 2, words=UNTIMED)]
    text = report(ranks(tmp_path, keys))
    assert (
        "operations without a time, counted over all ranks: Broadcast 192 (201 MB), "
        "AllGather 192 (201 MB)" in text
    )
    assert "CANNOT TELL" in text
    assert " Broadcast  " not in text, "no row of figures"


def test_a_communicator_with_counts_alone_says_so(tmp_path: Path) -> None:
    header = {"timing": 0, "nccl_version": 22403, "api_version": 2}
    text = report(ranks(tmp_path, [KeyOf(0, [], words=UNTIMED)], header, header, nranks=0))
    assert verdict(text) == "no times: operations were counted, but none has a time."
    assert "world  0x7  4 ranks" in text
    assert "no operation has a time" in text
    assert "how many ranks there are is not known: NCCL before 2.27 does not tell" in text
    assert "counted only, NCCL 2.24.3 tells no times: all 4 processes" in text
    assert "operations without a time, counted over all ranks: AllReduce 192 (201 MB)" in text


def test_times_of_the_cpus_clock_are_said_to_be_so(tmp_path: Path) -> None:
    header = {"timing": 2, "nccl_version": 22602, "api_version": 3}
    text = report(ranks(tmp_path, TIMED, header))
    assert "measured by the CPU's clock, NCCL 2.26.2 does not tell the GPU's: rank 0 (n1)" in text


def test_a_version_on_the_sites_list_is_the_reason_of_no_data(tmp_path: Path) -> None:
    header = {"silent": 2, "silent_ns": MINUTE_NS, "nccl_version": 22809}
    text = report(ranks(tmp_path, [], header, header))
    assert "no operation was measured: NCCL 2.28.9 is on the site's list" in verdict(text)
    assert "not measured, NCCL 2.28.9 is on the site's list deny_nccl: all 4 processes" in text
    assert "kill switch" not in text


@pytest.mark.parametrize("silent", [0, 1], ids=["lifted", "still on"])
def test_the_time_under_the_kill_switch_is_said(tmp_path: Path, silent: int) -> None:
    header = {"silent": silent, "silent_ns": 12 * MINUTE_NS}
    text = report(ranks(tmp_path, TIMED, header))
    assert "not measured while the site's kill switch was on, up to 12 min: rank 0 (n1)" in text


def test_a_process_that_had_no_second_under_the_kill_switch_is_named(tmp_path: Path) -> None:
    header = {"silent": 1}
    text = report(ranks(tmp_path, [], header, header))
    assert "no operation was measured: the site's kill switch was on" in verdict(text)


def test_sampling_is_said_with_its_length(tmp_path: Path) -> None:
    header = {"sampling": 16, "sampled_ns": 3 * MINUTE_NS}
    keys = [KeyOf(0, times(5), words={"untimed_ops": 750, "untimed_bytes": 750})]
    text = report(ranks(tmp_path, keys, header))
    assert (
        "only some operations timed, to spare the application, for up to 3 min, "
        "one in 16 at the end: rank 0 (n1)" in text
    )
    assert "AllReduce 3000 (3.00 KB)" in text
    assert "(and up to 750 without a time)" in text
    text = report(ranks(tmp_path, keys, {"sampled_ns": 3 * MINUTE_NS}))
    assert "for up to 3 min: rank 0 (n1)" in text


def test_what_is_lost_and_what_is_only_not_in_every_table_are_told_apart(tmp_path: Path) -> None:
    first, *rest = ranks(tmp_path, TIMED, {"json_lines": 1000})
    text = report([replace(first, dropped=tuple(range(1, len(DROP_REASONS) + 1))), *rest])
    unmeasured = next(line for line in text.splitlines() if "events that were not measured" in line)
    assert "no_slot 1, no_communicator 2, no_key 3, expired 4, implausible 5, stale 6" in unmeasured
    assert "json" not in unmeasured
    assert "Sends and Recvs that are not in the figures by peer: 7" in text
    assert "Sends and Recvs that could not be seen as part of their group: 8" in text
    assert "lines that the JSON files have not got: 9 (they have 1000)" in text


def test_a_communicator_that_nobody_has_named_yet_is_not_shown(tmp_path: Path) -> None:
    box = BoxOf([CommOf(0, -1, 0)], header={"timing": 2, "nccl_version": 22602})
    text = report([process_of(tmp_path, box)])
    assert "COMMUNICATORS" not in text
    assert "two processes" not in text
