# SPDX-License-Identifier: Apache-2.0
"""A directory is tried as the account that has to write there."""

import os
import pwd
from errno import ENOSPC
from pathlib import Path

import pytest

from nccl_inspector.doctor.facts import CannotTell
from nccl_inspector.doctor.files import file_facts, others_may_change
from nccl_inspector.doctor.read_controller import uncounted
from nccl_inspector.doctor.read_storage import read_storage
from tests.support.mounts import fill, mounted

ME = pwd.getpwuid(os.geteuid()).pw_name
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


def test_a_directory_of_the_account_can_be_written_and_nothing_stays(tmp_path: Path) -> None:
    found = read_storage(tmp_path, ME)
    assert (found.problem, found.uid) == ("", os.geteuid())
    assert list(tmp_path.iterdir()) == []


@root_only
def test_root_tries_as_the_account_and_not_as_root(open_path: Path) -> None:
    found = read_storage(open_path, "nobody")
    assert found.problem == "Permission denied"
    assert isinstance(found.has_acl, CannotTell)


@root_only
def test_the_caller_stays_root(open_path: Path) -> None:
    read_storage(open_path, "nobody")
    assert os.geteuid() == 0


@root_only
def test_a_user_cannot_tell_for_the_account(open_path: Path) -> None:
    pid = os.fork()
    if not pid:
        os.setuid(65534)
        found = read_storage(open_path, "root")
        os._exit(0 if found.problem == CannotTell("only root can try as root") else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_missing_directory_and_a_missing_account_are_told_apart(tmp_path: Path) -> None:
    assert read_storage(tmp_path / "none", ME).problem == "No such file or directory"
    found = read_storage(tmp_path, "no-such-account")
    assert found.uid is None
    assert found.problem == CannotTell("there is no account no-such-account")


@root_only
def test_a_full_file_system_is_told_apart_from_one_that_may_not_be_written(tmp_path: Path) -> None:
    assert not read_storage(tmp_path / "none", ME).is_full
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=64k", "full"):
        assert (read_storage(tmp_path, ME).errno, read_storage(tmp_path, ME).is_full) == (0, False)
        fill(tmp_path)
        found = read_storage(tmp_path, ME)
        assert (found.problem, found.errno) == ("No space left on device", ENOSPC)
        assert found.is_full
        assert [path.name for path in tmp_path.iterdir()] == ["fill"]


@root_only
def test_ends_that_had_no_room_are_counted_before_the_service_has_counted_them(
    tmp_path: Path,
) -> None:
    for name, size in (("1000", 3), ("unknown", 1), (".1001.counted", 7)):
        (tmp_path / name).write_bytes(b"." * size)
    assert uncounted(tmp_path) == 4
    assert isinstance(uncounted(tmp_path / "none"), CannotTell)


@root_only
def test_who_else_than_root_may_change_a_file_is_seen(open_path: Path) -> None:
    path = open_path / "x.so"
    path.touch(0o755)
    assert others_may_change(file_facts(path)) == ""
    path.chmod(0o757)
    assert others_may_change(file_facts(path)) == f"{path} has mode 0757"
    path.chmod(0o755)
    open_path.chmod(0o777)
    assert others_may_change(file_facts(path)) == f"others than root may change {open_path}"
    os.chown(path, 65534, 0)
    assert others_may_change(file_facts(path)) == f"{path} belongs to uid 65534"
