# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's plugin writes while a job runs is kept for the report at its end, once each."""

import json
import os
import random
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.nvidia import files as vendorfiles
from nccl_inspector.agent.nvidia import vendor_record as vendorrecord
from nccl_inspector.agent.nvidia.file import parse_vendor
from nccl_inspector.agent.nvidia.vendor_record import RECORD_BYTES_MAX, VendorRecord, read_record
from nccl_inspector.agent.publish import Publisher
from nccl_inspector.errors import RefusedError
from nccl_inspector.model.kind_labels import LabelledComm, LabelledKind
from nccl_inspector.summary.vendor_means import Spread, VendorMeans
from tests.support.boxes import give, names, write_user_file
from tests.support.clocks import StillClock
from tests.support.nvidia_files import FILE, RATE, UUID, Writer, bucket, passes, totals
from tests.support.publishing import publisher

WORLD = LabelledComm("", "unknown", 16, 2)
KIND = LabelledKind(WORLD, "AllReduce", 13, "RING_SIMPLE")


def record_path(run_dir: Path) -> Path:
    return run_dir / "jobs" / "42" / "vendor"


def kept(run_dir: Path) -> VendorMeans:
    """What is in the job's directory."""
    job_fd = os.open(run_dir / "jobs" / "42", os.O_RDONLY)
    try:
        record = read_record(job_fd)
    finally:
        os.close(job_fd)
    return record.means() if record else VendorMeans()


def dumps_of(run_dir: Path) -> dict[str, int]:
    return {one.gpu: one.count for one in kept(run_dir).dumps}


def test_least_sum_and_greatest_of_all_dumps_are_kept_by_kind(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    for rate, time in (("6", "20"), ("2", "60"), ("4", "25")):
        writer.dump(bucket(rate=rate, time=time), bucket("1-2MB", "1", "7", p2p=True))
        passes(agent, clock)
    found = kept(run_dir)
    rows = {row.kind: row for row in found.rows}
    row = rows[KIND]
    assert (row.gpu, row.dumps) == (UUID, 3)
    assert (row.gbs, row.time_us) == (Spread(3, 2, 12, 6), Spread(3, 20, 105, 60))
    assert (row.gbs.mean, row.time_us.mean) == (4, 35)
    assert rows[LabelledKind(WORLD, "Send", 20, "")].dumps == 3
    (dumps,) = found.dumps
    assert (dumps.count, dumps.first_s, dumps.last_s) == (3, 1700001005, 1700001025)


def test_only_root_can_read_it(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket())
    passes(agent, clock)
    status = record_path(run_dir).stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o600)


def test_a_dump_that_is_seen_in_many_passes_counts_once_and_costs_one_write(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket())
    passes(agent, clock)
    before = record_path(run_dir).stat()
    passes(agent, clock, 8)
    assert dumps_of(run_dir) == {UUID: 1}
    assert record_path(run_dir).stat().st_ino == before.st_ino
    assert record_path(run_dir).stat().st_mtime_ns == before.st_mtime_ns


