# SPDX-License-Identifier: Apache-2.0
"""Where a job's RAS services listen, by what its processes on this node say."""

import os
import subprocess
import sys
from pathlib import Path

from nccl_inspector.ras.client import Address
from nccl_inspector.ras.find import RasPlace, find_places

JOB = 4711


def _process(proc: Path, pid: int, *words: str, inner_pid: int | None = None) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "environ").write_bytes("\0".join(words).encode())
    if inner_pid is not None:
        (proc / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\t{inner_pid}\n")


def test_the_jobs_own_address_is_found_by_its_processes(tmp_path: Path) -> None:
    _process(tmp_path, 1, "SLURM_JOB_ID=1", "NCCL_RAS_ADDR=localhost:1001")
    _process(tmp_path, 2, f"SLURM_JOB_ID={JOB}", "NCCL_RAS_ADDR=localhost:1002")
    _process(tmp_path, 3, f"SLURM_JOB_ID={JOB}", "NCCL_RAS_ADDR=localhost:1002", inner_pid=7)
    _process(tmp_path, 4, f"SLURM_JOB_ID={JOB}")
    _process(tmp_path, 5, f"SLURM_JOB_ID={JOB}", "NCCL_RAS_ENABLE=0")
    _process(tmp_path, 6, f"SLURM_JOB_ID={JOB}", "NCCL_RAS_ADDR=169.254.169.254:80")
    found = find_places(JOB, proc=tmp_path)
    batch = ("batch",)
    assert set(found.places) == {
        RasPlace(Address("localhost", 1002), batch, frozenset({2, 7})),
        RasPlace(Address("localhost", 28028), batch, frozenset({4})),
    }
    assert set(found.problems) == {
        "NCCL_RAS_ENABLE=0 switches the service off",
        "NCCL_RAS_ADDR is 169.254.169.254:80, not this host: give it as --address",
    }


def test_each_step_of_a_job_is_asked_at_its_own_address(tmp_path: Path) -> None:
    steps = {"": "batch", "0": "0", "12": "12", "4294967290": "interactive", "-5": "batch"}
    for pid, step in enumerate(steps, 1):
        words = [f"SLURM_STEP_ID={step}"] if step else []
        address = f"NCCL_RAS_ADDR=localhost:{1000 + pid}"
        _process(tmp_path, pid, f"SLURM_JOB_ID={JOB}", address, *words)
    _process(tmp_path, 9, f"SLURM_JOB_ID={JOB}", "SLURM_STEP_ID=\x1b[2J")
    found = {place.address.port: place.steps for place in find_places(JOB, proc=tmp_path).places}
    assert found == {
        **{1000 + pid: (step,) for pid, step in enumerate(steps.values(), 1)},
        28028: ("unknown",),
    }
    (one,) = find_places(JOB, "12", proc=tmp_path).places
    assert one.address.port == 1003


def test_processes_of_another_user_are_not_believed_to_be_of_the_job(tmp_path: Path) -> None:
    _process(tmp_path, 1, f"SLURM_JOB_ID={JOB}", "NCCL_RAS_ADDR=localhost:1001")
    _process(tmp_path, 2, f"SLURM_JOB_ID={JOB}", "NCCL_RAS_ADDR=localhost:1002")
    os.chown(tmp_path / "1", 4001, -1)
    os.chown(tmp_path / "2", 4002, -1)
    (place,) = find_places(JOB, uid=4001, proc=tmp_path).places
    assert place.address.port == 1001


def test_a_process_in_a_network_of_its_own_is_said_and_not_asked() -> None:
    with subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", "print(flush=True); input()"],
        env=os.environ | {"SLURM_JOB_ID": str(JOB)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout
        child.stdout.readline()
        found = find_places(JOB)
        child.kill()
    assert found.places == ()
    assert found.problems == (
        "a process has a network namespace of its own: ask inside its container",
    )
