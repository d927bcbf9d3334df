# SPDX-License-Identifier: Apache-2.0
"""Two controller services on one queue: one works, and the other takes over."""

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from nccl_inspector.controller.service import serve
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.settings.config import Config
from tests.sandbox import wait_until
from tests.support.boxes import fixed_chance
from tests.support.cut_socket import CutSocket
from tests.support.postgres import SERVICE, Postgres
from tests.support.queued_jobs import ended_job, left, stored

TAKEN_OVER_S = 30.0


@dataclass
class Service:
    """A service in a process group of its own, with its log, and its way to the database."""

    name: str
    pid: int
    log: Path
    way: CutSocket | None = None

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def works(self) -> bool:
        """Whether it is the one that works, by the last that it said of that."""
        said = [
            one for one in self.lines() if one.startswith(("waiting: ", "the service works on"))
        ]
        return bool(said) and not said[-1].startswith("waiting")

    def send(self, number: int) -> None:
        """Send a signal to the service itself; its children go on."""
        os.kill(self.pid, number)

    def end(self) -> None:
        """End it with its children, if it still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start(name: str, config: Config, folder: Path, way: CutSocket | None = None) -> Service:
    log = folder / f"{name}.log"
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return Service(name, pid, log, way)
    try:
        os.setpgid(0, 0)
        logging.basicConfig(filename=log, level=logging.INFO, force=True, format="%(message)s")
        serve(config, usual_makers(config))
    finally:
        os._exit(0)


def waits(service: Service) -> bool:
    return not service.works()


def wait_for_work(service: Service, seconds: float = TAKEN_OVER_S) -> float:
    """Return after how long the service works."""
    began_s = time.monotonic()
    wait_until(service.works, seconds, f"{service.name} works")
    return time.monotonic() - began_s


class Pair:
    """Two services that share a queue and a store, each with its own way to the database."""

    def __init__(self, config: Config, postgres: Postgres, folder: Path) -> None:
        """Start both; the first works."""
        self._folder = folder
        self._database = postgres.new_database()
        self.config = replace(config, store_url=postgres.url(self._database), cluster="c1")
        socket = postgres.folder / ".s.PGSQL.5432"
        ways = {name: CutSocket(folder / f"way-{name}", socket) for name in ("first", "second")}
        self.services = [self._start("first", ways["first"])]
        wait_for_work(self.services[0])
        self.services.append(self._start("second", ways["second"]))

    def _start(self, name: str, way: CutSocket) -> Service:
        url = f"postgresql://{SERVICE}@/{self._database}?host={self._folder}/way-{name}"
        return start(name, replace(self.config, store_url=url), self._folder, way)

    def start_again(self, service: Service) -> None:
        """Start a service that was killed."""
        os.waitpid(service.pid, 0)
        assert service.way
        self.services[self.services.index(service)] = self._start(service.name, service.way)

    def end(self) -> None:
        """End both at once."""
        for one in self.services:
            one.end()
            assert one.way
            one.way.close()


@pytest.fixture
def pair(config: Config, postgres: Postgres, open_path: Path) -> Iterator[Pair]:
    both = Pair(config, postgres, open_path)
    yield both
    both.end()


def kill(service: Service) -> None:
    service.send(signal.SIGKILL)


def stop(service: Service) -> None:
    """As systemd does: the signal goes to all its processes."""
    os.killpg(service.pid, signal.SIGTERM)


def freeze(service: Service) -> None:
    service.send(signal.SIGSTOP)


def cut(service: Service) -> None:
    assert service.way
    service.way.cut()


@pytest.mark.parametrize("fault", [kill, stop, pytest.param(freeze, marks=pytest.mark.long), cut])
def test_the_other_service_takes_over_in_time(pair: Pair, fault: Callable[[Service], None]) -> None:
    first, second = pair.services
    wait_until(lambda: any("works on these jobs" in one for one in second.lines()), 20, "it waits")
    assert not second.works()
    fault(first)
    wait_for_work(second)
    if fault is freeze:
        first.send(signal.SIGCONT)
    if fault in (freeze, cut):
        wait_until(partial(waits, first), 20, "the first one stops")
        assert second.works()


def test_on_a_queue_without_a_database_the_second_service_waits_for_the_lock(
    config: Config, tmp_path: Path
) -> None:
    first = start("first", config, tmp_path)
    wait_for_work(first)
    second = start("second", config, tmp_path)
    try:
        wait_until(lambda: bool(second.lines()), 10, "it says something")
        assert second.lines() == ["waiting: another controller service works on this queue"]
        first.end()
        ended_job(config, tmp_path, 42)
        wait_for_work(second)
        wait_until(lambda: not left(config), 20, "the report is made")
        assert stored(config) == [42]
    finally:
        second.end()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_under_load_nothing_is_lost_and_nothing_is_done_twice(pair: Pair, open_path: Path) -> None:
    chance, jobs = fixed_chance(1), list(range(1000, 1200))
    took_s = []
    for number in range(10):
        at_work = next(one for one in pair.services if one.works())
        waiting = next(one for one in pair.services if one is not at_work)
        for job_id in jobs[20 * number : 20 * number + 20]:
            ended_job(pair.config, open_path, job_id)
        time.sleep(chance.uniform(0, 3))
        fault = (kill, freeze, cut)[number % 3]
        fault(at_work)
        took_s.append(wait_for_work(waiting))
        if fault is freeze:
            at_work.send(signal.SIGCONT)
        if fault is cut and at_work.way:
            at_work.way.mend()
        if fault is kill:
            pair.start_again(at_work)
        wait_until(partial(waits, at_work), 20, "it has stopped")
    wait_until(lambda: not left(pair.config), 200, "all ends are settled")
    # Rows that could not be entered, as while a service was cut off, follow soon.
    wait_until(lambda: stored(pair.config) == jobs, 30, "all rows are in the index")
    logs = {one.log: one.lines() for one in pair.services}
    told = Counter(
        line.partition(":")[0] for lines in logs.values() for line in lines if "stored" in line
    )
    twice = {job: count for job, count in told.items() if count > 1}
    print(f"taken over after {', '.join(f'{one:.1f}' for one in took_s)} s; twice: {twice}")
    assert all((pair.config.store_dir / f"{job}" / "0.json").exists() for job in jobs)
    assert left(pair.config, "failed") == []
    assert len(twice) <= len(took_s), "only what was at work when a service was frozen or cut off"
