# SPDX-License-Identifier: Apache-2.0
"""The node: its run directory, the Python of its agent, SELinux' log, and its daemons."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccl_inspector.doctor import read_node
from nccl_inspector.doctor.facts import CannotTell
from nccl_inspector.doctor.processes import find_daemons
from nccl_inspector.settings.config import parse_config
from tests.support.repository import PACKAGING, PYTHON_DIR

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


def script(path: Path, first: str, body: str = "") -> Path:
    path.write_text(f"#!{first}\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_can_run_the_agent_is_well(tmp_path: Path) -> None:
    python = script(
        tmp_path / "python", "/bin/sh", f'PYTHONPATH={PYTHON_DIR} exec {sys.executable} "$@"'
    )
    found = read_node.read_interpreter(str(script(tmp_path / "agent", str(python))))
    assert found is not None
    assert (found.version, found.problem) == (sys.version_info[:2], "")


def test_an_old_python_is_seen(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "/bin/sh", "echo 3 9")
    found = read_node.read_interpreter(str(script(tmp_path / "agent", str(python))))
    assert found is not None
    assert found.version == (3, 9)


def test_a_python_that_is_gone_is_seen(tmp_path: Path) -> None:
    found = read_node.read_interpreter(str(script(tmp_path / "agent", "/none/python3")))
    assert found is not None
    assert found.version is None
    assert "No such file or directory" in found.problem


def test_a_python_without_our_modules_is_seen(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "/bin/sh", f'exec {sys.executable} -I -S "$@"')
    found = read_node.read_interpreter(str(script(tmp_path / "agent", str(python))))
    assert found is not None
    assert "ModuleNotFoundError" in found.problem


def test_the_packages_launcher_is_started_and_its_own_words_are_told(tmp_path: Path) -> None:
    text = (PACKAGING / "nccl-inspector").read_text()
    assert "/usr/bin/python3." in text
    launcher = tmp_path / "nccl-inspector"
    launcher.write_text(text.replace("/bin/python3.", "/none/python3."))
    launcher.chmod(0o755)
    found = read_node.read_interpreter(str(launcher))
    assert found is not None
    assert found.version is None
    assert "there is no Python 3.11 or later in /usr/bin: install one" in found.problem
    assert read_node.read_interpreter(str(script(tmp_path / "well", "/bin/sh", "exit 0"))) is None


def test_a_program_that_is_no_script_is_not_tried() -> None:
    assert read_node.read_interpreter("/bin/true") is None
    assert read_node.read_interpreter("") is None


def test_the_run_directory_is_seen_as_it_is(tmp_path: Path) -> None:
    for name in ("jobs", "ended", "prom"):
        (tmp_path / name).mkdir(0o700)
    conf = f"run_dir = {tmp_path}\nprom_group = no-such-group\n"
    found = read_node.read_run_dir(parse_config(conf, "test"))
    assert found.places["control"].file.problem == "No such file or directory"
    assert found.places["jobs"].file.permissions == 0o700
    assert not found.places["jobs"].is_mount
    assert found.places[""].inodes >= 0
    assert found.prom_gid == CannotTell("prom_group = no-such-group: there is no such group")


def test_only_denials_of_our_parts_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "audit.log"
    ours = 'type=AVC msg=audit(1.2:3): avc:  denied  { write } for comm="nccl-inspector"'
    log.write_text(f'{ours}\ntype=AVC avc:  denied  {{ read }} for comm="httpd"\n{ours[:20]}\n')
    monkeypatch.setattr(read_node, "_AUDIT_LOG", log)
    assert read_node._denials() == (ours,)
    monkeypatch.setattr(read_node, "_AUDIT_LOG", tmp_path / "none")
    assert isinstance(read_node._denials(), CannotTell)


@contextmanager
def daemon(folder: Path, name: str, uid: int) -> Iterator[int]:
    """A process of this name."""
    program = folder / name
    shutil.copy("/bin/sleep", program)
    child = subprocess.Popen([program, "60"], user=uid)
    try:
        deadline = time.monotonic() + 5
        while Path(f"/proc/{child.pid}/comm").read_text().strip() != name:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield child.pid
    finally:
        child.kill()
        child.wait()


@root_only
def test_a_users_process_with_the_name_of_a_daemon_is_none(open_path: Path) -> None:
    name = "slurmd-of-test"
    with daemon(open_path, name, 12345):
        assert find_daemons(name) == ()
    with daemon(open_path, name, 0) as pid:
        (found,) = find_daemons(name)
    assert (found.pid, found.uid, found.is_here) == (pid, 0, True)
    assert found.argv[1:] == ("60",)
