# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own Inspector under our hooks: files in place, half written, unlabelled, left behind."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.nvidia import files as vendorfiles
from nccl_inspector.agent.nvidia.file import gpu_label, parse_vendor
from nccl_inspector.agent.publish import Publisher
from tests.support.boxes import names, write_user_file
from tests.support.clocks import StillClock
from tests.support.nvidia_files import FILE, RATE, UUID, Writer, bucket, passes, totals
from tests.support.publishing import published


def test_a_file_that_stands_still_is_published_with_the_true_identity(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket(), bucket("1024-1025KB", p2p=True))
    agent.run_pass()
    assert published(run_dir) == "", "one look does not tell a whole dump from half of one"
    clock.now_s += 0.2
    agent.run_pass()
    text = published(run_dir)
    who = 'cluster="c1",slurm_job_id="42",slurm_nodelist="n[1-4]",node="n1",gpu="GPU-1a2b3c4d"'
    rest = 'rank="",comm="",comm_name="unknown",n_nodes="2",nranks="16"'
    assert (
        f'\n{RATE}{{version="v5.1",{who},{rest},collective="AllReduce",message_size="8-9KB",'
        'algo_proto="RING_SIMPLE"} 6.144\n'
    ) in text
    assert (
        f'\nnccl_p2p_exec_time_microseconds{{version="v5.1",{who},{rest},p2p_operation="Send",'
        'message_size="1024-1025KB"} 20\n'
    ) in text
    assert f'gpu="GPU-1a2b3c4d",gpu_uuid="{UUID}",pci_bus_id=""}} 1\n' in text
    assert '="4711"' not in text
    assert 'node="vm"' not in text
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert "error" not in done.stderr


def test_nothing_of_a_dump_is_lost_but_what_the_manifest_knows_better() -> None:
    dump = (
        bucket("1-2MB", "19.1634", "92.8984", p2p=True)
        + bucket("134-135MB", "44.1181", "104164", comm_name="DP Group 0")
        + bucket("1023-1024KB", "1.5e-05", "0.25")
    )
    identity = {"slurm_job_id": "4712", "node": "n1", "cluster": "c", "slurm_nodelist": "n[1-2]"}
    put = {**identity, "gpu": gpu_label(UUID)}
    buckets = parse_vendor(dump.encode(), UUID, identity).buckets
    kept = [one for bucket_ in buckets for one in bucket_.series]
    assert len(kept) == len(dump.splitlines())
    for line, series in zip(dump.splitlines(), kept, strict=True):
        name, words, value = re.fullmatch(r"(.*){(.*)} (.*)", line).groups()  # type: ignore[union-attr]
        assert (series.metric.name, series.value) == (name, value)
        told, shown = (
            dict(re.findall('([a-z_]+)="([^"]*)"', text)) for text in (words, series.text)
        )
        assert {label: shown[label] for label in told} == {
            label: put.get(label, word) for label, word in told.items()
        }


def test_with_its_totals_a_dump_is_published_and_tells_what_was_dropped(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, tally: Tally
) -> None:
    writer.dump(bucket(), bucket("1-2MB", p2p=True), totals(400, 12, 30, 3))
    passes(agent, clock)
    text = published(run_dir)
    assert text.count(f"\n{RATE}") == text.count("\nnccl_p2p_bus_bandwidth_gbs") == 1
    who = 'cluster="c1",slurm_job_id="42",node="n1",gpu="GPU-1a2b3c4d",process=""'
    dropped = f'\nnccl_inspector_events_dropped_total{{{who},reason="overwritten"}} 15\n'
    assert dropped in text
    assert dict(tally.rejected) == {}
    writer.dump(totals(500, 12, 30, 3))  # what a GPU of which nothing completed since then writes
    passes(agent, clock)
    assert f"\n{RATE}" not in published(run_dir)
    assert dropped in published(run_dir)


def test_a_series_of_another_release_is_left_out_alone(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, tally: Tally
) -> None:
    writer.dump('nccl_new{gpu="GPU0"} 1\n', bucket(), "nccl_newer{} 1e9\n", totals())
    passes(agent, clock)
    assert f"\n{RATE}" in published(run_dir)
    assert "nccl_new" not in published(run_dir)
    assert dict(tally.rejected) == {}


@pytest.mark.parametrize("uptime_s", [0.0, 1e9], ids=["just booted", "up for years"])
def test_how_long_the_machine_has_been_up_does_not_matter(
    run_dir: Path,
    writer: Writer,
    agent: Publisher,
    clock: StillClock,
    tally: Tally,
    uptime_s: float,
) -> None:
    clock.now_s, clock.booted_s = uptime_s, clock.unix_s() - uptime_s
    writer.dump(bucket())
    passes(agent, clock)
    assert f"\n{RATE}" in published(run_dir)
    assert dict(tally.rejected) == {}


def test_two_looks_within_200_ms_are_one(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket())
    passes(agent, clock, 3, pause_s=0.09)
    assert published(run_dir) == ""
    agent.run_pass()
    assert RATE in published(run_dir)


