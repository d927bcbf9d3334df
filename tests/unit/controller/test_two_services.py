# SPDX-License-Identifier: Apache-2.0
"""Two controller services on one queue: one works, and the other takes over."""

import errno
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from nccl_inspector.controller import beside_slurmctld, passes, slurm_ping, slurmctld_turn
from nccl_inspector.controller.children import Children
from nccl_inspector.controller.notes import Notes
from nccl_inspector.controller.report_child import Makers
from nccl_inspector.controller.service import serve
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.model.card import Card
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import (
    CONTROLLER,
    controller_note,
    differences,
    running_note,
)
from nccl_inspector.summary.attempts import Loaded
from tests.sandbox import wait_until
from tests.support.boxes import fixed_chance
from tests.support.cut_socket import CutSocket
from tests.support.fake_scontrol import Scontrol
from tests.support.postgres import SERVICE, Postgres
from tests.support.processes import children
from tests.support.queued_jobs import ended_job, left, stored

# Together they take minutes: part of the long tests, so that `make test` stays within ten.
pytestmark = pytest.mark.long

TAKEN_OVER_S = 30.0
OLD_S = 6.0  # without a sign of life


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


def start(
    name: str, config: Config, folder: Path, way: CutSocket | None = None,
    host: str = "", makers: Makers | None = None, prepare: Callable[[], None] = lambda: None,
) -> Service:  # fmt: skip
    """Start a service, on a host of this name. `prepare` is called in its process first."""
    log = folder / f"{name}.log"
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)
        return Service(name, pid, log, way)
    try:
        os.setpgid(0, 0)
        prepare()
        if host:
            vars(socket)["gethostname"] = lambda: host
        logging.basicConfig(filename=log, level=logging.INFO, force=True, format="%(message)s")
        serve(config, makers or usual_makers(config))
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
        path = postgres.folder / ".s.PGSQL.5432"
        ways = {name: CutSocket(folder / f"way-{name}", path) for name in ("first", "second")}
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


@pytest.mark.parametrize(
    "fault", [kill, *(pytest.param(one, marks=pytest.mark.long) for one in (stop, freeze, cut))]
)
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
    services = []
    try:
        services.append(first := start("first", config, tmp_path))
        wait_for_work(first)
        services.append(second := start("second", config, tmp_path))
        wait_until(lambda: bool(second.lines()), 10, "it says something")
        assert second.lines() == ["waiting: another controller service works on this queue"]
        first.end()
        ended_job(config, tmp_path, 42)
        wait_for_work(second)
        wait_until(lambda: not left(config), 20, "the report is made")
        assert stored(config) == [42]
    finally:
        for one in services:
            one.end()


def refuse_while(flag: Path, module: ModuleType, name: str, number: int) -> None:
    """Let a call to the system fail while a file exists."""
    usual = getattr(module, name)
    vars(passes)["LOOK_AGAIN_S"] = 2.0  # after storage that did not answer

    def call(*words: object) -> object:
        if flag.exists():
            raise OSError(number, os.strerror(number))
        return usual(*words)

    vars(module)[name] = call


SHORT_OF = {
    "processes": (os, "fork", errno.EAGAIN),
    "pipes": (os, "pipe2", errno.EMFILE),
    "sockets": (socket, "socketpair", errno.EMFILE),
}


def alive(service: Service) -> bool:
    assert os.waitpid(service.pid, os.WNOHANG) == (0, 0), service.log.read_text()
    return True


@pytest.mark.parametrize("what", SHORT_OF)
def test_a_service_that_can_start_nothing_for_a_while_goes_on_afterwards(
    config: Config, tmp_path: Path, what: str
) -> None:
    flag = tmp_path / "short"
    one = start("one", config, tmp_path, prepare=partial(refuse_while, flag, *SHORT_OF[what]))
    try:
        wait_for_work(one)
        flag.touch()
        ended_job(config, tmp_path, 42)
        since_s = time.monotonic()
        wait_until(lambda: alive(one) and time.monotonic() - since_s > 6, 20, "some passes")
        flag.unlink()
        wait_until(lambda: alive(one) and not left(config), 30, "the report is made")
        assert stored(config) == [42]
    finally:
        one.end()


@pytest.mark.parametrize("what", ["processes", "pipes"])
def test_with_an_index_in_a_database_too(
    config: Config, postgres: Postgres, open_path: Path, what: str
) -> None:
    url = postgres.url(postgres.new_database())
    config = replace(config, store_url=url, cluster="c1")
    flag = open_path / "short"
    prepare = partial(refuse_while, flag, *SHORT_OF[what])
    one = start("one", config, open_path, prepare=prepare)
    try:
        wait_for_work(one)
        flag.touch()
        for keeper in children(one.pid):
            os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: alive(one) and waits(one), 20, "its lease runs out")
        why = os.strerror(SHORT_OF[what][2])
        assert one.lines()[-1] == f"waiting: no process can be started: {why}"
        flag.unlink()
        wait_for_work(one)
        ended_job(config, open_path, 43)
        wait_until(lambda: alive(one) and not left(config), 30, "the report is made")
    finally:
        one.end()


def test_a_service_says_with_which_settings_it_runs_as_long_as_it_runs(
    config: Config, tmp_path: Path
) -> None:
    one = start("one", config, tmp_path)
    try:
        wait_for_work(one)
        note = running_note(controller_note(config))
        assert note is not None
        assert note.process.pid == one.pid
        assert differences(note, config, CONTROLLER) == ()
        newer = replace(config, summary_days=7)
        assert [str(found) for found in differences(note, newer, CONTROLLER)] == [
            "summary_days: it runs with 30, configured is 7"
        ]
    finally:
        one.end()
    assert running_note(controller_note(config)) is None


