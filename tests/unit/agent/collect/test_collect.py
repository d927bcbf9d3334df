# SPDX-License-Identifier: Apache-2.0
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.agent import collect
from nccl_inspector.agent import ended_job as endedjob
from nccl_inspector.agent.collect import Collector
from nccl_inspector.agent.crash_guard import AtWork
from nccl_inspector.agent.log_once import Tally
from nccl_inspector.settings.config import Config
from nccl_inspector.summary.codec import (
    decode,
)
from nccl_inspector.system import acl
from nccl_inspector.system import write_as_user as handover
from nccl_inspector.system.remove_tree import remove_tree
from nccl_inspector.system.safe_files import is_locked
from tests.support.boxes import (
    JOB_UID,
    BoxOf,
    CommOf,
    lock_held,
    names,
    write_box,
)
from tests.support.ended_jobs import BOX, end_job, ended
from tests.support.summaries import read_process

WAIT_S = 10


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def collector(run_dir: Path, config: Config, tally: Tally) -> Iterator[Collector]:
    run_fd = os.open(run_dir, os.O_RDONLY)
    one = Collector(run_fd, config, tally, AtWork(run_fd))
    yield one
    one.close()
    os.close(run_fd)


def test_an_ended_job_becomes_a_summary_and_its_directory_goes(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    raw = end_job(run_dir, restart=3)
    process = read_process(write_box(raw, "0_77", BOX))
    assert collector.run_pass(WAIT_S) == 0
    assert ended(run_dir) == []
    found = decode((config.report_dir / "42" / "n1.3.nodesummary").read_bytes())
    assert found.processes == (process,)
    assert (found.head.user, found.head.nodelist, found.head.restart) == ("amy", "n[1-4]", 3)
    assert (found.head.start, found.head.job_start) == (1700000000, 1699999990)


def test_of_two_of_one_id_the_earlier_is_collected_first(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    earlier, later = end_job(run_dir, age_s=300), end_job(run_dir, age_s=100)
    for raw, name in ((earlier, "earlier"), (later, "later")):
        write_box(raw, "0_77", BOX)
        manifest = raw.parent / "manifest"
        manifest.write_text(manifest.read_text().replace("user=amy", f"user={name}"))
    assert collector.run_pass(WAIT_S, held={earlier.parent.name}) == 2
    assert names(config.report_dir) == []
    assert collector.run_pass(WAIT_S) == 0
    found = decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())
    assert found.head.user == "later"


def test_only_the_jobs_user_may_read_the_summary(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    write_box(end_job(run_dir), "0_77", BOX)
    collector.run_pass(WAIT_S)
    path = config.report_dir / "42" / "n1.0.nodesummary"
    assert os.getxattr(path, "system.posix_acl_access") == acl.pack(6, JOB_UID, 4)
    assert os.getxattr(path.parent, "system.posix_acl_access") == acl.pack(7, JOB_UID, 5)
    assert (path.stat().st_uid, path.stat().st_mode & 0o7777) == (JOB_UID, 0o640)
    assert names(path.parent) == [path.name]


def test_a_directory_without_boxes_is_just_removed(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    end_job(run_dir, mode="")
    assert collector.run_pass(WAIT_S) == 0
    assert names(config.report_dir) == []


def test_without_a_report_directory_the_data_stay_and_the_failure_counts(
    run_dir: Path, config: Config, collector: Collector, tally: Tally
) -> None:
    write_box(end_job(run_dir), "0_77", BOX)
    config.report_dir.rmdir()
    assert collector.run_pass(WAIT_S) == 1
    assert tally.collect_failures == 1
    collector.run_pass(WAIT_S)
    assert tally.collect_failures == 1, "the second try comes later"


def test_a_failed_hand_over_is_tried_again(
    run_dir: Path, config: Config, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "RETRY_FIRST_S", 0)
    write_box(end_job(run_dir), "0_77", BOX)
    hidden = config.report_dir.rename(config.report_dir.with_name("hidden"))
    collector.run_pass(WAIT_S)
    hidden.rename(config.report_dir)
    assert collector.run_pass(WAIT_S) == 0
    assert (config.report_dir / "42" / "n1.0.nodesummary").exists()


def test_an_account_that_is_not_there_is_told_and_nothing_is_lost(
    run_dir: Path, config: Config, tally: Tally
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes another account")
    write_box(end_job(run_dir), "0_77", BOX)
    run_fd = os.open(run_dir, os.O_RDONLY)
    one = Collector(run_fd, replace(config, report_user="no-such-account"), tally, AtWork(run_fd))
    assert one.run_pass(WAIT_S) == 1
    assert tally.collect_failures == 1
    one.close()
    os.close(run_fd)


def test_a_dead_file_server_does_not_stop_the_pass(
    run_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object) -> bytes:
        os.read(os.pipe()[0], 1)
        return b""

    monkeypatch.setattr(collect, "write_report_file", hang)
    monkeypatch.setattr(handover, "CHILD_S", -5)
    write_box(end_job(run_dir), "0_77", BOX)
    assert collector.run_pass(0) == 1, "does not wait, and kills the child for its deadline is over"
    assert collector.run_pass(WAIT_S) == 1
    monkeypatch.undo()
    assert collector.jobs() == {42}


def test_a_child_of_another_account_need_not_be_killed_nor_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    child = handover.Child(os.getpid(), os.pipe()[0], 0)
    monkeypatch.setattr(os, "kill", refuse)
    assert handover.wait(child, 0) is None
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    assert handover.reap([pid]) == [pid]
    monkeypatch.undo()
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_a_job_that_is_handed_over_is_never_summarized_again(
    run_dir: Path,
    config: Config,
    collector: Collector,
    tally: Tally,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stuck(*_: object) -> None:
        raise OSError

    write_box(end_job(run_dir), "0_77", BOX)
    monkeypatch.setattr(collect, "remove_tree", stuck)
    assert collector.run_pass(WAIT_S) == 0, "what is left is not a job that waits"
    assert [name[:9] for name in ended(run_dir)] == [".done-42."]
    path = config.report_dir / "42" / "n1.0.nodesummary"
    before = path.stat().st_ino
    assert collector.run_pass(WAIT_S) == 0
    assert (path.stat().st_ino, tally.collect_failures) == (before, 0)
    monkeypatch.undo()
    collector.run_pass(WAIT_S)
    assert ended(run_dir) == []


def test_a_directory_that_cannot_be_renamed_is_never_summarized_again(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    raw = end_job(run_dir)
    write_box(raw, "0_77", BOX)
    blocker = run_dir / "ended" / f".done-{raw.parent.name}"
    blocker.write_text("a file where the directory should go")
    assert collector.run_pass(WAIT_S) == 0
    assert (config.report_dir / "42").exists()
    blocker.unlink()
    assert collector.run_pass(WAIT_S) == 0
    assert ended(run_dir) == []


def test_boxes_are_capped_and_read_once(
    run_dir: Path, config: Config, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endedjob, "BOXES_MAX", 2)
    raw = end_job(run_dir)
    for number in (1, 3, 4):
        write_box(raw, f"0_{number}", BOX)
    os.link(raw / "nccl_inspector_0_1.box", raw / "nccl_inspector_0_2.box")
    collector.run_pass(WAIT_S)
    found = decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())
    assert [process.facts.name for process in found.processes] == ["0_1", "0_3"]
    assert found.head.problems == (
        "more than 2 processes, the rest is left out",
        "nccl_inspector_0_2.box is refused: same_file",
    )


def test_a_pass_without_time_goes_on_where_it_was(
    run_dir: Path, config: Config, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "PASS_S", -1)
    raw = end_job(run_dir)
    for number in (1, 2):
        write_box(raw, f"0_{number}", BOX)
    for _ in range(2):
        assert collector.run_pass(WAIT_S) == 1
        assert collector.wants_more
    assert collector.run_pass(WAIT_S) == 0
    found = decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())
    assert len(found.processes) == 2


def test_a_box_that_is_held_is_seen_before_any_is_read(
    run_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = end_job(run_dir, age_s=5)
    write_box(raw, "0_1", BOX)
    box = write_box(raw, "0_2", BOX)
    monkeypatch.setattr(endedjob, "read_box", lambda *_: pytest.fail("read too early"))
    with lock_held(box):
        assert collector.run_pass(WAIT_S) == 1


def test_a_torn_manifest_is_kept_an_hour_and_then_removed(
    run_dir: Path, collector: Collector
) -> None:
    for job, age_s in ((42, 100), (43, 4000)):
        raw = end_job(run_dir, job, age_s)
        (raw.parent / "manifest").write_text("format=1\n")
    assert collector.run_pass(WAIT_S) == 1
    assert collector.jobs() == {42}


def test_a_box_that_is_still_held_is_waited_for_a_minute(
    run_dir: Path, collector: Collector
) -> None:
    box = write_box(end_job(run_dir, age_s=5), "0_77", replace_state(BOX, 1))
    with lock_held(box):
        assert collector.run_pass(WAIT_S) == 1
    assert collector.run_pass(WAIT_S) == 0


def replace_state(box: BoxOf, state: int) -> BoxOf:
    return BoxOf(box.comms, box.keys, state=state)


def test_a_killed_process_is_collected_and_counts_as_lost(
    run_dir: Path, config: Config, collector: Collector, tally: Tally
) -> None:
    write_box(end_job(run_dir), "0_77", replace_state(BOX, 1))
    collector.run_pass(WAIT_S)
    (process,) = decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes()).processes
    assert (process.facts.state, process.keys[0].ops, tally.lost) == ("killed", 20, 1)


def test_the_summary_of_an_arrays_task_says_which_it_is(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    box = BoxOf([CommOf(7, 0, 1)])
    box.header.update(array_job_id=40, array_task_id=0)
    write_box(end_job(run_dir), "0_1", box)
    collector.run_pass(WAIT_S)
    summary = decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())
    assert summary.head.array_task == "40_0"


def test_a_box_that_is_none_is_refused_and_the_summary_says_so(
    run_dir: Path, config: Config, collector: Collector
) -> None:
    raw = end_job(run_dir)
    write_box(raw, "0_77", BOX)
    (raw / "nccl_inspector_0_78.box").symlink_to("/dev/zero")
    os.mkfifo(raw / "nccl_inspector_0_79.box")
    collector.run_pass(WAIT_S)
    found = decode((config.report_dir / "42" / "n1.0.nodesummary").read_bytes())
    assert len(found.processes) == 1
    assert [problem.split(": ")[1] for problem in found.head.problems] == ["link", "not_regular"]


def test_removal_follows_no_link_and_knows_no_depth(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    top = run_dir / "ended" / "tree"
    top.mkdir()
    (top / "link").symlink_to(tmp_path)
    os.mkfifo(top / "fifo")
    fd = os.open(top, os.O_RDONLY)
    for number in range(1500):
        os.mkdir(f"d{number % 3}", dir_fd=fd)
        os.close(os.open("file", os.O_CREAT, dir_fd=fd))
        below = os.open(f"d{number % 3}", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    parent = os.open(run_dir / "ended", os.O_RDONLY)
    remove_tree("tree", parent)
    os.close(parent)
    assert ended(run_dir) == []
    assert (tmp_path / "precious").read_text() == "x"


def test_a_lock_is_seen_through_a_descriptor_that_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "box"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_RDONLY)
    assert not is_locked(fd)
    with lock_held(path):
        assert is_locked(fd)
    os.close(fd)


def test_the_jobs_of_one_user_keep_another_users_job_waiting_for_one_of_them_only(
    run_dir: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of the first user ended before, and each of them takes more than a pass."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    for job in range(1, 8):
        write_box(end_job(run_dir, job, age_s=200 - job), "0_77", BOX)
    own = end_job(run_dir, 42, uid=64123)
    os.chown(own, 64123, 64123)
    monkeypatch.setattr(collect, "PASS_S", -1.0)  # one step of a job in each pass
    order: list[str] = []
    read = Collector._read

    def noting(one: Collector, job: endedjob.Ended) -> endedjob.Made | None:
        if job.name not in order:
            order.append(job.name)
        return read(one, job)

    monkeypatch.setattr(Collector, "_read", noting)
    for _ in range(40):
        if not collector.run_pass(WAIT_S):
            break
    assert [name.partition(".")[0] for name in order].index("42") <= 1
