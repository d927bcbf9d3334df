# SPDX-License-Identifier: Apache-2.0
"""The processes of a job, their variables and their libraries, of real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nccl_inspector.doctor.check import Outcome, run_check
from nccl_inspector.doctor.facts import CannotTell, Facts, Job, JobProcess, Settings
from nccl_inspector.doctor.read_job import read_job
from nccl_inspector.doctor.registry import CHECKS
from nccl_inspector.settings.config import parse_config
from tests.support.doctor_facts import environment
from tests.support.repository import BUILD

JOB = 999_999_001
PLUGIN = BUILD / "libnccl-profiler-inspector.so"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="jobs are another user's processes")
_LOADS = (
    "import ctypes, sys, time\n"
    "for path in sys.argv[1:]: ctypes.CDLL(path)\n"
    "print('up', flush=True); time.sleep(60)\n"
)


@contextmanager
def process(*libraries: Path, **environ: str) -> Iterator[int]:
    """A process of a user, in a job, with these libraries loaded."""
    child = subprocess.Popen(
        ["/usr/bin/python3", "-c", _LOADS, *map(str, libraries)],
        env={**environ, "SLURM_JOB_ID": str(JOB), "PATH": "/usr/bin"},
        stdout=subprocess.PIPE, user=65534, group=65534, cwd="/",
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child.pid
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def run_dir(open_path: Path) -> Path:
    for name in ("jobs", "ended", "prom", "control"):
        (open_path / name).mkdir()
    return open_path


def look(run_dir: Path) -> Job:
    return read_job(parse_config(f"run_dir = {run_dir}\n", "test"), JOB)


def only(job: Job) -> JobProcess:
    (found,) = job.processes
    return found


@pytest.fixture
def libraries(open_path: Path) -> tuple[Path, Path]:
    """NCCL by its name, and our plugin, where the job's user can read them."""
    nccl, plugin = open_path / "libnccl.so.2.21.5", open_path / PLUGIN.name
    nccl.write_bytes((BUILD / "player" / "libnccl.so.2").read_bytes())
    plugin.write_bytes(PLUGIN.read_bytes())
    return nccl, plugin


def test_variables_and_libraries_of_a_process_are_seen(
    run_dir: Path, libraries: tuple[Path, Path]
) -> None:
    nccl, plugin = libraries
    with process(*libraries, **environment(OWN_WORDS="no", NCCL_RAS_ENABLE="0")) as pid:
        seen = only(look(run_dir))
    assert (seen.pid, seen.nccl, seen.profiler) == (pid, str(nccl), str(plugin))
    assert seen.nccl_version == (2, 21, 5)
    assert "OWN_WORDS" not in seen.environ
    assert seen.environ["NCCL_RAS_ENABLE"] == "0"
    assert not seen.sees_profiler, "the package is not installed here"
    assert not seen.sees_raw


def test_a_job_of_real_processes_is_judged(run_dir: Path, libraries: tuple[Path, Path]) -> None:
    (run_dir / "jobs" / str(JOB) / "raw").mkdir(parents=True)
    with process(libraries[0], **environment(NCCL_PROFILER_PLUGIN=str(libraries[1]))):
        config = parse_config(f"run_dir = {run_dir}\n", "test")
        facts = Facts(settings=Settings(run_dir, "", config), job=look(run_dir))
    found = {one.id for one in CHECKS if run_check(one, facts).outcome is Outcome.FOUND}
    assert found == {"job-other-profiler", "job-nccl", "job-plugin-not-loaded"}


def test_roots_processes_and_those_of_other_jobs_are_left_out(run_dir: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={"SLURM_JOB_ID": str(JOB)}
    )
    try:
        with process(SLURM_JOB="other"):
            assert len(look(run_dir).processes) == 1
        assert look(run_dir).processes == ()
    finally:
        child.kill()
        child.wait()


def test_without_a_directory_it_says_so(run_dir: Path) -> None:
    job = look(run_dir)
    assert job.directory.problem == "No such file or directory"
    assert isinstance(job.boxes, CannotTell)


def test_a_broken_manifest_is_told(run_dir: Path) -> None:
    folder = run_dir / "jobs" / str(JOB)
    folder.mkdir()
    (folder / "manifest").write_text("format=1\n")
    assert "torn_manifest" in look(run_dir).manifest_refused


def test_the_kill_switch_is_seen(run_dir: Path) -> None:
    (run_dir / "control" / "disabled").write_text("1 why\n")
    assert look(run_dir).disabled
