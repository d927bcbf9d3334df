# SPDX-License-Identifier: Apache-2.0
"""Some reports are made at the same time: how many, whose, and what none does to the others."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from nccl_inspector.controller import passes
from nccl_inspector.controller.children import Children, Started, Work
from nccl_inspector.controller.due_reports import Due
from nccl_inspector.controller.outcome import DONE, FAILED, Outcome
from nccl_inspector.controller.passes import REPORTS_MAX, Controller, reports_at_once
from nccl_inspector.controller.queue import Entry, Queue
from nccl_inspector.controller.report_child import make_report
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.report.announced_paths import visiting
from nccl_inspector.settings.config import Config
from nccl_inspector.store.index import export_user
from tests.sandbox import wait_until
from tests.support.queued_jobs import ended_job, enqueue, left, stored, summarize

AMY, BOB = 1001, 1002
PATIENCE_S = 20.0


@dataclass
class Site:
    """A queue, and the folder where children leave marks for each other."""

    config: Config
    marks: Path

    def job(self, number: int, uid: int, restart: int = 0) -> None:
        enqueue(self.config, number, f"uid={uid}\n")
        summarize(self.config, self.marks / f"boxes-{number}.{restart}", number, restart=restart)

    def run(self, make: Callable[[Due], Outcome], at_the_same_time: int) -> int:
        queue = Queue(self.config.controller_dir)
        try:
            controller = Controller(self.config, queue, make, at_the_same_time=at_the_same_time)
            return controller.one_pass(at_once=True)
        finally:
            queue.close()

    def here(self) -> set[str]:
        return {path.name for path in self.marks.glob("at.*")}

    def most(self) -> int:
        """The most that were at work at the same time."""
        return max(int(path.read_text()) for path in self.marks.glob("seen.*"))

    @contextmanager
    def marked(self, name: object) -> Iterator[None]:
        mark = self.marks / f"at.{name}"
        mark.touch()
        (self.marks / f"seen.{name}.{os.getpid()}").write_text(str(len(self.here())))
        try:
            yield
        finally:
            mark.unlink()

    def works(self, due: Due) -> Outcome:
        """Be at work for so long that others would be seen."""
        with self.marked(due.leader):
            time.sleep(0.2)
        return Outcome(DONE)


@pytest.fixture
def site(config: Config, tmp_path: Path) -> Site:
    marks = tmp_path / "marks"
    marks.mkdir()
    return Site(config, marks)


def test_several_reports_are_made_at_the_same_time(site: Site) -> None:
    for number in (41, 42, 43):
        site.job(number, AMY)

    def meets(due: Due) -> Outcome:
        with site.marked(due.leader):
            wait_until(lambda: len(site.here()) == 3, PATIENCE_S, "all three are at work")
            (site.marks / f"met.{due.leader}").touch()
            met = site.marks.glob
            wait_until(lambda: len(list(met("met.*"))) == 3, PATIENCE_S, "all have met")
        return Outcome(DONE)

    assert site.run(meets, 3) == 0
    assert left(site.config) == []


@pytest.mark.parametrize("at_the_same_time", [1, 2])
def test_no_more_than_so_many_are_made_at_the_same_time(site: Site, at_the_same_time: int) -> None:
    for number in range(41, 47):
        site.job(number, AMY + number % 2)
    assert site.run(site.works, at_the_same_time) == 0
    assert site.most() == at_the_same_time


def test_there_is_one_for_each_core_up_to_some(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, reports in ((1, 1), (2, 2), (64, REPORTS_MAX)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, n=cores: set(range(n)))
        assert reports_at_once() == reports


def test_of_large_reports_only_one_is_made_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(41, 45):
        site.job(number, AMY)
    monkeypatch.setattr(passes, "LARGE_BYTES", 1)
    assert site.run(site.works, 3) == 0
    assert site.most() == 1


def test_ends_of_one_job_follow_each_other(site: Site) -> None:
    site.job(41, AMY)
    path = next((site.config.controller_dir / "queue").iterdir())
    other = path.with_name(f"41.{int(time.time() - 50)}000000000")
    other.write_text(path.read_text().replace("restart=0", "restart=1"))
    summary = site.config.report_dir / "41" / "n1.0.nodesummary"
    text = summary.read_bytes().replace(b'"restart": 0', b'"restart": 1')
    summary.with_name("n1.1.nodesummary").write_bytes(text)

    def stores(due: Due) -> Outcome:
        with site.marked(f"{due.leader}.{due.attempt}"):
            time.sleep(0.2)
        folder = site.config.store_dir / "41"
        folder.mkdir(exist_ok=True)
        (folder / f"{due.attempt}.json").touch()
        return Outcome(DONE)

    assert site.run(stores, 3) == 0
    assert site.most() == 1
    assert len(list(site.marks.glob("seen.*"))) == 2


def test_a_user_whose_path_hangs_does_not_hang_in_all_children(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "VISIT_ALONE_S", 0.0)
    for number in (41, 43):
        site.job(number, AMY)
    for number in (42, 44):
        site.job(number, BOB)

    def opens(due: Due) -> Outcome:
        uid = due.entries[0].uid or 0
        with visiting(uid, Path("/dead")), site.marked(f"{uid}.{due.leader}"):
            mine = [name for name in site.here() if name.startswith(f"at.{uid}.")]
            (site.marks / f"seen.own.{due.leader}").write_text(str(len(mine)))
            time.sleep(0.5)
        return Outcome(DONE)

    begin = Children.begin

    def begin_and_look(self: Children, work: Work, about: str) -> Started | Outcome:
        before = len(list(site.marks.glob("seen.own.*")))
        begun = begin(self, work, about)
        wait_until(
            lambda: len(list(site.marks.glob("seen.own.*"))) > before, PATIENCE_S, "it opens it"
        )
        return begun

    monkeypatch.setattr(Children, "begin", begin_and_look)
    assert site.run(opens, 4) == 0
    own = [int(path.read_text()) for path in site.marks.glob("seen.own.*")]
    assert max(own) == 1, "one of each user"
    assert site.most() >= 2, "another user's is made meanwhile"


def test_what_fails_and_what_succeeds_at_the_same_time_is_told_apart(site: Site) -> None:
    for number in range(41, 49):
        site.job(number, AMY)

    def sometimes(due: Due) -> Outcome:
        with suppress(ValueError):
            if due.leader % 3 == 0:
                os.abort()
            if due.leader % 3 == 1:
                return Outcome(FAILED, "as it is")
        return Outcome(DONE)

    assert site.run(sometimes, 3) == 5
    assert [name.partition(".")[0] for name in left(site.config)] == ["42", "43", "45", "46", "48"]
    assert all(name.endswith(".try1") for name in left(site.config))


def test_reports_of_one_user_made_at_the_same_time_are_all_in_the_users_own_index(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def slow_export(*words: object) -> None:
        mark = marks / "exporting"
        if mark.exists():
            (marks / "together").touch()
        mark.touch()
        time.sleep(0.1)
        mark.unlink(missing_ok=True)
        export_user(*words)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("nccl_inspector.controller.report_child.export_user", slow_export)
    numbers = list(range(41, 49))
    for number in numbers:
        ended_job(config, tmp_path, number)
    queue, makers = Queue(config.controller_dir), usual_makers(config)
    controller = Controller(
        config, queue, lambda due: make_report(due, config, makers), at_the_same_time=4
    )
    assert controller.one_pass(at_once=True) == 0
    queue.close()
    assert stored(config) == numbers
    assert not (marks / "together").exists(), "the last one has read all that the others wrote"


def test_each_file_of_the_queue_is_read_once(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = Queue._read

    def counted(self: Queue, name: str) -> Entry:
        reads.append(name)
        return read(self, name)

    monkeypatch.setattr(Queue, "_read", counted)
    for number in (41, 42, 43):
        enqueue(config, number)
    queue = Queue(config.controller_dir)
    first, _ = queue.scan()
    assert [one.job_id for one in first] == [41, 42, 43]
    assert queue.scan()[0] == first
    assert len(reads) == 3
    enqueue(config, 44)
    tried = queue.count_try(first[0], 1)
    queue.remove(first[1])
    again, problems = queue.scan()
    assert [(one.job_id, one.tries) for one in again] == [(41, 1), (43, 0), (44, 0)]
    assert again[0].file == tried.file
    assert (len(reads), problems) == (4, [])
    queue.close()
