"""pyslurm in a child: absent, of another release, and one that ends, hangs or lies.

The module here is a stand-in: no pyslurm can be built for the releases that Debian has. The real
one is asked by tests/cluster/slurm/test_pyslurm.py.
"""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from nccl_inspector.model.jobid import JobName
from nccl_inspector.slurm import pyslurmprobe
from nccl_inspector.slurm.job_record import CONTROLLER, PYSLURM
from nccl_inspector.slurm.pyslurmprobe import ask_pyslurm, installed, is_whole
from nccl_inspector.slurm.slurmctld import ask_controller
from nccl_inspector.slurm.values import Facts

JOB = {
    "id": 42, "name": "train", "user_id": 1001, "user_name": "ann", "state": "COMPLETED",
    "exit_code": 0, "exit_code_signal": 0, "requeue_count": 1, "time_limit": 30,
    "start_time": 100, "end_time": 200, "allocated_nodes": "n[1-2]", "num_nodes": 2,
    "required_switches": 1, "max_wait_time_switches": 120, "segment_size": None,
    "standard_output": "/home/ann/%x.out", "array_id": None, "tres": "<object>",
}  # fmt: skip
LOADS = "import json\nclass Job:\n    @staticmethod\n    def load(job_id):\n        {}\n"


class Python:
    """An interpreter that has a module pyslurm of a test's making."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "python"
        real = Path(sys.executable)
        self.program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {real} "$@"\n')
        self.program.chmod(0o755)

    def with_module(self, text: str) -> Path:
        (self.folder / "pyslurm.py").write_text(text)
        return self.program

    def with_job(self, job: object) -> Path:
        said = "class Said:\n    def to_dict(self):\n        return json.loads(TEXT)\n"
        text = f"TEXT = {json.dumps(job)!r}\n"
        return self.with_module(LOADS.format("return Said()") + said + text)


@pytest.fixture
def python(tmp_path: Path) -> Python:
    return Python(tmp_path)


def test_a_path_that_libslurm_has_filled_in_is_not_filled_in_again(
    python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _name: "25.11.2")
    program = python.with_job({**JOB, "standard_output": "/home/ann/100%x.out"})
    assert ask_pyslurm(42, program)[0]["stdout_path"] == "/home/ann/100%%x.out"


def test_what_it_says_is_read(python: Python) -> None:
    facts, why = ask_pyslurm(42, python.with_job(JOB))
    assert why == ""
    assert facts == {
        "job_id": 42, "name": "train", "uid": 1001, "user": "ann", "state": "COMPLETED",
        "exit_code": 0, "signal": 0, "restart": 1, "time_limit_s": 1800, "start_s": 100,
        "end_s": 200, "nodelist": "n[1-2]", "num_nodes": 2, "switches": 1, "segment": 0,
        "switches_wait_s": 120, "stdout_path": "/home/ann/%x.out",
    }  # fmt: skip


@pytest.mark.parametrize("told", [9, 0], ids=["137", "128"])
def test_an_exit_code_from_which_128_may_have_been_subtracted_is_not_believed(
    python: Python, told: int
) -> None:
    job = JOB | {"state": "FAILED", "exit_code": told}
    facts, _ = ask_pyslurm(42, python.with_job(job))
    assert not {"exit_code", "signal"} & facts.keys()
    assert not is_whole(facts)


def test_a_signal_is_believed(python: Python) -> None:
    job = JOB | {"state": "FAILED", "exit_code": 0, "exit_code_signal": 9}
    facts, _ = ask_pyslurm(42, python.with_job(job))
    assert (facts["exit_code"], facts["signal"], is_whole(facts)) == (0, 9, True)


def test_what_pyslurm_says_as_none_in_place_of_0_is_0(python: Python) -> None:
    none = {
        "array_id": 40, "array_task_id": None, "array_tasks_waiting": None,
        "heterogeneous_id": 41, "heterogeneous_offset": None, "required_switches": None,
        "state_reason": "None",
    }  # fmt: skip
    facts, _ = ask_pyslurm(42, python.with_job(JOB | none))
    found = {key: facts.get(key) for key in ("array_task_id", "het_offset", "switches", "reason")}
    assert found == {"array_task_id": 0, "het_offset": 0, "switches": 0, "reason": ""}


def test_an_array_whose_tasks_still_wait_is_not_its_first_task(python: Python) -> None:
    waits = {"array_id": 42, "array_task_id": None, "array_tasks_waiting": "0-3"}
    facts, _ = ask_pyslurm(42, python.with_job(JOB | waits))
    assert "array_task_id" not in facts


def test_why_slurm_ended_a_job_is_told(python: Python) -> None:
    facts, _ = ask_pyslurm(42, python.with_job(JOB | {"state_reason": "TimeLimit"}))
    assert facts["reason"] == "TimeLimit"


def test_a_heterogeneous_job_is_not_whole_because_its_components_are_not_told(
    python: Python,
) -> None:
    facts, _ = ask_pyslurm(42, python.with_job(JOB | {"heterogeneous_id": 41}))
    assert not is_whole(facts)


@pytest.mark.parametrize(
    ("answers", "source", "code"), [(True, CONTROLLER, 137), (False, PYSLURM, None)]
)
def test_what_pyslurm_does_not_tell_scontrol_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool, source: str, code: int | None
) -> None:
    scontrol = tmp_path / "scontrol"
    said = "echo JobId=42 JobState=FAILED ExitCode=137:0" if answers else "exit 1"
    scontrol.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo slurm-wlm 22.05.8 && exit\n{said}\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setattr(pyslurmprobe, "installed", lambda: (22, 5))
    told: Facts = {"job_id": 42, "state": "FAILED"}
    monkeypatch.setattr(pyslurmprobe, "ask_pyslurm", lambda _: (told, ""))
    by, facts, _ = ask_controller(scontrol, JobName(42))
    assert (by, facts.get("exit_code")) == (source, code)


@pytest.mark.parametrize(
    "module",
    [
        "import os\nos._exit(1)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        "raise RuntimeError('no slurm.conf')",
        LOADS.format("raise KeyError(job_id)"),
    ],
)
def test_one_that_ends_its_process_is_only_no_answer(python: Python, module: str) -> None:
    facts, why = ask_pyslurm(42, python.with_module(module))
    assert facts == {}
    assert why


def test_one_that_hangs_is_ended(python: Python) -> None:
    program = python.with_module("import time\ntime.sleep(100)")
    assert ask_pyslurm(42, program, seconds=0.5) == ({}, "no answer in 0.5 s")


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (JOB | {"id": 43}, "what it says is not of this job"),
        ([JOB], "what it says is not of this job"),
        (None, "what it says is not of this job"),
    ],
)
def test_one_that_lies_about_which_job_is_refused(python: Python, job: object, why: str) -> None:
    assert ask_pyslurm(42, python.with_job(job)) == ({}, why)


def test_values_of_another_kind_are_not_there(python: Python) -> None:
    odd = {
        "id": 42,
        "name": 7,
        "user_id": "root",
        "exit_code": -1,
        "state": ["A"],
        "time_limit": True,
    }
    facts, _ = ask_pyslurm(42, python.with_job(odd))
    assert facts == {"job_id": 42, "name": ""}


def test_words_beside_json_are_refused(python: Python) -> None:
    program = python.with_module("print('hello')\n" + LOADS.format("raise SystemExit(0)"))
    assert ask_pyslurm(42, program) == ({}, "what it says is not JSON")


def test_without_the_package_none_is_installed() -> None:
    assert installed() is None


@pytest.mark.parametrize(
    ("version", "release"),
    [("25.11.2", (25, 11)), ("22.5.1", (22, 5)), ("nightly", None)],
)
def test_its_version_tells_for_which_release_it_is(
    monkeypatch: pytest.MonkeyPatch, version: str, release: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    assert installed() == release


@pytest.mark.parametrize(
    ("release", "answers", "source"),
    [((22, 5), True, PYSLURM), ((25, 11), True, CONTROLLER), ((22, 5), False, CONTROLLER)],
)
def test_it_is_asked_only_where_it_is_of_the_sites_release(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: tuple[int, int],
    answers: bool,
    source: str,
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho slurm-wlm 22.05.8\n")
    scontrol.chmod(0o755)

    def told(_: int) -> tuple[Facts, str]:
        return ({"job_id": 42}, "") if answers else ({}, "no answer in 10 s")

    monkeypatch.setattr(pyslurmprobe, "installed", lambda: release)
    monkeypatch.setattr(pyslurmprobe, "ask_pyslurm", told)
    assert ask_controller(scontrol, JobName(42))[0] == source
