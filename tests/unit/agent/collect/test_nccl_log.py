# SPDX-License-Identifier: Apache-2.0
"""NCCL's logs in a job's directory: kept in the summary, read by the report and by `logs --job`."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_inspector.agent.collect import Collector
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.commands.logs import logs
from nccl_inspector.report.job_context import RequestedInputs
from nccl_inspector.report.make import make_card
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.codec import NodeSummary, decode
from nccl_inspector.summary.nccl_logs import FILE_CHARS_MAX, LOGS_BYTES_MAX, unpack_logs
from tests.support.boxes import JOB_UID, write_box
from tests.support.ended_jobs import BOX, end_job

TIME = "[2026-11-25 10:11:1{}.250] "
REFUSED = "misc/socket.cc:5 (f) NCCL WARN Call to socket failed: Too many open files\n"
CLOSED = "misc/socket.cc:9 (f) NCCL WARN socketProgress: Connection closed by remote peer n1<3>\n"


def write_log(raw: Path, task: int, text: str, uid: int = JOB_UID) -> Path:
    path = raw / f"nccl.42.0.0.{task}.n1.1.log"
    path.write_text(text)
    os.chown(path, uid, uid)
    return path


def collected(run_dir: Path, config: Config) -> NodeSummary:
    run_fd = os.open(run_dir, os.O_RDONLY)
    collector = Collector(run_fd, config, Tally(), AtWork(run_fd))
    assert collector.run_pass(10) == 0
    collector.close()
    os.close(run_fd)
    return decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())


def test_the_logs_of_an_ended_job_are_in_its_summary_its_report_and_logs(
    run_dir: Path, config: Config
) -> None:
    raw = end_job(run_dir)
    write_box(raw, "0_77", BOX)
    write_log(raw, 0, f"NCCL version 2.30.7+cuda13.0\n{TIME.format(4)}n1:1:9 [0] {CLOSED}")
    write_log(raw, 5, f"\n{TIME.format(2)}n1:1:9 [5] {REFUSED}nothing of NCCL's\n")
    summary = collected(run_dir, config)
    files = unpack_logs(summary.nccl_logs)
    assert [one.name for one in files] == ["nccl.42.0.0.0.n1.1.log", "nccl.42.0.0.5.n1.1.log"]
    assert "nothing of NCCL's" not in files[1].text
    loaded = load_summaries(42, config.report_dir, None)
    card = make_card(loaded, config, RequestedInputs(slurm=False))
    (one,) = [one for one in card.findings if one.rule == "nccl-error"]
    assert one.title == (
        "NCCL's log: the process may not open more files (task 5 (n1)); 1 other process followed "
        "within 2 s"
    )
    (seen,) = [one for one in card.data_quality.inputs if one.source == "nccl_log"]
    assert seen.detail == "3 lines in 2 files of NCCL's"
    text = CliRunner().invoke(logs, ["--job", "42", "--report-dir", str(config.report_dir)])
    assert text.exit_code == 2
    assert "FIRST ERROR  task 5 (n1) at 2026-11-25 10:11:12" in text.output
    assert "n1/nccl.42.0.0.5.n1.1.log:1" in text.output


def test_a_job_that_was_not_measured_has_its_logs_all_the_same(
    run_dir: Path, config: Config
) -> None:
    write_log(end_job(run_dir), 3, f"n1:1:9 [0] {REFUSED}")
    summary = collected(run_dir, config)
    assert summary.processes == ()
    assert len(unpack_logs(summary.nccl_logs)) == 1


def test_of_a_large_log_begin_and_end_are_kept_and_that_is_told(
    run_dir: Path, config: Config
) -> None:
    raw = end_job(run_dir)
    lines = "".join(f"n1:1:9 [0] NCCL INFO line {at} {'x' * 80}\n" for at in range(60_000))
    write_log(raw, 0, f"n1:1:9 [0] NCCL INFO Using network IB\n{lines}n1:1:9 [0] {REFUSED}")
    (file,) = unpack_logs(collected(run_dir, config).nccl_logs)
    assert file.is_cut
    assert len(file.text) <= FILE_CHARS_MAX + 1
    assert "Using network IB" in file.text
    assert "Too many open files" in file.text


def test_many_logs_of_a_node_share_the_room(run_dir: Path, config: Config) -> None:
    raw = end_job(run_dir)
    for task in range(64):
        noise = "".join(f"n1:1:9 [0] NCCL WARN {os.urandom(60).hex()}\n" for _ in range(400))
        write_log(raw, task, noise)
    summary = collected(run_dir, config)
    assert len(summary.nccl_logs) <= LOGS_BYTES_MAX
    files = unpack_logs(summary.nccl_logs)
    assert len(files) == 64
    assert all(one.is_cut and one.text for one in files)


@pytest.mark.parametrize("kind", ["link", "fifo", "another user's"])
def test_what_is_no_log_of_the_user_is_refused_and_told(
    run_dir: Path, config: Config, tmp_path: Path, kind: str
) -> None:
    raw = end_job(run_dir)
    write_box(raw, "0_77", BOX)
    path = write_log(raw, 0, f"n1:1:9 [0] {REFUSED}", JOB_UID if kind != "another user's" else 1)
    if kind != "another user's":
        path.unlink()
        secret = tmp_path / "secret"
        secret.write_text(f"n1:1:9 [0] {REFUSED}")
        path.symlink_to(secret) if kind == "link" else os.mkfifo(path)
    summary = collected(run_dir, config)
    assert summary.nccl_logs == b""
    assert any("a log of NCCL is refused" in one for one in summary.head.problems)


def test_without_a_log_the_summary_and_logs_say_so(run_dir: Path, config: Config) -> None:
    write_box(end_job(run_dir), "0_77", BOX)
    assert collected(run_dir, config).nccl_logs == b""
    done = CliRunner().invoke(logs, ["--job", "42", "--report-dir", str(config.report_dir)])
    assert done.exit_code == 3
    assert "no log of NCCL's is kept; --nccl-inspector=MODE,debug makes one" in done.output
