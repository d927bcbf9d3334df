# SPDX-License-Identifier: Apache-2.0
"""Counters in the node summary and in the report."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.analysis.hardware.findings import find_hardware
from nccl_inspector.analysis.hardware.links import find_links
from nccl_inspector.counters.delta import RESET, STUCK
from nccl_inspector.counters.node_counters import (
    Change,
    Count,
    DeviceCounters,
    Level,
    NodeCounters,
    Risen,
    Span,
    XidSeen,
    to_json,
)
from nccl_inspector.errors import RefusedError
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary import node_parts as nodeparts
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.codec import NodeSummary, decode, encode
from tests.support.counter_summaries import HEAD, SPANS, START_S, on


def port(name: str = "mlx5_0/1", **counts: Count) -> DeviceCounters:
    return DeviceCounters("port", name, counts, {}, {"state": (Change(START_S, "ACTIVE"),)})


def node(*devices: DeviceCounters, **words: Any) -> NodeCounters:
    return NodeCounters(SPANS, devices, **words)


def report(tmp_path: Path, *found: NodeSummary) -> str:
    """What the report says of these summaries, through files."""
    folder = tmp_path / "42"
    folder.mkdir()
    for one in found:
        name = f"{one.head.node}.0.nodesummary"
        (folder / name).write_bytes(encode(one.head, [], one.counters))
    return render_text(build_card(load_summaries(42, tmp_path, None)))


def section(tmp_path: Path, *found: NodeSummary) -> str:
    """What the report says of links and GPUs."""
    text = report(tmp_path, *found)
    if "LINKS AND GPUS" not in text:
        return ""
    return text[text.index("LINKS AND GPUS") : text.index("MISSING")].rstrip()


FULL = node(
    port(link_downed=Count(2, (STUCK,), (Risen(START_S + 60, START_S + 120, 2),))),
    port("mlx5_1/1", link_downed=Count(0)),
    DeviceCounters(
        "gpu", "GPU3",
        {"hw_thermal": Count(6 * 10**9, (), (Risen(START_S, START_S + 60, 6 * 10**9),))},
        {"nvlinks_active": Level(17, 18, 35, 2)},
        {"there": (Change(START_S, "yes"), Change(START_S + 300, "no"))},
    ),
    DeviceCounters("nvlink", "GPU3/17", {"recovery": Count(1)}, {}, {}),
    xids=(XidSeen(START_S + 100, "GPU3", 79),),
    problems=("gpu: no sample at the job's end",),
    whole_node=False,
)  # fmt: skip


def test_counters_go_through_a_summary_as_they_are() -> None:
    assert decode(encode(HEAD, [], FULL)) == NodeSummary(HEAD, (), FULL)
    assert decode(encode(HEAD, [])).counters is None


def test_a_torn_summary_is_refused_in_its_counters_too() -> None:
    data = encode(HEAD, [], FULL)
    for size in range(data.index(b"\n") + 1, len(data)):
        with pytest.raises(RefusedError, match="bad_summary"):
            decode(data[:size])


def spoil(change: Any) -> bytes:
    value = to_json(FULL)
    change(value)
    packed = zlib.compress(json.dumps(value).encode())
    line = json.loads(encode(HEAD, []).partition(b"\n")[0])
    line["counters_bytes"] = len(packed)
    return json.dumps(line).encode() + b"\n" + packed


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v.update(spans=None),
        lambda v: v.pop("xids"),
        lambda v: v.pop("tables"),
        lambda v: v.update(tables=[["port", ["x"], {}, {}]]),
        lambda v: v["tables"][0].__setitem__(1, ["x", 3]),
        lambda v: v["tables"][0].__setitem__(1, ["x", "y", "z"]),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": 1}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": []}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [-1]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [1.5]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [True]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": ["1"]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [1 << 90]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [[1, [], [1, 1 << 60, 1]]]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [[1, [], [1, 1, 1 << 90]]]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [[1, [], [1, 1]]]}),
        lambda v: v["tables"][0].__setitem__(2, {"link_downed": [[1, [], [1, 1, []]]]}),
        lambda v: v["tables"][0].__setitem__(2, {f"c{n}": [0] for n in range(300)}),
        lambda v: v["tables"][0].__setitem__(3, {"nvlinks": [[1, 2, 3]]}),
        lambda v: v["tables"][0].__setitem__(4, {"state": [[]]}),
        lambda v: v.update(xids=[[1 << 40, "GPU0", 79]]),
        lambda v: v.update(problems=["x" * 5000]),
        lambda v: v.update(tables=[v["tables"][0]] * 5000),
        lambda v: v.update(tables=[["port", ["x"] * 2000, {}, {}, {}]] * 3),
    ],
)
def test_counters_that_cannot_be_are_refused(change: Any) -> None:
    assert decode(spoil(lambda _: None)).counters == FULL
    with pytest.raises(RefusedError, match="bad_summary"):
        decode(spoil(change))


def rows_of_devices(node: NodeCounters) -> Any:
    """The JSON value that a release before format 12 made of the devices."""
    return [
        [
            one.kind, one.name,
            {name: [v.total, list(v.flags), list(map(list, v.risen))] if v.flags or v.risen
             else v.total for name, v in one.counts.items()},
            {name: list(v) for name, v in one.levels.items()},
            {name: [list(v) for v in changes] for name, changes in one.facts.items()},
        ]
        for one in node.devices
    ]  # fmt: skip


def test_counters_that_the_release_before_wrote_are_the_same() -> None:
    def older(value: Any) -> None:
        del value["tables"]
        value["devices"] = rows_of_devices(FULL)

    assert decode(spoil(older)).counters == FULL


def test_devices_that_are_alike_are_told_once() -> None:
    quiet = {name: Count(0) for name in ("replay", "recovery", "crc")}
    links = tuple(DeviceCounters("nvlink", f"GPU0/{n}", quiet, {}, {}) for n in range(144))
    many, one = (len(json.dumps(to_json(node(*some)))) for some in (links, links[:1]))
    assert many < one + 15 * len(links)
    data = decode(encode(HEAD, [], node(*links))).counters
    assert data is not None
    assert data.devices == links


def test_text_that_could_move_a_cursor_does_not() -> None:
    found = decode(spoil(lambda v: v.update(problems=["a\x1b[2Jb\n"]))).counters
    assert found is not None
    assert found.problems == ("a?[2Jb?",)


def test_what_does_not_fit_is_told_coarser_then_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = tuple(Risen(START_S + 97 * n * n, START_S + 97 * n * n + n, 1) for n in range(16))
    big = node(*(port(f"mlx5_{n}/1", symbol_error=Count(7, (), rows)) for n in range(3)))
    whole = len(zlib.compress(json.dumps(to_json(big)).encode()))
    monkeypatch.setattr(nodeparts, "COUNTERS_BYTES_MAX", whole * 3 // 4)
    found = decode(encode(HEAD, [], big)).counters
    assert found is not None
    assert found.devices[0].counts["symbol_error"].total == 7
    assert 0 < len(found.devices[0].counts["symbol_error"].risen) < 16
    monkeypatch.setattr(nodeparts, "COUNTERS_BYTES_MAX", 100)
    assert decode(encode(HEAD, [], big)).counters == NodeCounters(absent="they did not fit")


def told(*found: NodeSummary) -> list[tuple[str, str, str]]:
    return [(one.node, one.device, one.words) for one in find_hardware(found).counters]


def test_what_rose_is_said_with_its_device_and_time() -> None:
    quiet = node(port(link_downed=Count(0), port_xmit_data=Count(10**12)))
    assert sorted(told(on("n1", FULL), on("n2", quiet))) == sorted([
        ("n1", "mlx5_0/1",
         "link_downed 2 (2023-11-14 22:14:20 to 22:15:20 UTC) (at least: it counts no further)"),
        ("n1", "GPU3", "clocks held by hw_thermal for 6 s (1.0% of the time)"
         " (2023-11-14 22:13:20 to 22:14:20 UTC)"),
        ("n1", "GPU3", "it is gone (2023-11-14 22:18:20 UTC)"),
        ("n1", "GPU3", "NVLinks that were up: 17 to 18"),
        ("n1", "GPU3 NVLink 17", "recovery 1"),
        ("n1", "GPU3", "XID 79 at 2023-11-14 22:15:00 UTC"),
    ])  # fmt: skip
    links = find_links([on("n1", FULL), on("n2", quiet)])
    assert links is not None
    assert (links.sampled, links.problems) == (2, ("n1: gpu: no sample at the job's end",))


def test_an_xid_that_came_again_is_one_row_with_its_times() -> None:
    seen = tuple(XidSeen(START_S + 100 * n, "GPU3", 13) for n in range(3))
    assert told(on("n1", node(xids=seen))) == [
        ("n1", "GPU3", "XID 13, 3 times (2023-11-14 22:13:20 to 22:16:40 UTC)")
    ]


def test_the_report_shows_it_between_figures_and_what_is_missing(tmp_path: Path) -> None:
    quiet = node(port(link_downed=Count(0)))
    text = section(tmp_path, on("n1", FULL), on("n2", quiet))
    assert text.startswith("LINKS AND GPUS  (the hardware's counters while the job ran; other jobs")
    assert text.endswith("\n n1 GPU3 NVLink 17: recovery 1")
    assert max(map(len, text.splitlines())) <= 100


def test_where_nothing_rose_it_is_one_line(tmp_path: Path) -> None:
    quiet = node(port(symbol_error=Count(0), port_xmit_wait=Count(10**9)))
    text = section(tmp_path, on("n1", quiet), on("n2", quiet))
    assert text.splitlines()[1:] == [" no error on 2 nodes"]


def test_what_is_missing_is_said_by_node(tmp_path: Path) -> None:
    nothing = Span("gpu", START_S, START_S, 0, 1, "no NVIDIA driver")
    some = NodeCounters((SPANS[0], nothing), (port(symbol_error=Count(0)),))
    text = section(tmp_path, on("n1", NodeCounters(absent="no agent sampled them")), on("n2", some))
    assert text.splitlines()[1:] == [
        " no error on 1 node", " no agent sampled them: n1", " no NVIDIA driver: n2",
    ]  # fmt: skip


def test_an_agent_that_came_late_or_went_early_is_said(tmp_path: Path) -> None:
    part = NodeCounters((Span("pressure", START_S + 300, START_S + 400, 100, 2, ""),))
    missing = report(tmp_path, on("n1", part)).partition("\nMISSING\n")[2]
    assert missing.splitlines()[-2:] == [
        " n1: counters from 300 s after the job's start on",
        " n1: counters until 200 s before the job's end",
    ]


def test_a_report_of_summaries_without_counters_says_nothing_of_them(tmp_path: Path) -> None:
    assert section(tmp_path, on("n1", None)) == ""


def test_a_reset_alone_is_no_line_but_a_counter_that_stands_still_is() -> None:
    reset = port(symbol_error=Count(0, (RESET,)))
    stuck = port("mlx5_1/1", symbol_error=Count(0, (STUCK,)))
    assert told(on("n1", node(reset, stuck))) == [
        ("n1", "mlx5_1/1", "symbol_error 0 (at least: it counts no further)")
    ]


def test_a_counter_of_a_later_release_is_passed_over() -> None:
    strange = DeviceCounters("port", "mlx5_0/1", {"warp_errors": Count(5, (RESET,))}, {}, {})
    assert told(on("n1", node(strange))) == []


def test_a_counter_that_rises_in_a_healthy_job_too_is_told_only_where_it_is_bad() -> None:
    alike = [port(f"mlx5_{n}/1", port_xmit_wait=Count(1000 + n)) for n in range(4)]
    assert told(on("n1", node(*alike))) == []
    alike[2] = port("mlx5_2/1", port_xmit_wait=Count(90_000_000))
    assert told(on("n1", node(*alike))) == [("n1", "mlx5_2/1", "port_xmit_wait 90000000")]
