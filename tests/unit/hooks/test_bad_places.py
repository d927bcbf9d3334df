# SPDX-License-Identifier: Apache-2.0
"""Hooks where the run directory, the clock or the job's own words are bad."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccl_inspector.agent.manifest import parse_manifest
from tests.support.hook_scripts import (
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

INODES = 12
INODES_IN_USE = 1 + len(EMPTY)  # the root's, too


@pytest.fixture(params=SHELLS)
def shell(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return sh(tmp_path, request.param)


@pytest.fixture
def node(tmp_path: Path, shell: Path) -> Node:
    return Node(tmp_path / "run", shell)


@pytest.fixture
def small(tmp_path: Path, shell: Path) -> Iterator[Node]:
    """A node whose tmpfs holds 64 KiB and 12 inodes, the smallest that the tests can fill."""
    point = tmp_path / "small"
    point.mkdir()
    options = f"size=64k,nr_inodes={INODES}"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", point], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield Node(point, shell)
    finally:
        subprocess.run(["umount", point], check=True)


@contextmanager
def read_only(node: Node) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", node.run_dir], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", node.run_dir], check=True)


def fill(node: Node, short_of: str, inodes_left: int = 0) -> None:
    if short_of == "bytes":
        with pytest.raises(OSError, match="No space"):
            (node.run_dir / "prom" / "fill").write_bytes(bytes(1 << 20))
    else:
        used = sum(1 for _ in node.run_dir.rglob("*")) + 1
        for i in range(INODES - used - inodes_left):
            (node.run_dir / "prom" / f"fill{i}").touch()


FULL = [("bytes", 0), ("inodes", 2), ("inodes", 1), ("inodes", 0)]


@pytest.mark.parametrize(("short_of", "left"), FULL)
def test_a_full_tmpfs_leaves_nothing_half_made(small: Node, short_of: str, left: int) -> None:
    fill(small, short_of, left)  # directory, raw and manifest need three inodes
    before = small.tree()
    logged = small.prolog()
    assert "job 42: no metrics: " in logged
    assert "No space left on device" in logged or f"is {small.run_dir} full?" in logged
    assert small.tree() == before


@pytest.mark.parametrize("short_of", ["bytes", "inodes"])
def test_a_full_tmpfs_does_not_keep_the_epilog_from_its_work(small: Node, short_of: str) -> None:
    small.prolog()
    (small.run_dir / "prom" / "42.prom").touch()
    fill(small, short_of)
    assert small.epilog() == ""
    assert not small.job.exists()
    assert not (small.run_dir / "prom" / "42.prom").exists()
    assert (small.ended()[0] / "manifest").read_text().endswith("\nend\n")


def test_a_full_tmpfs_does_not_keep_an_old_attempt_in_the_way(small: Node) -> None:
    small.prolog()
    fill(small, "inodes")
    assert "job 42: no metrics: " in small.prolog(SLURM_JOB_RESTART_COUNT="1")
    assert not small.job.exists()
    assert len(small.ended()) == 1


def test_a_read_only_run_directory_costs_one_line_each(small: Node) -> None:
    with read_only(small):
        assert "Read-only file system" in small.prolog()
        assert small.epilog() == ""
    small.prolog()
    (small.run_dir / "prom" / "42.prom").touch()
    before = small.tree()
    with read_only(small):
        assert small.prolog() == "", "the same attempt's is there"
        assert "Read-only file system" in small.prolog(SLURM_JOB_RESTART_COUNT="1")
        logged = small.epilog()
    assert "the job's files stay: " in logged
    assert "the job's series stay: " in logged
    assert small.tree() == before


def test_without_the_packages_directories_the_prolog_says_so(node: Node) -> None:
    (node.run_dir / "jobs").rmdir()
    assert "no metrics: there is no" in node.prolog()
    assert node.epilog() == ""
    assert node.tree() == ["control", "ended", "prom"]


def test_without_any_run_directory_the_prolog_says_so_and_makes_none(tmp_path: Path) -> None:
    node = Node(tmp_path / "run", Path("/bin/sh"))
    node.run_dir = tmp_path / "none"
    assert "there is no" in node.prolog()
    assert node.epilog() == ""
    assert not node.run_dir.exists()


@pytest.mark.parametrize("instead", ["nothing", "a file"])
def test_without_ended_the_old_directory_stays_and_is_logged(node: Node, instead: str) -> None:
    node.prolog()
    (node.run_dir / "ended").rmdir()
    if instead == "a file":
        (node.run_dir / "ended").touch()
    assert "no metrics: mv: cannot" in node.prolog(SLURM_JOB_RESTART_COUNT="1")
    assert node.manifest()["restart"] == "0"
    (node.run_dir / "prom" / "42.prom").touch()
    assert "the job's files stay: mv: cannot" in node.epilog()
    assert node.is_whole()
    assert not (node.run_dir / "prom" / "42.prom").exists()


@pytest.mark.parametrize("what", ["file", "link to a directory", "link to a job", "loose link"])
def test_what_is_no_directory_is_left_alone_and_logged(
    node: Node, tmp_path: Path, what: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    if what == "file":
        node.job.write_text("x")
    elif what == "link to a job":
        node.prolog(SLURM_JOB_ID="41")
        node.job.symlink_to("41")
    else:
        node.job.symlink_to(precious if what == "link to a directory" else "nowhere")
    before = node.tree()
    assert "is not a directory" in node.prolog(SLURM_JOB_RESTART_COUNT="1")
    assert "is not a directory" in node.epilog()
    assert node.tree() == before
    assert [path.name for path in precious.iterdir()] == ["file"]


@pytest.mark.parametrize("date", ["echo 1700000000.000001", "echo 5.000000", "echo 0.000000"])
def test_a_clock_that_stands_or_is_stepped_back_loses_no_attempt(
    node: Node, tmp_path: Path, date: str
) -> None:
    prolog, epilog = (with_stubs(tmp_path, hook, date=date) for hook in (PROLOG, EPILOG))
    frozen = {"EPOCHREALTIME": ""} if node.shell.resolve().name == "dash" else {}
    for restart in range(3):
        env = JOB | frozen | {"SLURM_JOB_RESTART_COUNT": str(restart)}
        assert node.run(prolog, **env) == ""
        assert node.manifest()["restart"] == str(restart)
    assert node.run(epilog, **JOB) == ""
    found = [(path / "manifest").read_text().split("restart=")[1][0] for path in node.ended()]
    assert sorted(found) == ["0", "1", "2"]
    assert all(path.name.removeprefix("42.").isdigit() for path in node.ended())


@pytest.mark.parametrize("clock", ["", "x", "1.2.3", "-5.0", "9" * 30, "1700000000,123456"])
def test_an_odd_clock_neither_fails_a_hook_nor_makes_an_odd_name(
    tmp_path: Path, clock: str
) -> None:
    node = Node(tmp_path / "run", sh(tmp_path, "dash"))  # bash makes EPOCHREALTIME itself
    stubs = {"date": "exit 1"}
    prolog, epilog = (with_stubs(tmp_path, hook, **stubs) for hook in (PROLOG, EPILOG))
    assert node.run(prolog, **JOB, EPOCHREALTIME=clock) == ""
    assert parse_manifest((node.job / "manifest").read_bytes()).start == 1
    assert node.run(epilog, **JOB, EPOCHREALTIME=clock) == ""
    assert [path.name for path in node.ended()] == ["42.1"]


def test_a_node_list_of_two_thousand_scattered_nodes_is_whole_in_the_manifest(node: Node) -> None:
    nodelist = ",".join(f"rack{i * 7919 % 9973}-node{i}" for i in range(2000))
    assert node.prolog(SLURM_NODELIST=nodelist) == ""
    assert parse_manifest((node.job / "manifest").read_bytes()).nodelist == nodelist
    assert node.prolog() == "", "read again to see that it is the same attempt's"


def test_values_of_a_hundred_kilobytes_are_copied_in_time(node: Node) -> None:
    long = {f"SLURM_JOB_{name}": "y" * 100_000 for name in ("ACCOUNT", "PARTITION", "GPUS")}
    hostile = "z\n" * 50_000
    assert node.prolog(**long, SLURM_JOB_WORK_DIR=hostile) == ""
    assert node.manifest()["account"] == "y" * 100_000
    assert node.manifest()["work_dir"] == "z?" * 50_000
    assert node.prolog(**long, SLURM_JOB_WORK_DIR=hostile) == ""
    assert node.ended() == []


HOSTILE_TEXTS = [
    b"two words",
    b"a\nend\nuid=0\nend",
    b"\x1b]0;owned\x07\x1b[2J",
    b"\xff\xfe\xc3(\xed\xa0\x80",
    b"$(touch /tmp/pwned);`reboot`|&<>*?[a-z]~'\"\\ -n -e %s%n\\c",
    b"\n" * 9,
    b"-",
    b"\x7f\x01",
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_words_are_text_and_nothing_else(node: Node, text: bytes) -> None:
    assert (
        node.prolog(
            SLURM_JOB_USER=text,
            SLURM_JOB_WORK_DIR=text,
            SLURM_JOB_ACCOUNT=text,
            SLURM_JOB_QOS=text,
            SLURM_JOB_COMMENT=text,
            SLURM_HET_JOB_ID=text,
            SPANK_X=text,
        )
        == ""
    )
    plain = bytes(byte if 0x20 <= byte != 0x7F else 0x3F for byte in text)
    data = (node.job / "manifest").read_bytes()
    assert data.count(b"\n") == 22
    assert b"\nwork_dir=" + plain + b"\n" in data
    manifest = parse_manifest(data)
    assert (manifest.uid, manifest.job_id) == (NOBODY, 42)
    assert node.prolog() == ""
    assert node.ended() == []
    assert node.epilog(SLURM_JOB_COMMENT=text, SLURM_JOB_USER=text) == ""
    assert node.tree()[0:2] == ["control", "ended"]


@pytest.mark.parametrize("program", ["mkdir", "chown"])
def test_a_program_that_fails_leaves_nothing_half_made(
    node: Node, tmp_path: Path, program: str
) -> None:
    failing = with_stubs(tmp_path, PROLOG, **{program: "echo cannot >&2; exit 1"})
    assert "job 42: no metrics: cannot" in node.run(failing, **JOB)
    assert node.tree() == EMPTY


@pytest.mark.parametrize("hook", [PROLOG, EPILOG])
def test_a_directory_that_the_agent_sweeps_in_the_last_moment_is_no_trouble(
    node: Node, tmp_path: Path, hook: Path
) -> None:
    node.prolog()
    swept = f"[ ! -e {node.run_dir}/jobs/42 ] || /bin/mv {node.run_dir}/jobs/42 {tmp_path}/swept"
    racing = with_stubs(tmp_path, hook, mv=f'{swept}; exec /bin/mv "$@"')
    assert node.run(racing, **(JOB | {"SLURM_JOB_RESTART_COUNT": "1"})) == ""
    assert (tmp_path / "swept" / "manifest").exists()
    assert node.job.exists() == (hook == PROLOG)
