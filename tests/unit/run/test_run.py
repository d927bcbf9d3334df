# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector run`: any job measured by its user, without root, hooks or agent."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nccl_inspector.commands.run import _report
from nccl_inspector.errors import InspectorError
from nccl_inspector.run import user_summaries
from nccl_inspector.run.launch import CommandEnd, run_command
from nccl_inspector.run.user_summaries import FoundBoxes, job_head, write_summaries
from tests.sandbox.lifetime import wait_until
from tests.support.boxes import MS, BoxOf, CommOf, KeyOf, write_box
from tests.support.command_line import COMMAND, MAIN, environment
from tests.support.repository import BUILD, PYTHON_DIR
from tests.support.standin import STANDIN
from tests.support.summaries import read_process

PROFILER = BUILD / "libnccl-profiler-inspector.so"
RANKS = 4
# What srun would do: the tasks of two nodes, each with its own variables.
LAUNCHER = f"""
pids=
for rank in 0 1 2 3; do
    SLURM_PROCID=$rank SLURM_NTASKS={RANKS} SLURM_LOCALID=$((rank % 2)) \\
    SLURM_NODEID=$((rank / 2)) SLURMD_NODENAME=n$((rank / 2 + 1)) SLURM_STEP_ID=0 {STANDIN} "$@" &
    pids="$pids $!"
done
for pid in $pids; do wait $pid || exit; done
"""
JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_PARTITION": "gpu"}


def started(cwd: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    """The command with what a job's script has in its environment."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "NCCL"))}
    return subprocess.Popen(
        [*COMMAND, "run", *words],
        cwd=cwd,
        env=inherited | JOB | {"PYTHONPATH": str(PYTHON_DIR)} | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(cwd: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    process = started(cwd, *words, **environ)
    out, err = process.communicate(timeout=90)
    return process.returncode, out, err


def test_a_job_that_its_user_measures_has_its_report(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(LAUNCHER)
    code, out, err = ran(
        tmp_path, "--profiler", str(PROFILER), "--html", "page.html", "--json", "card.json",
        "--output", "no/report", "--", "sh", "launch.sh", "--rendezvous", "meet", "--steps", "8",
        "--ops", "allreduce", "--sizes", "64K", "--comms", "world",
    )  # fmt: skip
    assert code == 0, err
    assert "nccl-inspector: no/report: No such file or directory" in err
    assert "nccl-inspector: the report is in page.html, card.json" in err
    assert json.loads((tmp_path / "card.json").read_text())["job"]["job_id"] == 4711
    assert "<h1>" in (tmp_path / "page.html").read_text()
    assert "NCCL JOB REPORT" not in out, "the command's own output stays its own"
    assert "job 4711" in err
    assert "VERDICT" in err
    directory = tmp_path / "nccl-inspector-4711"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in directory.iterdir()) == ["4711"], "the boxes are gone"
    assert len(list((directory / "4711").iterdir())) == 2, "a summary for each node"
    shown = subprocess.run(
        [*COMMAND, "report", "4711", "--report-dir", directory],
        env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "4 of 4 ranks" in shown.stdout


@pytest.mark.long
def test_the_report_knows_how_the_command_ended_without_slurms_record(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(LAUNCHER)
    script = 'sh launch.sh "$@"; exit 139'
    code, _, err = ran(
        tmp_path, "--profiler", str(PROFILER), "--", "sh", "-c", script, "sh", "--rendezvous",
        "meet", "--steps", "8", "--ops", "allreduce", "--sizes", "64K", "--comms", "world",
    )  # fmt: skip
    assert code == 139
    assert "FAILED (exit code 139:0)" in " ".join(err.split())
    assert "exit code 139, SIGSEGV: an invalid address" in " ".join(err.split())
    shown = subprocess.run(
        [*COMMAND, "report", "4711", "--report-dir", tmp_path / "nccl-inspector-4711"],
        env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "FAILED (exit code 139:0)" in " ".join(shown.stdout.split())
    assert shown.returncode == 1


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 120, in step
ValueError: too many values to unpack
"""


def test_the_report_says_what_the_command_wrote_into_a_file_before_it_failed(
    tmp_path: Path,
) -> None:
    """Without Slurm; what a command before it wrote into the same file is not its own."""
    (tmp_path / "launch.sh").write_text(LAUNCHER)
    (tmp_path / "traceback").write_text(TRACEBACK)
    out = tmp_path / "job.out"
    out.write_text(TRACEBACK.replace("ValueError", "KeyError"))
    words = (
        "--profiler", str(PROFILER), "--", "sh", "-c", 'sh launch.sh "$@"; cat traceback; exit 1',
        "sh", "--rendezvous", "meet", "--steps", "8", "--ops", "allreduce", "--sizes", "64K",
        "--comms", "world",
    )  # fmt: skip
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "NCCL"))}
    with out.open("a") as file:
        done = subprocess.run(
            [*COMMAND, "run", *words], cwd=tmp_path, stdout=file, stderr=subprocess.PIPE,
            env=inherited | {"PYTHONPATH": str(PYTHON_DIR)}, text=True, timeout=90, check=False,
        )  # fmt: skip
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert "the program raised an exception: ValueError: too many values to unpack" in said
    assert "KeyError" not in said
    assert f"--output {out}" in said


