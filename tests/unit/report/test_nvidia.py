# SPDX-License-Identifier: Apache-2.0
"""A job that NVIDIA's plugin measured has a report at its end: means, and nobody named."""

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from nccl_inspector.agent.collect import Collector
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.nvidia import vendor_record as vendorrecord
from nccl_inspector.agent.nvidia.vendor_record import VendorRecord
from nccl_inspector.agent.publish import Publisher
from nccl_inspector.commands.report import report
from nccl_inspector.counters.node_counters import NodeCounters, Span, XidSeen
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.card import CANNOT_TELL, LOW, NO_DATA, Card
from nccl_inspector.nccl_log.launcher_lines import read_launchers
from nccl_inspector.render.comment import make_comment
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import card_from_json, make_schema, to_json
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.job_context import JobContext
from nccl_inspector.settings.config import Config, parse_config
from nccl_inspector.store.card_rows import rows_of
from nccl_inspector.summary import node_parts as nodeparts
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import NodeSummary, decode, encode
from nccl_inspector.summary.vendor_means import VendorMeans, means_to_json
from tests.sandbox import wait_until
from tests.support.boxes import BoxOf, make_job, make_reports, make_run_dir, names, write_box
from tests.support.counter_summaries import HEAD, START_S
from tests.support.ended_jobs import BOX, end_job
from tests.support.nvidia_files import UUID, bucket, record_of
from tests.support.publishing import publisher
from tests.support.scripted_nccl import NVIDIA_STANDIN, Stage, step
from tests.support.summaries import read_process

NOW = datetime(2026, 8, 2, 17, tzinfo=UTC)
OTHER = UUID.replace("1a2b", "5e6f")


DUMPS = {
    UUID: [
        bucket(rate="6", time="20") + bucket("1-2MB", "12", "300", p2p=True),
        bucket(rate="4", time="30"),
    ],
    OTHER: [bucket(rate="2", time="60"), bucket(rate="3", time="40")],
}
MEANS = record_of(DUMPS).means()


def on(node: str, vendor: VendorMeans | None, **more: Any) -> NodeSummary:
    return NodeSummary(replace(HEAD, node=node), vendor=vendor, **{"processes": (), **more})


def card_of(*summaries: NodeSummary) -> Card:
    return build_card(Loaded(summaries, (0,), ()))


CARD = card_of(on("n1", MEANS), on("n2", record_of({UUID: [bucket(rate="5", time="10")]}).means()))


# From the node to a summary.


@pytest.fixture
def run_dir(open_path: Path) -> Path:
    return make_run_dir(open_path / "run")


@pytest.fixture
def config(open_path: Path, run_dir: Path) -> Config:
    return parse_config(f"run_dir = {run_dir}\n{make_reports(open_path)}", "test")


@pytest.fixture
def collector(run_dir: Path, config: Config) -> Iterator[Collector]:
    run_fd = os.open(run_dir, os.O_RDONLY)
    one = Collector(run_fd, config, Tally(), AtWork(run_fd))
    yield one
    one.close()
    os.close(run_fd)


def summary_of(config: Config) -> NodeSummary:
    return decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())


def put_record(raw: Path) -> None:
    (raw.parent / vendorrecord.FILE).write_bytes(record_of(DUMPS).encode())


