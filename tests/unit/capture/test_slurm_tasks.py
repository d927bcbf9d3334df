# SPDX-License-Identifier: Apache-2.0
"""`analyze --slurm N` lets tasks do the work, and says what one process says."""

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result

from nccl_inspector.capture import pieces, slurm_step
from nccl_inspector.capture.file_parts import PART_BYTES_MIN
from nccl_inspector.cli import cli
from tests.sandbox import wait_until
from tests.support.command_line import COMMAND, MAIN, environment
from tests.support.fake_srun import make_srun
from tests.support.json_lines import START_US, header, ours, text, write_job
from tests.support.repository import PYTHON_DIR

# Together they take minutes: part of the long tests, so that `make test` stays within ten.
pytestmark = pytest.mark.long
# One without DuckDB, which can use that of the tests.
_SYSTEMS_PYTHON = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin")
LATE_US, STEP_US = 8_000, 200_000
COMMS = [f"0xb{at}" for at in range(8)]
# The first task that takes an item of a round dies.
DIES = """
import os
real = os.open
def open(path, *words, **more):
    fd = real(path, *words, **more)
    if str(path).endswith(".taken") and os.path.basename(path).startswith({round_!r}):
        try:
            real({died!r}, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return fd
        os._exit(9)
    return fd
os.open = open
"""
# Whoever takes the first item of a round dies, in each step.
ALWAYS_DIES = """
import os
real = os.open
def open(path, *words, **more):
    fd = real(path, *words, **more)
    if os.path.basename(str(path)) in [f"{round_}.step{{at}}.0.taken" for at in (0, 1)]:
        os._exit(9)
    return fd
os.open = open
"""
# A node without what is below a directory.
HIDES = """
import os
real = os.stat
def stat(path, *words, **more):
    if {hidden!r} in str(path):
        raise FileNotFoundError(2, "No such file or directory", path)
    return real(path, *words, **more)
os.stat = stat
"""
HIDDEN = {"shared": "/.nccl-inspector-analyze.", "capture": "/capture/"}
NODES = "n1", "n2", "n3"
OF_A_JOB = "import os\nos.environ['SLURM_JOB_ID'] = '12'\n"
SCONTROL = "#!/bin/sh\necho 'JobId=12 JobName=x JobState={state} NodeList=n1'\n"
# An srun whose tasks write for long.
SLOW_SRUN = """#!/bin/sh
work=$(printf '%s\\n' "$@" | grep '/.nccl-inspector-analyze')
echo $$ >{pid}.new && mv {pid}.new {pid}
i=0
while [ $i -lt 2000 ]; do i=$((i + 1)); : >"$work/$i"; sleep 0.01; done
"""


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Files of four ranks, one of them late; what is refused, and a member of another release."""
    folder, rng = tmp_path / "capture", random.Random(7)  # noqa: S311
    folder.mkdir()
    late = [[rng.randrange(400) + LATE_US * (rank == 2) for rank in range(4)] for _ in range(150)]
    times = [[100 + max(step) - step[rank] for step in late] for rank in range(4)]
    write_job(folder, times, STEP_US)
    plain = sorted(folder.glob("*.log"))
    for rank, path in enumerate(plain):  # a few operations of more communicators
        others = [
            ours(0, rank, 9000, START_US) | {"header": header(rank, comm=one)} for one in COMMS
        ]
        path.write_bytes(text(others) + path.read_bytes())
    (folder / f"{plain[3].name}.gz").write_bytes(gzip.compress(plain[3].read_bytes()))
    plain[3].unlink()
    with plain[1].open("ab") as file:
        file.write(b"x" * (300 << 10) + b"\n" + b"no record\n")
    first, *rest = plain[0].read_text().splitlines(keepends=True)
    newer = json.loads(first)
    newer["header"]["newer"] = 1
    plain[0].write_text(f"{json.dumps(newer)}\n{''.join(rest)}")
    (folder / "broken.log.gz").write_bytes(b"this is no gzip")
    return folder


def analyze(capture: Path, *words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["analyze", str(capture), "--json", *map(str, words)])


def said(result: Result) -> tuple[int, dict[str, Any]]:
    """What is reported, but for when."""
    return result.exit_code, json.loads(result.stdout) | {"generated_at": ""}


@pytest.mark.parametrize("part_bytes", [PART_BYTES_MIN, 5_000])
def test_tasks_say_what_one_process_says(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(pieces, "PART_BYTES_MIN", part_bytes)
    monkeypatch.setenv("PATH", str(make_srun(tmp_path)), prepend=":")
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "3", "--shared", tmp_path)
    assert "rank 2" in here.stdout
    for words in ("newer", "gzip_broken", "not_a_record"):
        assert words in here.stdout
    assert said(by_tasks) == said(here)
    assert not by_tasks.stderr
    assert not list(tmp_path.glob(".nccl-inspector-*")), "what the tasks shared is removed"


@pytest.mark.parametrize(
    ("round_", "left"),
    [
        ("read", "1 of 5 pieces not read by the step's 3 tasks"),
        ("look", "1 of 3 shares not joined by the step's 3 tasks"),
        pytest.param(
            "again",
            "1 of 3 shares not looked at again by the step's 3 tasks",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_a_task_that_died_had_taken_is_done_again(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_: str, left: str
) -> None:
    shim = DIES.format(died=str(tmp_path / "died"), round_=round_)
    monkeypatch.setenv("PATH", str(make_srun(tmp_path, ("n1", "n2", "n3"), shim)), prepend=":")
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "3", "--shared", tmp_path)
    assert said(by_tasks) == said(here)
    assert by_tasks.stderr == f"{left} (srun: exit status 9)\n"
    assert not list(tmp_path.glob(".nccl-inspector-*"))


def test_what_tasks_leave_that_die_again_and_again_is_done_here(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = ALWAYS_DIES.format(round_="read")
    monkeypatch.setenv("PATH", str(make_srun(tmp_path, NODES, shim)), prepend=":")
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "3", "--shared", tmp_path)
    assert said(by_tasks) == said(here)
    assert by_tasks.stderr.splitlines()[-1] == "piece 1 of 5 is read here"


@pytest.mark.parametrize("in_a_job", [False, True])
def test_without_any_task_that_begins_nothing_is_done_here(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_a_job: bool
) -> None:
    programs = make_srun(tmp_path)
    count = tmp_path / "steps"
    (programs / "srun").write_text(
        f"#!/bin/sh\necho >>{count}\necho 'srun: error: no partition' >&2\nexit 1\n"
    )
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if in_a_job:
        monkeypatch.setenv("SLURM_JOB_ID", "12")
    done = analyze(capture, "--slurm", "2", "--shared", tmp_path)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "none of the step's tasks did anything" in done.stderr
    assert "is read here" not in done.stderr
    assert len(count.read_text()) == 1 + in_a_job, "outside a job each step waits in the queue"
    assert not list(tmp_path.glob(".nccl-inspector-*"))


@pytest.mark.parametrize("what", list(HIDDEN))
@pytest.mark.parametrize("blind", [NODES[:1], NODES])
def test_nodes_that_do_not_see_a_directory_are_named_once(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    blind: tuple[str, ...],
) -> None:
    shim = HIDES.format(hidden=HIDDEN[what])
    monkeypatch.setenv("PATH", str(make_srun(tmp_path, blind, shim)), prepend=":")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "3", "--shared", tmp_path)
    unseen = {"shared": tmp_path, "capture": capture}[what]
    if blind == NODES:
        assert (by_tasks.exit_code, by_tasks.stdout) == (3, "")
        first, _, last = by_tasks.stderr.splitlines()
        assert first == f"n[1-3] do not see {unseen}"
        assert last.endswith("none of the step's tasks did anything, so nothing is reported")
    else:
        assert said(by_tasks) == said(here)
        assert by_tasks.stderr == f"n1 does not see {unseen}\n"
    assert not list(tmp_path.glob(".nccl-inspector-*"))


@pytest.mark.parametrize(
    ("state", "ends"),
    [("CANCELLED", True), ("TIMEOUT", True), ("COMPLETING", True), ("RUNNING", False)],
)
@pytest.mark.parametrize("round_", ["read", "look", "again"])
def test_nothing_is_done_for_a_job_that_is_gone(
    capture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    ends: bool,
    round_: str,
) -> None:
    shim = DIES.format(died=str(tmp_path / "died"), round_=round_)
    programs = make_srun(tmp_path, NODES, shim)
    (programs / "scontrol").write_text(SCONTROL.format(state=state))
    (programs / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(slurm_step, "_COMPLETES_S", 1)
    by_tasks = analyze(capture, "--slurm", "3", "--shared", tmp_path)
    assert (by_tasks.exit_code == 3) == ends
    assert ("job 12 has ended before the work was done" in by_tasks.stderr) == ends
    assert not list(tmp_path.glob(".nccl-inspector-*"))


@pytest.mark.parametrize(
    ("state", "ends"), [("CANCELLED", True), ("TIMEOUT", True), ("FAILED", False)]
)
def test_a_step_that_is_a_job_of_its_own_is_run_again_unless_somebody_ended_it(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, ends: bool
) -> None:
    shim = OF_A_JOB + DIES.format(died=str(tmp_path / "died"), round_="read")
    programs = make_srun(tmp_path, NODES, shim)
    (programs / "scontrol").write_text(SCONTROL.format(state=state))
    (programs / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    by_tasks = analyze(capture, "--slurm", "3", "--shared", tmp_path)
    assert (by_tasks.exit_code == 3) == ends
    assert ("job 12 has ended before the work was done" in by_tasks.stderr) == ends
    assert "is read here" not in by_tasks.stderr


def test_what_keeps_tasks_from_starting_is_one_line(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = analyze(capture, "--slurm", "2", "--shared", tmp_path / "none")
    assert found.exit_code == 3
    assert found.stderr.endswith("none: No such file or directory\n")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    found = analyze(capture, "--slurm", "2", "--shared", open_to_all)
    assert (found.exit_code, "take a directory of your own" in found.stderr) == (3, True)
    assert analyze(capture, "--slurm", "2").exit_code == 2
    monkeypatch.setenv("PATH", "/nonexistent")
    found = analyze(capture, "--slurm", "2", "--shared", tmp_path)
    assert found.exit_code == 3
    assert found.stderr.endswith("--slurm: there is no srun here\n")
    assert not list(tmp_path.glob(".nccl-inspector-*"))


def test_a_path_that_looks_like_a_partition_is_only_a_path(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / "rank=0" / "comm=7"
    odd.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(make_srun(tmp_path)), prepend=":")
    here, by_tasks = analyze(capture), analyze(capture, "--slurm", "2", "--shared", odd)
    assert said(by_tasks) == said(here)
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    assert said(analyze(capture)) == said(here)


@pytest.mark.skipif(_SYSTEMS_PYTHON is None, reason="the system's Python is another one")
def test_tasks_find_what_an_isolated_python_found_and_nothing_in_the_current_directory(
    capture: Path, tmp_path: Path
) -> None:
    """As the packages start it: by the system's Python with -I, and with paths of their own."""
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json.py", "secrets.py", "duckdb.py"):
        (here / name).write_text("raise SystemExit('taken from the current directory')\n")
    program = (
        f"import sys; sys.path[:0] = {[str(PYTHON_DIR), str(Path(duckdb.__file__).parents[1])]!r}; "
        f"{MAIN}"
    )
    done = subprocess.run(
        [
            str(_SYSTEMS_PYTHON), "-I", "-c", program, "analyze", str(capture), "--json",
            "--slurm", "2", "--shared", str(here),
        ],
        env={"PATH": f"{make_srun(tmp_path)}:/usr/bin:/bin"}, cwd=here, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    assert "rank 2" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_stops_it_leaves_no_task_and_no_file(
    capture: Path, tmp_path: Path, number: signal.Signals
) -> None:
    programs = make_srun(tmp_path)
    (programs / "srun").write_text(SLOW_SRUN.format(pid=tmp_path / "srun.pid"))
    words = ("analyze", str(capture), "--slurm", "2", "--shared", str(tmp_path))
    with subprocess.Popen(
        [*COMMAND, *words],
        env=environment() | {"PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_until(lambda: (tmp_path / "srun.pid").exists(), 30, "srun runs")
        process.send_signal(number)
        assert process.wait(30) != 0
    assert not list(tmp_path.glob(".nccl-inspector-*"))
    assert not Path(f"/proc/{(tmp_path / 'srun.pid').read_text().strip()}").exists()
