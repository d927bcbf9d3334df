# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin around a job, as slurmd calls it on a node: what it runs, and what it says."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.hook_scripts import EPILOG, JOB, PROLOG
from tests.support.repository import PACKAGING, REPO
from tests.support.spank_host import Host

STUB = PACKAGING / "nccl-inspector-hook"
KINDS = ("prolog", "epilog")


def script(folder: Path, kind: str, text: str) -> Path:
    """One of the hooks, below the directory that the setting `hooks` names."""
    path = folder / kind / "50-nccl-inspector.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    path.chmod(0o755)
    return path


def around_job(folder: Path, kind: str, *args: str, conf: str = "/nonexistent") -> Host:
    """What slurmd's callback does; it must succeed whatever that is."""
    words = f"--word=conf={conf}", f"--word=hooks={folder}", "--job=42"
    host = Host(f"--context={kind}", *words, *args, environ=dict(JOB))
    assert host.lines[-1] == f"slurm_spank_job_{kind} -> 0"
    return host


@pytest.mark.parametrize("kind", KINDS)
def test_each_callback_runs_its_script_and_says_nothing(tmp_path: Path, kind: str) -> None:
    for each in KINDS:
        script(tmp_path, each, f"echo $SLURM_JOB_ID >>{tmp_path}/ran-{each}; echo said; echo x >&2")
    assert around_job(tmp_path, kind).lines == [f"slurm_spank_job_{kind} -> 0"]
    assert [path.name for path in tmp_path.glob("ran-*")] == [f"ran-{kind}"]
    assert (tmp_path / f"ran-{kind}").read_text() == "42\n"


def test_a_script_that_is_not_there_is_no_news(tmp_path: Path) -> None:
    host = around_job(tmp_path, "prolog")
    assert host.messages == []
    assert len(host.starting("debug: ")) == 1


def test_a_script_that_fails_is_one_line(tmp_path: Path) -> None:
    script(tmp_path, "prolog", "exit 1")
    (line,) = around_job(tmp_path, "prolog").messages
    assert line == "nccl-inspector: job 42: the prolog hook ended with wait status 0x100"


def test_a_script_that_cannot_be_run_is_one_line(tmp_path: Path) -> None:
    path = script(tmp_path, "epilog", "")
    path.chmod(0o644)
    (line,) = around_job(tmp_path, "epilog").messages
    assert line == f"nccl-inspector: job 42: cannot run {path}: Permission denied"


def test_a_broken_configuration_does_not_keep_the_epilog_away(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.write_text("speed = 9\n")
    host = around_job(tmp_path, "epilog", conf=str(conf))
    (line,) = host.starting("debug: ")
    assert line.endswith("there is no /usr/lib/nccl-inspector/epilog/50-nccl-inspector.sh")


def test_the_scripts_get_every_variable_that_they_read_and_no_other() -> None:
    """One is for tests that run a script themselves: slurmd's must not heed it."""
    own = {"NCCL_INSPECTOR_TEST_RUN_DIR", "EPOCHREALTIME"}
    text = PROLOG.read_text(encoding="ascii") + EPILOG.read_text(encoding="ascii")
    read = set(re.findall(r"\$\{?([A-Z][A-Z_]+)", text)) - own
    table = (REPO / "spank" / "hooks.c").read_text(encoding="ascii")
    given = table.partition("hooks_variables[] = {")[2].partition("NULL")[0]
    assert set(re.findall(r'"(\w+)"', given)) == read


# The stub, for sites that name a script in slurm.conf.


def stub(folder: Path) -> list[str]:
    """The stub that calls the scripts in this folder."""
    text = STUB.read_text(encoding="ascii")
    assert text.count("=/usr/lib/nccl-inspector/") == 1
    copy = folder / "stub"
    copy.write_text(text.replace("=/usr/lib/nccl-inspector/", f"={folder}/"), encoding="ascii")
    return ["/bin/sh", str(copy)]


def run_stub(folder: Path, kind: str) -> float:
    """Run it as slurmd does; it must succeed and be silent. How long it took, in seconds."""
    begun = time.monotonic()
    env = {**JOB, "SLURM_SCRIPT_CONTEXT": f"{kind}_slurmd"}
    done = subprocess.run(stub(folder), env=env, capture_output=True, timeout=15, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    return time.monotonic() - begun


def test_the_stub_passes_shellcheck() -> None:
    assert os.access(STUB, os.X_OK)
    done = subprocess.run(
        ["shellcheck", "-S", "style", STUB], capture_output=True, text=True, check=False
    )
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("kind", KINDS)
def test_the_stub_runs_the_script_of_its_context(tmp_path: Path, kind: str) -> None:
    run_stub(tmp_path, kind)
    for each in KINDS:
        script(tmp_path, each, f": >{tmp_path}/ran-{each}")
    run_stub(tmp_path, kind)
    assert [path.name for path in tmp_path.glob("ran-*")] == [f"ran-{kind}"]
    script(tmp_path, kind, "exit 3")
    run_stub(tmp_path, kind)
    script(tmp_path, kind, "kill -9 $$").chmod(0o644)
    run_stub(tmp_path, kind)


@pytest.mark.long
def test_the_stub_ends_a_script_that_hangs(tmp_path: Path) -> None:
    script(tmp_path, "prolog", "trap '' TERM; while :; do sleep 1; done")
    assert 4 < run_stub(tmp_path, "prolog") < 10
