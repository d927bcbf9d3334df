# SPDX-License-Identifier: Apache-2.0
"""The lock of a queue, and the signs of life of the service that holds it."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from nccl_inspector.controller.duty import alone
from nccl_inspector.controller.queue import Queue
from nccl_inspector.controller.queue_lock import QueueLock
from nccl_inspector.controller.sign_of_life import OLD_S, Watch, give_sign, write_name
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config


@pytest.fixture
def two(config: Config) -> Iterator[tuple[QueueLock, QueueLock]]:
    """The lock as two services have it."""
    with ExitStack() as stack:
        queues = [stack.enter_context(closing(Queue(config.controller_dir))) for _ in range(2)]
        locks = [stack.enter_context(closing(QueueLock(queue))) for queue in queues]
        yield locks[0], locks[1]


def test_one_at_a_time_holds_the_lock(two: tuple[QueueLock, QueueLock]) -> None:
    first, second = two
    assert [first.is_held, second.is_held] == [True, False]
    assert second.words == "another controller service works on this queue"
    first.close()
    assert [second.is_held, first.is_held] == [True, False]


def test_it_is_the_lock_of_a_file_open_for_writing(
    two: tuple[QueueLock, QueueLock], config: Config
) -> None:
    """NFS keeps a lock for all hosts only so; that of a directory it keeps for each host alone."""
    path = config.controller_dir / "state" / "lock"
    assert two[0].is_held
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    links = Path("/proc/self/fd").iterdir()
    (held,) = (int(link.name) for link in links if os.path.lexists(link) and link.resolve() == path)
    assert fcntl.fcntl(held, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    fd = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        two[0].close()
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not two[1].is_held, "as if its holder were on another host"
    finally:
        os.close(fd)


def test_a_service_of_an_older_release_holds_the_directory_and_keeps_newer_ones_out(
    two: tuple[QueueLock, QueueLock], config: Config
) -> None:
    fd = os.open(config.controller_dir / "queue", os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert not two[0].is_held
    finally:
        os.close(fd)
    assert two[0].is_held


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_on_storage_without_locks_of_files_that_of_the_directory_is_left(
    two: tuple[QueueLock, QueueLock], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert [one.is_held for one in two] == [True, False]


def test_a_file_that_cannot_be_opened_is_named(
    two: tuple[QueueLock, QueueLock], config: Config
) -> None:
    path = config.controller_dir / "state" / "lock"
    path.mkdir()
    assert not two[0].is_held
    assert two[0].words == f"{path}: Is a directory"
    path.rmdir()
    assert two[1].is_held, "no lock of the directory was left behind"


def test_work_that_needs_the_service_to_rest_needs_its_lock(
    two: tuple[QueueLock, QueueLock], config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.controller.duty.refuse_root", lambda: None)
    assert two[0].is_held
    with pytest.raises(InspectorError, match="another controller service works"), alone(config):
        pass
    two[0].close()
    with alone(config):
        assert not two[0].is_held
    assert two[0].is_held


def test_signs_of_life_are_counted_on_the_clock_of_the_one_who_looks(tmp_path: Path) -> None:
    path, now_s = tmp_path / "sign", 1000.0
    write_name(path, "one")
    os.utime(path, (5e9, 5e9))  # a host with a clock of its own
    watch = Watch(path)
    for _ in range(int(OLD_S)):
        watch.look(now_s)
        assert (watch.host, watch.is_alive) == ("one", False), "it may be old"
        now_s += 1
    assert watch.quiet_s == OLD_S - 1
    give_sign(path, "one", "one")
    watch.look(now_s)
    assert watch.is_alive
    assert watch.quiet_s == 0
    for _ in range(int(OLD_S)):
        now_s += 1
        watch.look(now_s)
    assert not watch.is_alive
    give_sign(path, "two", watch.host)
    watch.look(now_s)
    assert (watch.host, watch.is_alive) == ("two", True)


def test_who_hung_does_not_take_the_other_one_for_dead(tmp_path: Path) -> None:
    path = tmp_path / "sign"
    write_name(path, "one")
    watch = Watch(path)
    watch.look(1000)
    watch.look(5000)
    assert watch.quiet_s < OLD_S


def test_an_empty_name_says_that_nobody_works(tmp_path: Path) -> None:
    path = tmp_path / "sign"
    watch = Watch(path)
    watch.look(1)
    assert watch.host == ""
    write_name(path, "one")
    watch.look(2)
    assert (watch.host, watch.is_alive) == ("one", True), "it was not there before"
    write_name(path, "")
    watch.look(3)
    assert watch.host == ""
