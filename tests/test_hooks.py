# SPDX-License-Identifier: Apache-2.0
"""Prolog and epilog, run as slurmd runs them: as root, with nothing but slurmd's variables."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROLOG = ROOT / "prolog" / "50-nccl-inspector.sh"
EPILOG = ROOT / "epilog" / "50-nccl-inspector.sh"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
NOBODY = 65534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs the hooks as root")

# Bash reads the file in BASH_ENV before the script. The trap sees every simple command before it
# is executed, also in functions and subshells, and writes down those that are programs.
SPY = """
set -o functrace
trap '[[ $(type -t -- "${BASH_COMMAND%%%% *}") != file ]] ||
	printf "%%s\\n" "$BASH_COMMAND" >>%s' DEBUG
"""

JOB = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_UID": str(NOBODY),
    "SLURM_JOB_GID": str(NOBODY),
    "SLURM_JOB_USER": "nobody",
    "SLURM_JOB_ACCOUNT": "proj1",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURMD_NODENAME": "n1",
    "SLURM_NODELIST": "n[1-4]",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_CLUSTER_NAME": "sandbox",
    "SLURM_JOB_GPUS": "0,1",
    "SLURM_JOB_RESTART_COUNT": "0",
    "SLURM_JOB_WORK_DIR": "/home/nobody",
    "SPANK_NCCL_INSPECTOR": "prom",
}


class Node:
    """A node's run directory, as the package sets it up, and its hooks."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.job = run_dir / "jobs" / "42"
        for name, mode in (("jobs", 0o711), ("ended", 0o700), ("prom", 0o755)):
            (run_dir / name).mkdir(parents=True)
            (run_dir / name).chmod(mode)

    def run(self, hook: Path, **env: str) -> str:
        """Run a hook, which must end with 0, and return what it logged."""
        done = subprocess.run(
            [hook],
            env={"NCCL_INSPECTOR_RUN_DIR": str(self.run_dir), **env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        assert done.returncode == 0
        assert done.stdout == ""
        assert done.stderr.count("\n") <= 1
        return done.stderr

    def prolog(self, **env: str) -> str:
        return self.run(PROLOG, **(JOB | env))

    def epilog(self, **env: str) -> str:
        return self.run(EPILOG, **(JOB | env))

    def manifest(self) -> dict[str, str]:
        lines = (self.job / "manifest").read_text(encoding="utf-8").split("\n")
        assert lines[-2:] == ["end", ""]
        return dict(line.split("=", 1) for line in lines[:-2])

    def tree(self) -> list[str]:
        return sorted(str(path.relative_to(self.run_dir)) for path in self.run_dir.rglob("*"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "run")


EMPTY = ["ended", "jobs", "prom"]
INODES_IN_USE = 1 + len(EMPTY)  # the root's, too


@pytest.mark.parametrize("hook", [PROLOG, EPILOG])
def test_a_hook_is_short_and_passes_shellcheck(hook: Path) -> None:
    assert len(hook.read_text(encoding="ascii").splitlines()) <= 60
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
    ["json", "OFF", " off", "off\n", "prom report", "*", "/etc/passwd", "$(reboot)", "x" * 9999],
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


@pytest.mark.parametrize("mode", ["prom", "report", ""])
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
        "node": "n1",
        "nodelist": "n[1-4]",
        "num_nodes": "4",
        "cluster": "sandbox",
        "gpus": "0,1",
        "restart": "0",
        "boot_id": BOOT_ID,
        "het_job_id": "",
        "work_dir": "/home/nobody",
        "mode": "prom",
    }


def test_what_slurmd_does_not_say_is_an_empty_value(node: Node) -> None:
    assert node.run(PROLOG, SLURM_JOB_ID="42", SLURM_JOB_UID="0") == ""
    manifest = node.manifest()
    assert len(manifest) == 18
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


@pytest.mark.parametrize("change", ["restart", "uid", "boot", "torn", "none"])
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
    env = {"restart": {"SLURM_JOB_RESTART_COUNT": "1"}, "uid": {"SLURM_JOB_UID": "1"}}.get(
        change, {}
    )
    assert node.prolog(**env) == ""
    (ended,) = (node.run_dir / "ended").iterdir()
    assert ended.name.removeprefix("42.").isdigit()
    assert (ended / "raw" / "x.box").exists()
    assert list((node.job / "raw").iterdir()) == []
    assert node.manifest()["restart"] == env.get("SLURM_JOB_RESTART_COUNT", "0")


def test_without_the_packages_directories_the_prolog_says_so(node: Node) -> None:
    (node.run_dir / "jobs").rmdir()
    assert "jobs" in node.prolog()
    assert node.tree() == ["ended", "prom"]


def test_an_old_directory_that_cannot_be_moved_stays_and_is_logged(node: Node) -> None:
    node.prolog()
    (node.run_dir / "ended").rmdir()
    done = subprocess.run(
        [PROLOG],
        env=JOB | {"NCCL_INSPECTOR_RUN_DIR": str(node.run_dir), "SLURM_JOB_RESTART_COUNT": "1"},
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert done.returncode == 0
    assert "cannot move the old" in done.stderr
    assert node.manifest()["restart"] == "0"


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Node:
    """A node whose tmpfs holds 64 KiB and 12 inodes, the smallest that the tests can fill."""
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=12", "none", mount_point], check=False
    )
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    return Node(mount_point)


@pytest.mark.parametrize("short_of", ["bytes", "inodes"])
def test_a_full_tmpfs_leaves_nothing_that_looks_whole(small_tmpfs: Node, short_of: str) -> None:
    node = small_tmpfs
    try:
        if short_of == "bytes":
            fill = node.run_dir / "prom" / "fill"
            with pytest.raises(OSError, match="No space"):
                fill.write_bytes(bytes(1 << 20))
        else:  # directory, raw and manifest need three
            for i in range(12 - INODES_IN_USE - 2):
                (node.run_dir / "prom" / str(i)).touch()
        logged = node.prolog()
        assert "job 42: no metrics: " in logged
        assert "No space left on device" in logged
        assert not node.job.exists()
    finally:
        subprocess.run(["umount", node.run_dir], check=True)


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


def test_the_epilog_logs_what_it_cannot_move(node: Node) -> None:
    node.prolog()
    (node.run_dir / "ended").rmdir()
    assert "the job's files stay: " in node.epilog()
    assert node.job.is_dir()


def test_a_users_links_in_raw_are_moved_not_followed(node: Node, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    node.prolog()
    (node.job / "raw" / "link").symlink_to(precious)
    node.epilog()
    assert (precious / "file").exists()


def programs(node: Node, tmp_path: Path, hook: Path) -> list[str]:
    """Run a hook the usual way; return the external commands that bash executed."""
    spy, seen = tmp_path / "spy", tmp_path / "seen"
    spy.write_text(SPY % seen, encoding="ascii")
    seen.touch()
    assert node.run(hook, **JOB, BASH_ENV=str(spy)) == ""
    commands = seen.read_text(encoding="utf-8").splitlines()
    seen.unlink()
    return [command.split()[0] for command in commands]


def test_the_usual_way_takes_two_external_commands(node: Node, tmp_path: Path) -> None:
    assert programs(node, tmp_path, PROLOG) == ["mkdir", "chown"]
    (node.run_dir / "prom" / "42.prom").touch()
    assert programs(node, tmp_path, EPILOG) == ["mv", "rm"]
    assert programs(node, tmp_path, EPILOG) == []


def test_a_slurmd_that_loses_patience_sees_success(node: Node, tmp_path: Path) -> None:
    """SIGTERM in the middle of a hook that waits: bash runs the trap, which says 0."""
    fifo, waits = tmp_path / "fifo", tmp_path / "waits"
    os.mkfifo(fifo)
    waits.write_text(f"read() {{ builtin read -r _ <{fifo}; }}\n", encoding="utf-8")
    with subprocess.Popen(
        [PROLOG],
        env=JOB | {"NCCL_INSPECTOR_RUN_DIR": str(node.run_dir), "BASH_ENV": str(waits)},
        stderr=subprocess.DEVNULL,
    ) as hook:
        with pytest.raises(subprocess.TimeoutExpired):
            hook.wait(timeout=0.3)
        hook.terminate()
        assert hook.wait(timeout=5) == 0
    assert node.tree() == EMPTY