@pytest.mark.parametrize(
    ("script", "status", "state"),
    [("exit 0", 0, "COMPLETED"), ("exit 1", 1, "FAILED"), ("kill -KILL $$", 137, "FAILED")],
)
def test_the_end_of_a_command_is_told_in_slurms_words(script: str, status: int, state: str) -> None:
    end = run_command(["sh", "-c", script], os.environ)
    assert (end.status, end.state) == (status, state)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--profiler", "/nonexistent.so"), "no profiler plugin at /nonexistent.so"),
        (("--profiler", str(PROFILER), "--dir", "/proc/none"), "not measured: /proc/none"),
    ],
)
def test_the_command_is_run_whatever_happens(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    code, out, err = ran(tmp_path, *words, "--", "sh", "-c", "echo done; exit 7")
    assert (code, out) == (7, "done\n")
    assert why in err


def test_a_profiler_of_the_users_own_stays(tmp_path: Path) -> None:
    code, out, err = ran(
        tmp_path, "--profiler", str(PROFILER), "--", "sh", "-c", "echo $NCCL_PROFILER_PLUGIN",
        NCCL_PROFILER_PLUGIN="mine.so",
    )  # fmt: skip
    assert (code, out) == (0, "mine.so\n")
    assert "NCCL_PROFILER_PLUGIN is set already" in err


def test_a_command_without_nccl_is_said(tmp_path: Path) -> None:
    code, _, err = ran(tmp_path, "--profiler", str(PROFILER), "--", "true")
    assert code == 0
    assert "no process has used NCCL" in err


@pytest.mark.parametrize(("command", "code"), [("nonexistent-command", 127), ("/etc", 126)])
def test_a_command_that_cannot_be_run_has_a_shells_status(
    tmp_path: Path, command: str, code: int
) -> None:
    assert ran(tmp_path, "--profiler", str(PROFILER), "--", command)[0] == code


def test_a_command_that_a_signal_ends_has_a_shells_status(tmp_path: Path) -> None:
    words = ("--profiler", str(PROFILER), "--", "sh", "-c", "kill -KILL $$")
    assert ran(tmp_path, *words)[0] == 128 + signal.SIGKILL


def test_slurms_signals_reach_the_command(tmp_path: Path) -> None:
    script = "trap 'echo told; exit 3' USR1; : >ready; while :; do sleep 0.05; done"
    process = started(tmp_path, "--profiler", str(PROFILER), "--", "sh", "-c", script)
    wait_until((tmp_path / "ready").exists, 30, "the command did not start")
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (3, "told\n")


def test_a_signal_that_comes_while_the_command_starts_reaches_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    end = run_command(["sleep", "30"], os.environ)
    assert end == CommandEnd(128 + signal.SIGTERM, "", cancelled=True)
    assert end.state == "CANCELLED"


def test_a_second_run_in_a_job_has_a_directory_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        ran(tmp_path, "--profiler", str(PROFILER), "--", "true")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["nccl-inspector-4711", "nccl-inspector-4711.1"]


def test_what_is_ignored_stays_ignored_as_by_nohup(tmp_path: Path) -> None:
    """A job in the background that outlives its terminal does so when it is measured, too."""
    code = (
        "import os, signal, sys;"
        "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGHUP, signal.SIGINT)];"
        f"{MAIN}"
    )
    script = "kill -HUP $$; kill -INT $$; kill -HUP $PPID; echo alive"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--profiler", PROFILER, "--", "sh", "-c", script],
        cwd=tmp_path, env=environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("kind", ["link", "other's"])
def test_figures_go_into_no_directory_of_somebody_else(tmp_path: Path, kind: str) -> None:
    boxes, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    boxes.mkdir()
    elsewhere.mkdir()
    box = BoxOf([CommOf(7, 0, 2)], [KeyOf(0, [5 * MS] * 20)])
    process = read_process(write_box(tmp_path, "0_1", box))
    if kind == "link":
        (boxes / "4711").symlink_to(elsewhere)
    else:
        (boxes / "4711").mkdir()
        os.chown(boxes / "4711", 65534, 65534)
    found = FoundBoxes({"n1": [process]}, (), ())
    with pytest.raises(InspectorError, match="4711"):
        write_summaries(found, job_head({"SLURM_JOB_ID": "4711"}, 1_700_000_000), boxes)
    assert not [*elsewhere.iterdir(), *(boxes / "4711").iterdir()]


def test_the_command_for_the_report_again_can_be_copied_whatever_the_directory_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    place = tmp_path / "a b; touch x"
    place.mkdir()
    box = write_box(place, "0_1", BoxOf([CommOf(7, 0, 2)], [KeyOf(0, [5 * MS] * 20)]))
    os.chown(box, os.getuid(), -1)
    _report(place, 1_700_000_000, CommandEnd(0), {})
    again = capsys.readouterr().err.splitlines()[-1].partition("again: ")[2]
    assert shlex.split(again) == [
        "nccl-inspector", "report", "4711", "--report-dir", str(place)
    ]  # fmt: skip


def test_a_box_that_is_still_written_to_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a second run in the same directory: its figures would end here."""
    monkeypatch.setattr(user_summaries, "HELD_S", 0.0)
    box = write_box(tmp_path, "0_1", BoxOf([CommOf(7, 0, 2)], [KeyOf(0, [5 * MS] * 20)], state=1))
    os.chown(box, os.getuid(), -1)
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, box], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        holder.stdout.readline()
        found = user_summaries.read_boxes(tmp_path)
        holder.communicate()
    assert "still written to" in found.problems[0]
    write_summaries(found, job_head({"SLURM_JOB_ID": "4711"}, 1_700_000_000), tmp_path)
    assert box.exists()
    assert list((tmp_path / "4711").iterdir())
