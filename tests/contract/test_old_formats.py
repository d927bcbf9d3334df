# SPDX-License-Identifier: Apache-2.0
"""Nodes and controller of different releases: what is read, and what is said of the rest."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.codec import FORMAT, OLDEST, VERSION
from tests.support.old_formats import COMMITS, folder_of
from tests.support.repository import REPO
from tests.support.summaries import eight_ranks, text_of, write_summary

JOB = 42


def report_of(reports: Path) -> str:
    loaded = load_summaries(JOB, reports, None)
    return " ".join(render_text(build_card(loaded), everything=True).split())


def of_another_release(path: Path, version: int) -> None:
    """Make a summary look like that of another release."""
    data = path.read_bytes()
    assert data.count(FORMAT.encode()) == 1
    path.write_bytes(
        data.replace(FORMAT.encode(), f"{FORMAT.rpartition('/')[0]}/{version}".encode())
    )


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A report directory with the job as this release writes it."""
    for summary in eight_ranks(sampled=False):
        write_summary(tmp_path / str(JOB), summary)
    return tmp_path


def test_every_format_that_is_read_is_stored() -> None:
    stored = {int(path.name.rpartition("-")[2]) for path in folder_of(VERSION).parent.glob("*-*")}
    assert stored == set(range(OLDEST, VERSION + 1))
    assert COMMITS.keys() == stored - {VERSION}


@pytest.mark.parametrize("version", range(OLDEST, VERSION + 1))
def test_the_report_of_an_earlier_format_is_the_same(version: int, tmp_path: Path) -> None:
    shutil.copytree(folder_of(version), tmp_path / str(JOB))
    wanted = text_of(eight_ranks(sampled=False), everything=True)
    assert report_of(tmp_path) == " ".join(wanted.split())


def test_a_job_over_nodes_of_two_releases_has_one_report(reports: Path) -> None:
    wanted = report_of(reports)
    for name in ("n1.0.nodesummary", "n3.0.nodesummary"):
        shutil.copy(folder_of(OLDEST) / name, reports / str(JOB))
    assert report_of(reports) == wanted


def test_what_a_later_release_wrote_is_named_and_the_rest_is_reported(reports: Path) -> None:
    of_another_release(reports / str(JOB) / "n4.0.nodesummary", VERSION + 1)
    text = report_of(reports)
    assert (
        "n4: its summary cannot be read: bad_summary: a later release wrote it "
        f"(format {VERSION + 1}; this one reads {OLDEST} to {VERSION})"
    ) in text
    assert "6 ranks" in text


def test_a_job_of_a_later_release_alone_has_no_report_and_says_why(reports: Path) -> None:
    for path in (reports / str(JOB)).iterdir():
        of_another_release(path, VERSION + 1)
    with pytest.raises(InspectorError, match="a later release wrote it"):
        load_summaries(JOB, reports, None)


@pytest.fixture
def earlier_release(tmp_path: Path) -> Path:
    """The code that wrote the oldest format that is read."""
    done = subprocess.run(
        ["git", "-C", REPO, "archive", COMMITS[OLDEST], "python"], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("the history of this checkout does not go back that far")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=done.stdout, check=True)
    return tmp_path / "python"


def run_earlier(code: Path, reports: Path) -> tuple[int, str]:
    conf = reports / "conf"
    conf.write_text(f"report_dir = {reports}\nscontrol = /bin/false\n")
    start = f"import sys; sys.path.insert(0, {str(code)!r}); from nccl_inspector.cli import main"
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{start}; main()", "report", str(JOB), "--conf", str(conf)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.long
def test_the_release_before_says_what_it_cannot_read(earlier_release: Path, reports: Path) -> None:
    status, text = run_earlier(earlier_release, reports)
    assert status != 0
    assert "a later release wrote it (format 12; this one reads 10 to 11)" in text
    assert "Traceback" not in text
    for name in ("n1.0.nodesummary", "n2.0.nodesummary"):
        shutil.copy(folder_of(OLDEST) / name, reports / str(JOB))
    _, text = run_earlier(earlier_release, reports)  # the status is the verdict's
    assert text.startswith("NCCL JOB REPORT")
    assert "n3: its summary cannot be read" in text
    assert "4 ranks" in text
