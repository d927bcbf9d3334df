# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog do, under each shell that may be a site's /bin/sh."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.hook_scripts import (
    BOOT_ID,
    EMPTY,
    EPILOG,
    JOB,
    NOBODY,
    PROLOG,
    SHELLS,
    Node,
    sh,
    with_stubs,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs the hooks as root")


@pytest.fixture(params=SHELLS)
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    return Node(tmp_path / "run", sh(tmp_path, request.param))


@pytest.mark.parametrize("hook", [PROLOG, EPILOG])
def test_a_hook_is_short_and_passes_shellcheck(hook: Path) -> None:
    assert len(hook.read_text(encoding="ascii").splitlines()) <= 85
    assert os.access(hook, os.X_OK)
    done = subprocess.run(
        ["shellcheck", "-S", "style", hook], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == ""


ODD_NUMBERS = [
    "",
    "../etc",
    "7;reboot",
    "-1",
    "+7",
    "007",
    "0x10",
    "7 8",
    "7\n8",
    "$(reboot)",
    "a[$(reboot)]",
    "12345678901",
    "٣",
    "7" * 100_000,
]


@pytest.mark.parametrize("number", ODD_NUMBERS)
@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_UID"])
def test_an_odd_number_is_logged_and_nothing_touched(node: Node, name: str, number: str) -> None:
    assert f"{name} is not a number" in node.prolog(**{name: number})
    assert node.tree() == EMPTY


@pytest.mark.parametrize("number", ODD_NUMBERS)
def test_the_epilog_touches_nothing_for_an_odd_job_id(node: Node, number: str) -> None:
    node.prolog()
    before = node.tree()
    assert "SLURM_JOB_ID is not a number" in node.epilog(SLURM_JOB_ID=number)
    assert node.tree() == before


def test_a_hook_with_an_empty_environment_ends_well(node: Node) -> None:
    assert node.run(PROLOG) != ""
    assert node.run(EPILOG) != ""
    assert node.tree() == EMPTY


@pytest.mark.parametrize(
    "mode",
    [
        "JSON",
        "json+prom",
        "OFF",
        " off",
        "off\n",
        "prom report",
        "*",
        "/etc/passwd",
        "$(reboot)",
        "x" * 9999,
    ],
)
def test_a_hostile_mode_is_logged_and_nothing_touched(node: Node, mode: str) -> None:
    logged = node.prolog(SPANK_NCCL_INSPECTOR=mode)
    assert "unknown SPANK_NCCL_INSPECTOR" in logged
    assert len(logged) < 200
    assert node.tree() == EMPTY


def test_other_injected_variables_have_no_effect(node: Node) -> None:
    hostile = {
        f"SPANK_{name}": "x; touch /tmp/pwned" for name in ("PATH", "IFS", "SLURM_JOB_ID", "X")
    }
    assert node.prolog(**hostile) == ""
    assert node.job.is_dir()


def test_off_makes_no_directory_and_says_nothing(node: Node) -> None:
    assert node.prolog(SPANK_NCCL_INSPECTOR="off") == ""
    assert node.tree() == EMPTY


@pytest.mark.parametrize("mode", ["prom", "json", "prom+json", "report", ""])
def test_the_directory_has_the_owners_and_modes_of_the_contract(node: Node, mode: str) -> None:
    assert node.prolog(SPANK_NCCL_INSPECTOR=mode) == ""
    found = {
        name: (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid)
        for name in (".", "raw", "manifest")
        for info in [(node.job / name).stat()]
    }
    assert found == {
        ".": (0o711, 0, 0),
        "raw": (0o700, NOBODY, NOBODY),
        "manifest": (0o644, 0, 0),
    }
    assert node.manifest()["mode"] == mode


def test_the_manifest_has_every_key(node: Node) -> None:
    node.prolog()
    manifest = node.manifest()
    assert manifest.pop("start").isdigit()
    assert manifest == {
        "format": "1",
        "job_id": "42",
        "uid": str(NOBODY),
        "gid": str(NOBODY),
        "user": "nobody",
        "account": "proj1",
        "partition": "gpu",
        "qos": "high",
        "node": "n1",
        "nodelist": "n[1-4]",
        "num_nodes": "4",
        "cluster": "sandbox",
        "gpus": "0,1",
        "restart": "0",
        "boot_id": BOOT_ID,
        "job_start": "",
        "job_end": "",
        "het_job_id": "",
        "work_dir": "/home/nobody",
        "mode": "prom",
    }


def test_what_slurmd_does_not_say_is_an_empty_value(node: Node) -> None:
    assert node.run(PROLOG, SLURM_JOB_ID="42", SLURM_JOB_UID="0") == ""
    manifest = node.manifest()
    assert len(manifest) == 21
    assert manifest["gid"] == manifest["account"] == manifest["nodelist"] == manifest["mode"] == ""
    assert manifest["restart"] == "0"
    assert (node.job / "raw").stat().st_uid == 0


def test_a_value_cannot_forge_a_line(node: Node) -> None:
    node.prolog(
        SLURM_JOB_WORK_DIR="/tmp/a\nend\nuid=0\t\x1b[2J\x7f", SLURM_JOB_USER="a\r\nuser=root"
    )
    manifest = node.manifest()
    assert manifest["work_dir"] == "/tmp/a?end?uid=0??[2J?"
    assert manifest["user"] == "a??user=root"
    assert manifest["uid"] == str(NOBODY)


def test_the_same_attempts_directory_is_left_alone(node: Node) -> None:
    node.prolog()
    before = node.job.stat().st_ino
    (node.job / "raw" / "x.box").touch()
    assert node.prolog() == ""
    assert node.job.stat().st_ino == before
    assert (node.job / "raw" / "x.box").exists()


@pytest.mark.parametrize("change", ["restart", "uid", "boot", "job start", "torn", "none"])
def test_another_attempts_directory_is_moved_to_ended_first(node: Node, change: str) -> None:
    node.prolog()
    (node.job / "raw" / "x.box").touch()
    manifest = node.job / "manifest"
    if change == "boot":
        manifest.write_text(manifest.read_text().replace(BOOT_ID, "0-0-0-0"))
    elif change == "torn":
        manifest.write_text(manifest.read_text().removesuffix("end\n"))
    elif change == "none":
        manifest.unlink()
    env = {
        "restart": {"SLURM_JOB_RESTART_COUNT": "1"},
        "uid": {"SLURM_JOB_UID": "1"},
        "job start": {"SLURM_JOB_START_TIME": "1700000000"},  # Slurm has begun to count anew
    }.get(change, {})
    assert node.prolog(**env) == ""
    (ended,) = (node.run_dir / "ended").iterdir()
    assert ended.name.removeprefix("42.").isdigit()
    assert (ended / "raw" / "x.box").exists()
    assert list((node.job / "raw").iterdir()) == []
    assert node.manifest()["restart"] == env.get("SLURM_JOB_RESTART_COUNT", "0")


@pytest.mark.parametrize("end", ["1700003600", "0"])
def test_the_manifest_has_the_jobs_end(node: Node, end: str) -> None:
    assert node.prolog(SLURM_JOB_END_TIME=end) == ""
    assert node.manifest()["job_end"] == end


@pytest.mark.parametrize("end", ["-1", "4294967295", "12345678901", "soon", "7 8", "007"])
def test_an_end_that_is_no_time_is_left_out(node: Node, end: str) -> None:
    assert node.prolog(SLURM_JOB_END_TIME=end) == ""
    assert node.manifest()["job_end"] == ""


def test_the_epilog_hands_the_directory_over_and_unpublishes(node: Node) -> None:
    node.prolog()
    inode = node.job.stat().st_ino
    for name in ("42.prom", "421.prom", "nccl_inspector_agent.prom"):
        (node.run_dir / "prom" / name).touch()
    assert node.epilog(SPANK_NCCL_INSPECTOR="off") == ""
    (ended,) = (node.run_dir / "ended").iterdir()
    assert ended.stat().st_ino == inode
    assert ended.name.removeprefix("42.").isdigit()
    assert not node.job.exists()
    assert {path.name for path in (node.run_dir / "prom").iterdir()} == {
        "421.prom",
        "nccl_inspector_agent.prom",
    }


def test_the_epilog_is_silent_when_run_twice_or_without_a_prolog(node: Node) -> None:
    assert node.epilog() == ""
    assert node.tree() == EMPTY
    node.prolog()
    assert node.epilog() == ""
    after = node.tree()
    assert node.epilog() == ""
    assert node.tree() == after


def test_a_users_links_in_raw_are_moved_not_followed(node: Node, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    node.prolog()
    (node.job / "raw" / "link").symlink_to(precious)
    node.epilog()
    assert (precious / "file").exists()


def programs(node: Node, tmp_path: Path, hook: Path) -> list[str]:
    """Run a hook the usual way; return the external commands that it started."""
    seen = tmp_path / "seen"
    seen.write_text("")
    names = ("cat", "chown", "date", "logger", "mkdir", "mv", "rm", "timeout", "tr")
    stubs = {name: f'echo {name} >>{seen}; exec /usr/bin/{name} "$@"' for name in names}
    assert node.run(with_stubs(tmp_path, hook, **stubs), **JOB) == ""
    return seen.read_text(encoding="ascii").split()


def test_the_usual_way_takes_few_external_commands(node: Node, tmp_path: Path) -> None:
    clock = ["date"] if node.shell.resolve().name == "dash" else []  # bash 5 knows the time
    assert programs(node, tmp_path, PROLOG) == [*clock, "mkdir", "chown"]
    (node.run_dir / "prom" / "42.prom").touch()
    assert programs(node, tmp_path, EPILOG) == [*clock, "mv", "rm"]
    assert programs(node, tmp_path, EPILOG) == []


def test_off_takes_no_external_command(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node.run_dir / "control" / "disabled").touch()
    assert programs(node, tmp_path, PROLOG) == []
    (node.run_dir / "control" / "disabled").unlink()
    monkeypatch.setitem(JOB, "SPANK_NCCL_INSPECTOR", "off")
    assert programs(node, tmp_path, PROLOG) == []


@pytest.mark.parametrize("mode", ["prom", "", "nonsense"])
def test_the_kill_switch_makes_the_prolog_do_nothing_and_say_nothing(node: Node, mode: str) -> None:
    (node.run_dir / "control" / "disabled").touch()
    assert node.prolog(SPANK_NCCL_INSPECTOR=mode) == ""
    assert node.tree() == ["control", "control/disabled", *EMPTY[1:]]


@pytest.mark.parametrize("how", ["off", "disabled"])
def test_an_unmeasured_attempt_does_not_leave_the_last_ones_directory_in_its_place(
    node: Node, how: str
) -> None:
    node.prolog()
    (node.job / "raw" / "x.box").touch()
    if how == "disabled":
        (node.run_dir / "control" / "disabled").touch()
    mode = "off" if how == "off" else "prom"
    assert node.prolog(SPANK_NCCL_INSPECTOR=mode, SLURM_JOB_RESTART_COUNT="1") == ""
    assert not node.job.exists()
    (ended,) = (node.run_dir / "ended").iterdir()
    assert (ended / "raw" / "x.box").exists()


def test_the_kill_switch_leaves_the_same_attempts_directory(node: Node) -> None:
    node.prolog()
    (node.run_dir / "control" / "disabled").touch()
    assert node.prolog() == ""
    assert (node.job / "raw").exists()


def test_the_kill_switch_changes_nothing_for_the_epilog(node: Node) -> None:
    node.prolog()
    (node.run_dir / "prom" / "42.prom").touch()
    (node.run_dir / "control" / "disabled").touch()
    assert node.epilog() == ""
    assert not node.job.exists()
    assert not (node.run_dir / "prom" / "42.prom").exists()
    assert len(node.ended()) == 1


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("hook", [PROLOG, EPILOG])
def test_a_slurmd_that_loses_patience_sees_success(
    node: Node, tmp_path: Path, hook: Path, end: signal.Signals
) -> None:
    """A signal in the middle of a hook that waits, as to its whole process group."""
    node.prolog(SLURM_JOB_RESTART_COUNT="7")
    reached = tmp_path / "reached"
    os.mkfifo(reached)
    stuck = with_stubs(tmp_path, hook, mv=f"echo >{reached}; exec /usr/bin/sleep 60")
    with subprocess.Popen(
        [node.shell, stuck],
        env=JOB | {"NCCL_INSPECTOR_TEST_RUN_DIR": str(node.run_dir)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        reached.read_text()
        os.killpg(running.pid, end)
        assert running.wait(timeout=5) == 0
    assert node.manifest()["restart"] == "7"


@pytest.mark.parametrize("hook", [PROLOG, EPILOG])
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">/dev/full 2>&1"])
def test_a_hook_without_standard_streams_ends_well(node: Node, hook: Path, closed: str) -> None:
    command = f'"$0" "$1" {closed}'
    for job in ("42", "x"):
        env = JOB | {"NCCL_INSPECTOR_TEST_RUN_DIR": str(node.run_dir), "SLURM_JOB_ID": job}
        subprocess.run(["/bin/bash", "-c", command, node.shell, hook], env=env, check=True)
    assert node.job.is_dir() == (hook == PROLOG)


def test_a_log_that_nobody_reads_does_not_fail_a_hook(node: Node) -> None:
    for hook in (PROLOG, EPILOG):
        reading, writing = os.pipe()
        os.close(reading)
        subprocess.run([node.shell, hook], stderr=writing, env={}, check=True)
        os.close(writing)