class Hosts:
    """Two hosts with a service each, one queue, and what Slurm says of them."""

    PING = "echo 'Slurmctld(primary) at one.x.org is {}'; echo 'Slurmctld(backup) at two is {}'"

    def __init__(self, config: Config, folder: Path) -> None:
        """Start nothing yet; slurmctld works on `one`."""
        self._folder, self.slurm = folder, Scontrol(folder)
        self.config = replace(config, scontrol=self.slurm.path)
        self.services: list[Service] = []
        self.up("UP", "UP")

    def up(self, one: str, two: str) -> None:
        self.slurm.says(self.PING.format(one, two))

    def start(self, name: str, makers: Makers | None = None) -> Service:
        service = start(name, self.config, self._folder, host=name, makers=makers)
        self.services.append(service)
        return service


@pytest.fixture
def hosts(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Two hosts, with shorter times than the product's."""
    monkeypatch.setattr(slurm_ping, "ASK_S", 0.2)
    monkeypatch.setattr(slurmctld_turn, "SURE_S", 1.0)
    for module in (slurmctld_turn, beside_slurmctld):
        monkeypatch.setattr(module, "OLD_S", OLD_S)
    found = Hosts(config, tmp_path)
    yield found
    for service in found.services:
        service.end()


@pytest.mark.long
def test_without_a_database_the_service_beside_slurmctld_works(
    hosts: Hosts, tmp_path: Path
) -> None:
    two = hosts.start("two")
    time.sleep(3)  # time enough to be first, were it not for Slurm
    one = hosts.start("one")
    wait_for_work(one)
    wait_until(lambda: "waiting: the service on one works on these jobs" in two.lines(), 5, "waits")
    # A question without an answer changes nothing, a slurmctld that is down does.
    hosts.slurm.says("exit 1")
    time.sleep(3)
    assert [one.works(), two.works()] == [True, False]
    hosts.up("DOWN", "UP")
    wait_for_work(two)
    wait_until(partial(waits, one), 5, "the first one waits")
    assert one.lines()[-1] == "waiting: the service on two works on these jobs"
    ended_job(hosts.config, tmp_path, 42)
    wait_until(lambda: not left(hosts.config), 20, "the report is made")
    hosts.up("UP", "UP")
    wait_for_work(one)
    wait_until(partial(waits, two), 5, "the second one waits again")


def test_without_a_database_another_host_takes_over_from_one_that_died(
    hosts: Hosts, tmp_path: Path
) -> None:
    """Also if Slurm does not know it: only the service was killed, and slurmctld works there."""
    one, two = hosts.start("one"), hosts.start("two")
    wait_for_work(one)
    one.end()
    ended_job(hosts.config, tmp_path, 42)
    assert OLD_S - 6 < wait_for_work(two) < OLD_S + 5
    wait_until(lambda: not left(hosts.config), 20, "the report is made")


def test_without_a_database_a_single_service_works_wherever_slurmctld_does(hosts: Hosts) -> None:
    two = hosts.start("two")
    assert wait_for_work(two) > OLD_S - 2
    time.sleep(7)
    assert two.works(), "it gives way to nobody"


@pytest.mark.long
def test_a_service_gives_way_only_after_the_report_that_it_makes(
    hosts: Hosts, tmp_path: Path
) -> None:
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    usual = usual_makers(hosts.config)

    def slow(loaded: Loaded) -> Card:
        begun.touch()
        time.sleep(8)
        ended.touch()
        return usual.card(loaded)

    one, two = hosts.start("one", replace(usual, card=slow, card_within=None)), hosts.start("two")
    wait_for_work(one)
    ended_job(hosts.config, tmp_path, 42)
    wait_until(begun.exists, 20, "the report is begun")
    hosts.up("DOWN", "UP")
    while not ended.exists():
        assert not two.works()
        time.sleep(0.05)
    wait_for_work(two)
    assert stored(hosts.config) == [42]
    assert not any("stored" in line for line in two.lines())


def test_a_service_does_not_give_way_while_a_child_that_it_left_behind_may_write(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (hangs := tmp_path / "hangs").touch()
    monkeypatch.setattr(Children, "left", property(lambda _: [1] if hangs.exists() else []))
    monkeypatch.setattr(Notes, "write", lambda *_: "")
    one, two = hosts.start("one"), hosts.start("two")
    wait_for_work(one)
    hosts.up("DOWN", "UP")
    time.sleep(12)
    assert [one.works(), two.works()] == [True, False]
    hangs.unlink()
    wait_for_work(two)


def test_a_service_that_another_one_has_replaced_stops(hosts: Hosts) -> None:
    """As after a time without the storage, which gave the lock to another host meanwhile."""
    one = hosts.start("one")
    wait_for_work(one)
    path = hosts.config.controller_dir / "state" / "lock"
    wait_until(lambda: path.read_text().strip() == "one", 5, "it is named")
    time.sleep(6)  # it has seen its name
    path.write_text("two\n")
    wait_until(partial(waits, one), 10, "it stops")
    assert one.lines()[-1] == "waiting: the service on two works on these jobs"
    assert wait_for_work(one) > OLD_S - 3, "nobody gives signs of life"


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