def test_a_dump_under_way_is_never_published(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.begin()
    for number in range(6):
        writer.flush(bucket(f"{number}-{number + 1}MB"))
        passes(agent, clock, 1)
        assert published(run_dir) == ""
    passes(agent, clock, 1)
    assert published(run_dir).count("\n" + RATE) == 6


def test_the_last_whole_dump_stays_while_the_next_is_written(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket(rate="1"), bucket("1-2MB", rate="1"))
    passes(agent, clock)
    writer.dump(bucket(rate="2"))
    passes(agent, clock, 1)
    assert published(run_dir).count("} 1\n") == 4, "both buckets, GPU and job"
    passes(agent, clock, 1)
    assert f"\n{RATE}" in published(run_dir)
    assert published(run_dir).count("} 2\n") == 1
    assert "1-2MB" not in published(run_dir)


def test_a_file_that_nobody_writes_any_more_goes_and_is_counted_once(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, tally: Tally
) -> None:
    writer.dump(bucket())
    passes(agent, clock, 18)
    assert RATE in published(run_dir)
    passes(agent, clock, 4)
    assert names(run_dir / "prom") == []
    assert dict(tally.rejected) == {"stale": 1}
    writer.dump(bucket())  # the same numbers, but it goes on
    passes(agent, clock)
    assert RATE in published(run_dir)


def test_a_file_that_was_old_when_the_agent_came_is_not_published(
    run_dir: Path,
    writer: Writer,
    agent: Publisher,
    clock: StillClock,
    vendor_raw: Path,
    tally: Tally,
) -> None:
    writer.dump(bucket())
    os.utime(vendor_raw / FILE, (clock.unix_s() - 600, clock.unix_s() - 600))
    passes(agent, clock, 3)
    assert published(run_dir) == ""
    assert dict(tally.rejected) == {"stale": 1}


def test_a_clock_that_is_set_changes_nothing(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket())
    passes(agent, clock)
    for step_s in (-1e6, 1e6):
        clock.booted_s += step_s
        passes(agent, clock, 2)
        assert RATE in published(run_dir)


def test_a_file_that_is_gone_goes(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, vendor_raw: Path
) -> None:
    writer.dump(bucket())
    passes(agent, clock)
    (vendor_raw / FILE).unlink()
    passes(agent, clock, 1)
    assert published(run_dir) == ""


BAD = {
    "half a bucket": (bucket().split("\n")[0] + "\n", "torn"),
    "cut in a line": (bucket()[:-5], "torn"),
    "two halves": (bucket().split("\n")[0] + "\n" + bucket("1-2MB").split("\n")[1] + "\n", "torn"),
    "empty": ("", "torn"),
    "a quote in a name": (bucket(comm_name='a"b'), "syntax"),
    "a bucket twice": (bucket() + bucket(), "duplicate_series"),
    "a rank": (bucket().replace('nranks="16"', 'nranks="16",rank="0"'), "unknown_label"),
    "another metric": ("up 0\nup 1\n", "syntax"),
    "one of ours": (bucket().replace(RATE, "nccl_collective_operations_total"), "torn"),
    "not a number": (bucket(rate="-nan"), "not_finite"),
    "a timestamp": (bucket(time="20 1700000000000"), "timestamp"),
    "half of the totals": (bucket() + totals().rpartition("nccl_p2p_dropped")[0], "torn"),
    "totals twice": (bucket() + totals() + totals(), "duplicate_series"),
    "a total that is no count": (bucket() + totals().replace("400", "4.5"), "bad_number"),
    "a total below 0": (bucket() + totals().replace("400", "-1"), "negative"),
    "a total with a rank": (totals().replace('gpu="GPU0"', 'gpu="GPU0",rank="0"'), "unknown_label"),
    "another series that is no number": (bucket() + 'nccl_new{gpu="GPU0"} x\n', "bad_number"),
    "another series cut short": (bucket() + 'nccl_new{gpu="GP\n', "torn"),
    "601 series": ("".join(bucket(f"{n}-{n + 1}B") for n in range(301)), "too_many_series"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_nvidias_plugin_would_not_write_is_refused_whole_and_counted_once(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, tally: Tally, name: str
) -> None:
    text, reason = BAD[name]
    writer.dump(bucket())
    passes(agent, clock)
    assert RATE in published(run_dir)
    writer.dump(text)
    passes(agent, clock, 4)
    assert published(run_dir) == ""
    assert dict(tally.rejected) == {reason: 1}


def test_its_files_and_series_are_capped(
    run_dir: Path, vendor_raw: Path, agent: Publisher, clock: StillClock, tally: Tally,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(vendorfiles, "VENDOR_FILES_MAX", 3)
    monkeypatch.setattr(vendorfiles, "VENDOR_BUCKETS_MAX", 2)
    for number in range(5):
        name = FILE.replace("GPU-1a2b3c4d", f"GPU-1a2b3c4{number}")
        write_user_file(vendor_raw / name, bucket().encode())
    passes(agent, clock)
    assert published(run_dir).count("\n" + RATE) == 2
    assert dict(tally.rejected) == {"too_many_files": 1, "job_series": 1}