def test_the_same_numbers_in_another_dump_are_another_dump(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    for _ in range(3):
        writer.dump(bucket())
        passes(agent, clock)
    assert dumps_of(run_dir) == {UUID: 3}


def test_a_dump_under_way_never_counts(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.begin()
    for number in range(6):
        writer.flush(bucket(f"{number}-{number + 1}MB", rate="9"))
        passes(agent, clock, 1)
    assert not record_path(run_dir).exists()
    passes(agent, clock, 1)
    assert dumps_of(run_dir) == {UUID: 1}


def test_a_torn_dump_is_counted_as_such_and_nothing_of_it_is_taken(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    for text in (bucket()[:-5], bucket() + bucket("1-2MB").split("\n")[0] + "\n"):
        writer.dump(text)
        passes(agent, clock, 4)
    found = kept(run_dir)
    assert (found.dumps, found.rows, found.refused) == ((), (), {"torn": 2})


def test_a_hostile_name_is_refused_with_its_dump_and_an_odd_one_is_kept_as_it_is(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    for name in ('a"b', "a\x1b[2Jb", r"a\\b\"c"):
        writer.dump(bucket(comm_name=name))
        passes(agent, clock)
    found = kept(run_dir)
    assert [row.kind.comm.name for row in found.rows] == [r'a\b"c']
    assert found.refused == {"syntax": 1, "bad_label_value": 1}


def test_zeros_are_in_no_mean(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    for rate, time in (("0", "20"), ("4", "0"), ("0", "0")):
        writer.dump(bucket(rate=rate, time=time))
        passes(agent, clock)
    (row,) = kept(run_dir).rows
    assert (row.gbs, row.time_us, row.dumps) == (Spread(1, 4, 4, 4), Spread(1, 20, 20, 20), 2)


def test_what_no_gpu_can_do_is_counted_and_left_out(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket("15-16EB", rate="7.3e17"), bucket(), bucket("20-9EB"))
    passes(agent, clock)
    found = kept(run_dir)
    assert [row.kind for row in found.rows] == [KIND]
    assert found.refused == {"implausible": 1, "odd_labels": 1}


def test_sizes_are_classes_between_powers_of_two(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(*(bucket(f"{size}-{size + 1}KB") for size in range(512, 560)))
    passes(agent, clock)
    (row,) = kept(run_dir).rows
    assert (row.kind.size_class, row.dumps, row.gbs.count) == (19, 1, 48)


def test_an_agent_that_starts_again_goes_on_and_counts_no_dump_twice(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket(rate="6"))
    passes(agent, clock)
    with publisher(run_dir, clock=clock) as second:
        passes(second, clock, 4)
        assert dumps_of(run_dir) == {UUID: 1}
        writer.dump(bucket(rate="2"))
        passes(second, clock)
    (row,) = kept(run_dir).rows
    assert row.gbs == Spread(2, 2, 8, 6)


def test_the_kill_switch_and_back_counts_no_dump_twice(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket())
    passes(agent, clock)
    agent.run_pass(disabled=True)
    passes(agent, clock, 3)
    assert dumps_of(run_dir) == {UUID: 1}


def test_a_new_attempt_begins_anew(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock
) -> None:
    writer.dump(bucket())
    passes(agent, clock)
    (run_dir / "jobs" / "42").rename(run_dir / "ended" / "42.1")
    raw = run_dir / "jobs" / "42" / "raw"
    raw.mkdir(parents=True)
    give(raw)
    manifest = run_dir / "jobs" / "42" / "manifest"
    manifest.write_text((run_dir / "ended" / "42.1" / "manifest").read_text())
    passes(agent, clock)
    assert names(manifest.parent) == ["manifest", "raw"]
    write_user_file(raw / FILE, bucket(rate="3").encode())
    passes(agent, clock)
    (row,) = kept(run_dir).rows
    assert row.gbs == Spread(1, 3, 3, 3)


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[]", b'{"format":9}', b"\xff" * 99, b" " * (2 << 20)]
)
def test_a_broken_record_is_refused_with_the_reason_and_begun_anew(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, tally: Tally, broken: bytes
) -> None:
    record_path(run_dir).write_bytes(broken)
    writer.dump(bucket())
    passes(agent, clock, 4)
    found = kept(run_dir)
    assert [one.count for one in found.dumps] == [1]
    assert found.problems[0].startswith("what NVIDIA's plugin wrote before cannot be read: ")
    assert sum(tally.rejected.values()) == 1


def test_a_link_in_the_place_of_the_record_leads_nowhere(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, tmp_path: Path
) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    record_path(run_dir).symlink_to(target)
    writer.dump(bucket())
    passes(agent, clock)
    assert target.read_text() == "mine"
    assert dumps_of(run_dir) == {UUID: 1}


def test_a_record_that_cannot_be_written_is_tried_again_and_the_series_are_published(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(vendorrecord, "replace_file", full)
        writer.dump(bucket())
        passes(agent, clock, 4)
    assert RATE in (run_dir / "prom" / "42.prom").read_text()
    assert caplog.text.count("cannot be kept for its report: No space left on device") == 1
    passes(agent, clock, 1)
    assert dumps_of(run_dir) == {UUID: 1}


def test_a_job_without_its_files_has_no_record(
    run_dir: Path,
    vendor_raw: Path,
    agent: Publisher,
    clock: StillClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vendorfiles, "read_record", None)
    monkeypatch.setattr(vendorfiles, "VendorRecord", None)
    write_user_file(vendor_raw / "other.prom", bucket().encode())
    passes(agent, clock)
    assert names(run_dir / "jobs" / "42") == ["manifest", "raw"]


def some(text: str) -> Any:
    return parse_vendor(text.encode(), UUID, {})


def test_operations_that_the_plugin_dropped_are_said_once_with_their_highest_number() -> None:
    record = VendorRecord()
    for at, (operations, dropped) in enumerate(((100, 3), (400, 12), (50, 1))):
        record.add(UUID, (at, 0, 0), 5, some(bucket() + totals(operations, dropped, 0, 0)))
    record.add("GPU-2", (0, 0, 0), 5, some(totals(20, 0, 10, 2)))
    line = (
        "NVIDIA's plugin dropped 14 of 430 operations or more before it wrote them: "
        "the means lack these"
    )
    for one in (record, VendorRecord.decode(record.encode())):
        assert one.means().problems == (line,)
        assert [row.dumps for row in one.means().rows] == [3]


def test_nothing_is_said_of_totals_without_a_loss() -> None:
    record = VendorRecord()
    record.add(UUID, (0, 0, 0), 5, some(bucket() + totals(400, 0, 30, 0)))
    assert (record.means().problems, record.means().refused) == ((), {})


def test_series_of_another_release_are_counted() -> None:
    record = VendorRecord()
    record.add(UUID, (0, 0, 0), 5, some('nccl_new{gpu="GPU0"} 1\n' + bucket()))
    assert record.means().refused == {"unknown_metric": 1}


def test_the_record_of_an_earlier_agent_is_read_and_an_invalid_total_is_not() -> None:
    record = VendorRecord()
    record.add(UUID, (0, 0, 0), 5, some(bucket() + totals()))
    words = json.loads(record.encode())
    del words["totals"]
    assert VendorRecord.decode(json.dumps(words).encode()).means().rows == record.means().rows
    for bad in ({UUID: [1]}, {UUID: [1, -2]}, {UUID: [1, "2"]}, [1]):
        with pytest.raises(RefusedError):
            VendorRecord.decode(json.dumps(words | {"totals": bad}).encode())


def test_too_many_kinds_are_counted_and_the_first_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vendorrecord, "ROWS_MAX", 3)
    record = VendorRecord()
    for at in range(2):
        text = "".join(bucket(f"{1 << size}-{2 << size}KB") for size in range(5))
        record.add(UUID, (at, 0, 0), 5, some(text))
    found = record.means()
    assert [(row.kind.size_class, row.dumps) for row in found.rows] == [(10, 2), (11, 2), (12, 2)]
    assert found.refused == {"too_many_kinds": 4}


def test_names_as_long_as_they_may_be_stay_below_the_limit_of_bytes() -> None:
    record = VendorRecord()
    for at in range(16):
        text = "".join(
            bucket(
                f"{1 << size}-{2 << size}B",
                *["0.12345678901234567"] * 2,
                comm_name=f"{at}-{number}" + "x" * 120,
            )
            for number in range(10)
            for size in range(20)
        )
        text = text.replace("AllReduce", "A" * 128).replace("RING_SIMPLE", "R" * 128)
        record.add(f"{at:064}", (at, 0, 0), 5, some(text))
    assert record.means().refused["too_many_kinds"] > 0
    assert len(record.means().rows) > 1000
    data = record.encode()
    assert len(data) <= RECORD_BYTES_MAX
    again = VendorRecord.decode(data)
    assert again.means() == record.means()
    record.add("one more", (99, 0, 0), 6, some(bucket()))
    assert len(record.encode()) <= RECORD_BYTES_MAX


def test_gpus_that_come_and_go_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendorrecord, "GPUS_MAX", 2)
    record = VendorRecord()
    for at in range(4):
        record.add(f"GPU-{at}", (1, 1, 1), 5, some(bucket()))
    found = record.means()
    assert [one.gpu for one in found.dumps] == ["GPU-0", "GPU-1"]
    assert found.refused == {"too_many_files": 2}


def test_a_time_of_a_file_before_1970_spoils_nothing(
    run_dir: Path, writer: Writer, agent: Publisher, clock: StillClock, vendor_raw: Path
) -> None:
    writer.dump(bucket())
    os.utime(vendor_raw / FILE, (-5e8, -5e8))
    passes(agent, clock)
    with publisher(run_dir, clock=clock) as second:
        passes(second, clock)
    assert dumps_of(run_dir) == {UUID: 1}
    assert kept(run_dir).problems == ()


def good() -> dict[str, Any]:
    record = VendorRecord()
    record.add(UUID, (1, 2, 3), 5, some(bucket() + bucket("1-2MB", p2p=True)))
    record.refuse(UUID, (2, 2, 3), "torn")
    record.note("a line")
    found: dict[str, Any] = json.loads(record.encode())
    return found


def test_what_was_written_is_read_back() -> None:
    data = json.dumps(good()).encode()
    assert json.loads(VendorRecord.decode(data).encode()) == good()


ODD: tuple[tuple[tuple[Any, ...], Any], ...] = (
    (("means",), None),
    (("means", "rows"), {}),
    (("means", "rows", 0), []),
    (("means", "rows", 0, 0), 7),
    (("means", "rows", 0, 1), 1),
    (("means", "rows", 0, 1), -1),
    (("means", "rows", 0, 1), True),
    (("means", "rows", 0, 2), "x" * 257),
    (("means", "rows", 0, 3), 64),
    (("means", "rows", 0, 5), 10**400),
    (("means", "rows", 0, 6), [1, float("nan"), 6, 6]),
    (("means", "rows", 0, 6), [1, 6, float("inf"), 6]),
    (("means", "rows", 0, 6), [1, 7, 6, 6]),
    (("means", "rows", 0, 6), [2, 6, 60, 6]),
    (("means", "rows", 0, 6), [0, 0, 60, 60]),
    (("means", "rows", 0, 6), [1, 10**400, 10**400, 10**400]),
    (("means", "rows", 0, 7), [1, "6", 6, 6]),
    (("means", "comms", 0, 1), 10**9),
    (("means", "comms", 0, 0), None),
    (("means", "dumps", 0, 2), -1),
    (("means", "dumps", 0, 3), 1 << 32),
    (("means", "refused", "torn"), 1.5),
    (("means", "problems"), "a"),
    (("last",), []),
    (("last", UUID), [1, 2, 3]),
)


@pytest.mark.parametrize(("path", "value"), ODD)
def test_anything_else_is_refused(path: tuple[Any, ...], value: Any) -> None:
    found = good()
    at: Any = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(RefusedError, match="bad_vendor_means"):
        VendorRecord.decode(json.dumps(found).encode())


def test_a_kind_that_is_there_twice_is_refused() -> None:
    found = good()
    found["means"]["rows"] *= 2
    with pytest.raises(RefusedError, match="a kind of operation comes twice"):
        VendorRecord.decode(json.dumps(found).encode())


def test_no_spoiled_byte_gets_another_error_out_of_it() -> None:
    whole = json.dumps(good()).encode()
    chance = random.Random(7)  # noqa: S311
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(RefusedError):
            VendorRecord.decode(bytes(data))
