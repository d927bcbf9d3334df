# SPDX-License-Identifier: Apache-2.0
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from nccl_inspector import __version__
from nccl_inspector.cli import GROUPS, cli
from nccl_inspector.render.comment import make_comment
from tests.support import example_cards
from tests.support.command_line import environment, run
from tests.support.fake_slurm import Slurm
from tests.support.recorded_slurm import load
from tests.support.summaries import eight_ranks, write_summary


@pytest.mark.parametrize("job", ["0", "-1", "x", "../etc", "1_02"])
def test_a_job_id_that_is_none_is_refused(job: str) -> None:
    assert run("report", "--", job).returncode == 2


def test_an_unknown_job_is_one_line_and_no_exit_status_that_judges_it(tmp_path: Path) -> None:
    done = run("report", "7", "--report-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"nccl-inspector: no report of job 7: nothing of it is in {tmp_path}; if it was to be "
        "measured, nccl-inspector doctor --job 7 on its nodes says why it was not, while it runs\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_report_that_may_not_be_read_says_so(open_path: Path) -> None:
    (open_path / "7").mkdir(mode=0o700)
    code = "import os, sys; from pathlib import Path\n"
    code += "from nccl_inspector.summary.attempts import load_summaries as load\n"
    code += "os.setuid(65534); load(7, Path(sys.argv[1]), None)"
    told = subprocess.run(
        [sys.executable, "-c", code, open_path],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert "the report of job 7 cannot be read" in told.stderr
    assert "Permission denied" in told.stderr


def test_a_broken_configuration_is_one_line_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "x.conf").write_text("colour = red\n")
    done = run("agent", "--once", "--conf", str(tmp_path / "x.conf"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"nccl-inspector: {tmp_path}/x.conf:1: unknown key 'colour'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", [name for group in GROUPS.values() for name in group])
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    summary = {name: summary for group in GROUPS.values() for name, (_, summary) in group.items()}
    assert summary[name] == command.get_short_help_str(1000)


def test_help_imports_no_command() -> None:
    code = (
        "import sys; from nccl_inspector.cli import cli; cli(['--help'], standalone_mode=False);"
        "print([one for one in sys.modules if one.startswith('nccl_inspector.commands')])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert told.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reprot", "7"], "Did you mean 'report'?"),
        (["frobnicate"], "No such command 'frobnicate'."),
        (["report", "4711.0"], "not a job id: it is a step; give the job, 4711"),
        (["explain", "stragler"], "there is no such finding; did you mean straggler?"),
        (["explain", "qqq"], "there is no such finding; nccl-inspector explain lists all"),
    ],
)
def test_what_was_probably_meant_is_said(words: list[str], says: str) -> None:
    done = run(*words)
    assert done.returncode != 0
    assert says in done.stderr


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"nccl-inspector, version {__version__}\n"


def test_the_help_shows_every_command_once_in_the_group_of_those_who_need_it() -> None:
    text = run("--help").stdout
    found = re.findall(r"^  ([a-z]+) {2,}\S", text[text.index("For users:") :], re.M)
    assert found == [name for group in GROUPS.values() for name in group]
    assert len(found) == len(set(found)) > 15
    titles = re.findall(r"^(\w.*):$", text, re.M)
    assert titles == ["Options", *GROUPS]


def test_no_summary_in_the_help_is_cut() -> None:
    text = " ".join(run("--help").stdout.partition("For users:")[2].split())
    assert "..." not in text
    assert "Judge an ended job: who was slow, since when, why, and what to do" in text


def test_the_report_of_a_job_is_printed(tmp_path: Path) -> None:
    for summary in eight_ranks():
        write_summary(tmp_path / "42", summary)
    done = run("report", "42", "--report-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "rank 5 (n3 GPU1) is late by" in done.stdout
    for word in ("--json", "--html=-"):
        form = run("report", "42", "--report-dir", str(tmp_path), word)
        assert (form.returncode, form.stderr) == (1, "")
        assert form.stdout != done.stdout


def test_what_becomes_of_the_agent_needs_nothing_of_the_report() -> None:
    code = "import sys, nccl_inspector.cli\nprint(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=environment(),
    )  # fmt: skip
    for name in ("numpy", "jinja2", "sqlite3", "nccl_inspector.report.assemble"):
        assert f"'{name}'" not in done.stdout


def test_show_asks_slurm_for_a_jobs_comment(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path)
    slurm.says("scontrol", "finished")
    said, job_id = tmp_path / "scontrol.said", load("22.05").ids["finished"]
    (tmp_path / "x.conf").write_text(f"scontrol = {tmp_path}/scontrol\n")
    words = ("show", "--conf", str(tmp_path / "x.conf"), str(job_id))
    done = run(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"nccl-inspector: Slurm has no AdminComment of job {job_id}\n"
    line = make_comment(example_cards.straggler())
    said.write_text(said.read_text().replace(" Comment=", f" AdminComment={line} Comment="))
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("DEGRADED (straggler), medium confidence")
    slurm.put("scontrol", "echo slurm 22.05.8; [ $1 = --version ] || exit 1")
    assert f"nccl-inspector: job {job_id}: " in run(*words).stderr