def test_an_ended_job_without_a_box_is_a_summary_of_its_dumps_and_its_directory_goes(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    put_record(end_job(run_dir))
    assert collector.run_pass(10) == 0
    found = summary_of(config)
    assert (found.processes, found.vendor) == ((), MEANS)
    assert names(run_dir / "ended") == []


def test_an_ended_job_with_both_has_both_in_its_summary(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    raw = end_job(run_dir)
    process = read_process(write_box(raw, "0_77", BOX))
    put_record(raw)
    collector.run_pass(10)
    found = summary_of(config)
    assert (found.processes, found.vendor) == ((process,), MEANS)


def test_a_broken_record_is_refused_and_the_summary_says_so(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    raw = end_job(run_dir)
    (raw.parent / vendorrecord.FILE).write_text("{}")
    collector.run_pass(10)
    found = summary_of(config)
    assert found.vendor is None
    assert found.head.problems == (
        "what is kept of NVIDIA's plugin is refused: bad_vendor_means: another format",
    )


def test_a_record_that_is_not_roots_is_refused(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    raw = end_job(run_dir)
    put_record(raw)
    os.chown(raw.parent / vendorrecord.FILE, 12345, -1)
    collector.run_pass(10)
    assert "wrong_owner" in summary_of(config).head.problems[0]


def test_a_summary_of_before_is_read_without_dumps() -> None:
    line, _, rest = encode(HEAD, []).partition(b"\n")
    values = json.loads(line)
    del values["vendor_bytes"]
    assert decode(json.dumps(values).encode() + b"\n" + rest) == NodeSummary(HEAD, ())


def test_a_summary_cut_within_its_dumps_is_refused() -> None:
    data = encode(HEAD, [], None, MEANS)
    assert decode(data) == NodeSummary(HEAD, (), None, MEANS)
    for size in range(data.index(b"\n") + 1, len(data)):
        with pytest.raises(RefusedError, match="bad_summary"):
            decode(data[:size])


@pytest.mark.parametrize("size", [-1, "9", None, 1 << 40, 1.5])
def test_a_summary_with_an_odd_length_of_its_dumps_is_refused(size: Any) -> None:
    line, _, rest = encode(HEAD, [], None, MEANS).partition(b"\n")
    values = json.loads(line) | {"vendor_bytes": size}
    with pytest.raises(RefusedError, match="bad_summary"):
        decode(json.dumps(values).encode() + b"\n" + rest)


def summary_with(vendor: Any) -> bytes:
    """A summary with these dumps, as somebody else than us may write it."""
    packed = zlib.compress(json.dumps(vendor).encode())
    line = json.loads(encode(HEAD, []).partition(b"\n")[0]) | {"vendor_bytes": len(packed)}
    return json.dumps(line).encode() + b"\n" + packed


def test_dumps_that_cannot_be_are_refused_with_the_summary() -> None:
    odd: tuple[Any, ...] = (None, [], {}, {**means_to_json(MEANS), "rows": [[1] * 8]})
    for vendor in odd:
        with pytest.raises(RefusedError, match="bad_summary"):
            decode(summary_with(vendor))


def test_text_that_could_move_a_cursor_does_not() -> None:
    odd = means_to_json(MEANS)
    odd["problems"] = ["\x1b[2Jx\n"]
    odd["comms"][0][0] = "\x1b[31m\u202e"
    found = decode(summary_with(odd)).vendor
    assert found is not None
    assert found.problems == ("?[2Jx?",)
    assert found.rows[0].kind.comm.name == "?[31m?"


def test_of_dumps_that_do_not_fit_the_kinds_of_most_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        "".join(bucket(f"{1 << size}-{2 << size}B", f"{7 / (size + at + 1):.6g}") for size in sizes)
        for at, sizes in enumerate([range(20)] * 9 + [range(25)])
    ]
    means = record_of({UUID: texts}).means()
    whole = len(nodeparts.pack_vendor(means))
    monkeypatch.setattr(nodeparts, "VENDOR_BYTES_MAX", whole * 3 // 4)
    found = decode(encode(HEAD, [], None, means)).vendor
    assert found is not None
    assert {row.dumps for row in found.rows} == {10}
    assert found.refused["too_many_kinds"] == 25 - len(found.rows)
    monkeypatch.setattr(nodeparts, "VENDOR_BYTES_MAX", 100)
    assert decode(encode(HEAD, [], None, means)).vendor == replace(
        means, rows=(), refused={"too_many_kinds": 25}
    )


def wait_for_dumps(run_dir: Path, agent: Publisher, least: int) -> None:
    """Make passes until the agent has seen so many."""
    path = run_dir / "jobs" / "42" / vendorrecord.FILE

    def are_there() -> bool:
        agent.run_pass()
        means = VendorRecord.decode(path.read_bytes()).means() if path.exists() else VendorMeans()
        return sum(one.count for one in means.dumps) >= least

    wait_until(are_there, 20, f"{least} dumps", 0.25)


def test_what_the_stand_in_of_nvidias_plugin_writes_becomes_a_report(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    raw = make_job(run_dir / "jobs" / "42", uid=os.getuid(), num_nodes=1, nodelist="n1")
    os.chown(raw, os.getuid(), -1)
    stage = Stage(NVIDIA_STANDIN, raw)
    steps = [
        step("comm", name="world", ranks=4),
        *[step("coll", func="AllReduce", bytes=1 << 20, times=8), step("pause")] * 3,
    ]
    with stage.playing(*steps) as playing, publisher(run_dir) as agent:
        for least in (1, 2, 3):
            playing.until_pause()
            wait_for_dumps(run_dir, agent, least)
            playing.go_on()
    (run_dir / "jobs" / "42").rename(run_dir / "ended" / "42.1800000000000000000")
    assert collector.run_pass(10) == 0
    card = card_of(summary_of(config))
    (kind,) = card.operations
    (comm,) = card.communicators
    assert (kind.func, kind.size_class, comm.name, comm.nranks) == ("AllReduce", 20, "world", 4)
    assert kind.time_ns > 0
    assert kind.bus_gbs == pytest.approx((1 << 20) * 1.5 / kind.time_ns, rel=0.5)
    assert card.data_quality.refused == {}
    assert card.exit_code == 3


# From summaries to a card.


def test_the_verdict_is_that_nobody_can_tell() -> None:
    assert (CARD.verdict.status, CARD.verdict.confidence) == (CANNOT_TELL, LOW)
    assert CARD.exit_code == 3
    assert (CARD.findings, CARD.stragglers, CARD.hangs) == ((), (), ())


def test_a_kind_has_the_least_of_the_gpus_means_and_the_whole_spread() -> None:
    (large, small) = CARD.operations
    assert (large.func, large.size_class, large.algo_proto) == ("Send", 20, "")
    assert (small.func, small.size_class, small.count) == ("AllReduce", 13, 0)
    assert small.time_ns == pytest.approx(10_000)
    assert small.bus_gbs == pytest.approx(5)
    assert small.waiting_included
    assert small.waiting_share is None
    assert small.notes[-1] == (
        "5 dumps of 3 GPUs; time 10.0 us to 60.0 us, mean 32.0 us; GB/s 2.00 to 6.00, mean 4.00"
    )


def test_communicators_are_told_by_their_labels() -> None:
    (comm,) = CARD.communicators
    assert (comm.id, comm.transport) == ("unknown (16 ranks, 2 nodes)", "mixed")
    assert (comm.ranks_seen, comm.nodes) == (3, ("n1", "n2"))


def test_communicators_that_their_labels_do_not_tell_apart_are_said_to_be_several() -> None:
    text = bucket().replace('nranks="16"', 'nranks="1"').replace('n_nodes="2"', 'n_nodes="1"')
    (comm,) = card_of(on("n1", record_of({UUID: [text], OTHER: [text]}).means())).communicators
    assert comm.notes[-1] == "several communicators of one name and size: 2 GPUs"


def test_the_quality_says_who_measured_and_what_that_lacks() -> None:
    quality = CARD.data_quality
    assert (quality.ranks_seen, quality.ranks_expected) == (3, 16)
    assert quality.missing[0].startswith("measured by NVIDIA's plugin: no counts")
    assert quality.missing[1].startswith("means of 5 dumps of 3 GPUs, from 2023-11-14 22:13:50 to ")
    states = {one.source: one.state for one in quality.inputs}
    assert (states["nvidia"], states["boxes"]) == ("partial", "absent")


def test_what_was_refused_on_the_nodes_is_said() -> None:
    record = record_of(DUMPS)
    record.refuse(UUID, (99, 0, 0), "torn")
    record.note("what NVIDIA's plugin wrote before cannot be read: too_big")
    quality = card_of(on("n1", record.means()), on("n2", record.means())).data_quality
    assert quality.refused == {"torn": 2}
    assert "n2: what NVIDIA's plugin wrote before cannot be read: too_big" in quality.missing


def test_a_node_without_a_summary_is_missed() -> None:
    assert card_of(on("n1", MEANS)).data_quality.nodes_missing == ("n2",)


def test_only_torn_dumps_are_no_data() -> None:
    record = VendorRecord()
    record.refuse(UUID, (1, 0, 0), "torn")
    card = card_of(on("n1", record.means()))
    assert (card.verdict.status, card.exit_code) == (NO_DATA, 3)
    assert card.data_quality.refused == {"torn": 1}


def test_an_error_of_a_gpu_is_found_all_the_same() -> None:
    spans = (Span("gpu", START_S, START_S + 600, 600, 11, ""),)
    broken = NodeCounters(spans, (), (XidSeen(START_S + 60, "GPU3", 79),))
    card = card_of(on("n1", MEANS, counters=broken))
    assert (card.verdict.status, card.exit_code) == (CANNOT_TELL, 2)
    assert card.counters[0].name == "XID 79"


def test_a_job_that_failed_is_not_said_to_have_communicated_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "nccl_inspector.report.nvidia.with_record", lambda job, _: replace(job, state="FAILED")
    )
    card = card_of(on("n1", MEANS))
    assert (card.verdict.status, card.exit_code) == (CANNOT_TELL, 3)


def test_what_a_launcher_wrote_into_the_output_is_told_beside_the_dumps() -> None:
    wrote = read_launchers([b"srun: error: n1: task 3: Killed\n"])
    loaded = Loaded((on("n1", MEANS),), (0,), ())
    card = build_card(loaded, JobContext(launchers=wrote))
    assert [one.rule for one in card.findings] == ["launcher-ends"]
    assert "task 3 on n1" in card.findings[0].title
    assert card.verdict == build_card(loaded).verdict


def test_where_there_are_boxes_the_figures_are_theirs(tmp_path: Path) -> None:
    process = read_process(write_box(make_job(tmp_path / "42"), "0_77", BOX))
    boxes = card_of(on("n1", None, processes=(process,)))
    both = card_of(on("n1", MEANS, processes=(process,)))
    assert both.operations == boxes.operations
    assert both.verdict == boxes.verdict
    said = "NVIDIA's plugin measured, too: 4 dumps of 2 GPUs that are not in these figures"
    assert said in both.data_quality.missing
    assert said in render_text(both).replace("\n    ", " ")


def test_a_node_with_dumps_beside_one_with_boxes_does_not_hide_them(tmp_path: Path) -> None:
    process = read_process(write_box(make_job(tmp_path / "42"), "0_77", BoxOf(BOX.comms, BOX.keys)))
    card = card_of(on("n1", MEANS), on("n2", None, processes=(process,)))
    assert [one.id for one in card.communicators] == ["0x7"]


# From the card to its forms.


def test_the_json_is_valid_and_read_back_the_same() -> None:
    text = to_json(CARD, NOW)
    jsonschema.Draft202012Validator(make_schema()).validate(json.loads(text))
    assert card_from_json(text) == CARD


def test_the_text_has_the_means_once_explained_and_no_count() -> None:
    text = render_text(CARD)
    assert "CANNOT TELL, low confidence: who was waited for is not in the dumps of NVIDIA's" in text
    assert text.count("NVIDIA's plugin does not count") == 1
    assert "(5 dumps of 3 GPUs; time 10.0 us to 60.0 us, mean 32.0 us; GB/s 2.00 to 6.00" in text
    assert "* waiting for late ranks is in this time" in text
    assert " count" not in text[text.index("COMMUNICATORS") :].splitlines()[1]
    assert max(map(len, text.splitlines())) <= 100


def test_the_page_and_the_comment_are_made_too() -> None:
    page = render_html(CARD, NOW)
    assert "5 dumps of 3 GPUs" in page
    assert make_comment(CARD) == (
        "NCCL CANNOT TELL: who was waited for is not in the dumps of NVIDIAs plugin -- "
        "NCCL CANNOT_TELL ranks=3/16 found=0C,0W,0I conf=low attempt=0 v=1"
    )


def test_the_index_has_the_job_and_compares_nobody_with_its_means() -> None:
    rows = rows_of(CARD)
    assert (rows.job.status, rows.kinds) == (CANNOT_TELL, ())


@pytest.mark.parametrize("form", [[], ["--json"], ["--all"]])
def test_the_command_ends_with_3_and_prints_it(tmp_path: Path, form: list[str]) -> None:
    place = tmp_path / "42"
    place.mkdir()
    (place / "n1.0.nodesummary").write_bytes(encode(HEAD, [], None, MEANS))
    done = CliRunner().invoke(report, ["42", "--report-dir", str(tmp_path), *form])
    assert done.exit_code == 3
    assert "4 dumps of 2 GPUs" in done.output
