# SPDX-License-Identifier: Apache-2.0
"""A file system without room, and files that are too much, with the real thing."""

import os
from pathlib import Path

import pytest

from nccl_inspector.agent import job_files as jobfiles
from nccl_inspector.agent import publish
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.agent.publish import Publisher
from nccl_inspector.system.safe_files import read_at
from tests.support.boxes import line, metrics_text, names, write_user_file
from tests.support.marks import as_root
from tests.support.mounts import mounted
from tests.support.publishing import GAUGE, GOOD, OPS, PROM, one_pass, published, publisher


@as_root
def test_a_full_file_system_takes_the_old_numbers_away_and_is_counted(
    run_dir: Path, raw: Path
) -> None:
    tally = Tally()
    prom = run_dir / "prom"
    with mounted(prom, "-t", "tmpfs", "-o", "size=64k", "none"), publisher(run_dir, tally) as one:
        write_user_file(raw / PROM, GOOD)
        one.run_pass()
        assert names(run_dir / "prom") == ["42.prom"]
        rows = [line(GAUGE, rank=str(number), comm_name="c" * 100) for number in range(300)]
        many = write_user_file(raw / "many", metrics_text(*rows))
        many.rename(raw / PROM)
        one.run_pass()
        assert names(run_dir / "prom") == [], "neither the old one nor half of the new one"
        one.run_pass()
        assert tally.publish_failures == 2
        good = write_user_file(raw / "good", GOOD)
        good.rename(raw / PROM)
        one.run_pass()
        assert GAUGE in published(run_dir)
        assert tally.publish_failures == 2


def test_a_job_beyond_its_share_of_the_page_is_thinned_and_counted(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    write_user_file(raw / PROM, metrics_text(line(GAUGE), line(OPS, rank="3")))
    with publisher(run_dir, tally) as one:
        one.run_pass()
        whole = published(run_dir)
        assert left_out(one) == {"life": "0", "share": "0"}
        monkeypatch.setattr(publish, "NODE_BYTES_MAX", len(whole.encode()) - 1)
        one.run_pass()
        assert GAUGE in published(run_dir)
        assert OPS not in published(run_dir), "neither its series nor its HELP"
        assert left_out(one) == {"life": "0", "share": "1"}
        monkeypatch.setattr(publish, "NODE_BYTES_MAX", 10)
        one.run_pass()
        assert names(run_dir / "prom") == []
        monkeypatch.setattr(publish, "NODE_BYTES_MAX", 2 * len(whole.encode()))
        one.run_pass()
        assert published(run_dir) == whole
    assert not tally.rejected


def left_out(agent: Publisher) -> dict[str, str]:
    """How many series of the only job were left out, by reason."""
    found = {one.text.partition('reason="')[2][:-2]: one.value for one in agent.left_out()}
    assert len(found) == len(agent.left_out())
    return found


@pytest.mark.long
def test_ten_thousand_files_cost_a_bounded_look(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    for number in range(10_000):
        os.close(os.open(raw / f"junk{number}", os.O_CREAT | os.O_WRONLY))
    assert one_pass(run_dir).rejected["too_many_files"] == 1


def test_a_file_of_100_mb_is_not_read(run_dir: Path, raw: Path) -> None:
    write_user_file(raw / PROM, GOOD)
    os.truncate(raw / PROM, 100 << 20)
    assert dict(one_pass(run_dir).rejected) == {"too_big": 1}


def test_a_broken_manifest_is_counted_once(run_dir: Path, raw: Path) -> None:
    tally = Tally()
    write_user_file(raw / PROM, GOOD)
    whole = (raw.parent / "manifest").read_text()
    with publisher(run_dir, tally) as one:
        (raw.parent / "manifest").write_text("format=1\n")
        one.run_pass()
        one.run_pass()
        assert dict(tally.rejected) == {"torn_manifest": 1}
        assert published(run_dir) == ""
        (raw.parent / "manifest").write_text(whole)
        one.run_pass()
        assert GAUGE in published(run_dir)


@pytest.mark.parametrize("times", [1, 3])
def test_a_file_that_is_written_to_while_it_is_read_is_read_again(
    run_dir: Path, raw: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    writes = iter(range(times))

    def overtaken(fd: int, count: int, offset: int) -> bytes:
        """Two replacements meanwhile: the process writes into the file that is being read."""
        data = read_at(fd, count, offset)
        if os.fstat(fd).st_ino == (raw / PROM).stat().st_ino and next(writes, None) is not None:
            later = os.fstat(fd).st_mtime_ns + 200_000_000
            os.utime(fd, ns=(later, later))
            return data.replace(b"0.25", b"0.99")
        return data

    monkeypatch.setattr(jobfiles, "read_at", overtaken)
    write_user_file(raw / PROM, GOOD)
    tally = one_pass(run_dir)
    assert dict(tally.rejected) == ({} if times == 1 else {"torn": 1})
    assert (" 0.25\n" in published(run_dir)) == (times == 1)
    assert " 0.99\n" not in published(run_dir)


def test_blank_lines_fill_a_file_up_before_its_last_line_only(run_dir: Path, raw: Path) -> None:
    tally = Tally()
    with publisher(run_dir, tally) as one:
        for number, text in enumerate(
            (GOOD.replace(b"# EOF", b"\n" * 9000 + b"# EOF"), b"\n" + GOOD)
        ):
            write_user_file(raw / f"new{number}", text).rename(raw / PROM)
            one.run_pass()
            assert (GAUGE in published(run_dir)) == (number == 0)
    assert dict(tally.rejected) == {"syntax": 1}
