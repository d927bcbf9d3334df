# SPDX-License-Identifier: Apache-2.0
"""The command `nccl-inspector doctor`: its forms and its exit statuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.commands.doctor import doctor
from nccl_inspector.doctor.registry import CHECKS
from nccl_inspector.errors import InspectorError
from tests.support.command_line import environment


def run(*words: str, **env: str) -> Result:
    return CliRunner().invoke(doctor, list(words), env=env, catch_exceptions=False)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A site whose scontrol does not exist."""
    path = tmp_path / "x.conf"
    path.write_text(f"run_dir = {tmp_path}/run\nscontrol = {tmp_path}/scontrol\n")
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["--job", "1", "--image", "/"],
        ["--job", "1", "--role", "node"],
        ["--job", "1", "--prometheus", "http://x"],
        ["--skip", "colour"],
        ["--job", "x"],
        ["--job", "1_2"],
        ["--job"],
        ["--role", "colour"],
        ["--image", "/nonexistent"],
    ],
)
def test_a_wrong_use_has_exit_status_2(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert run(*words).exit_code == 2


def test_a_host_without_anything_is_told_without_a_traceback(conf: Path) -> None:
    done = run("--conf", str(conf), "--role", "node", "--role", "controller")
    assert done.exit_code == 1
    text = " ".join(done.stdout.split())
    assert "run-dir-missing: " in text
    assert "cannot tell: " in text
    assert "Traceback" not in text


def test_inside_a_job_its_number_comes_from_the_environment(conf: Path) -> None:
    done = run("--conf", str(conf), "--job", "--json", SLURM_JOB_ID="999999001")
    assert done.exit_code == 1
    evidence = {one["id"]: one["evidence"] for one in json.loads(done.stdout)["checks"]}
    folder = f"{conf.parent}/run/jobs/999999001"
    assert evidence["job-directory"] == f"{folder}: No such file or directory"


def test_the_json_has_every_check_that_fits(conf: Path) -> None:
    done = run("--conf", str(conf), "--job", "999999001", "--json")
    found = json.loads(done.stdout)
    assert found["roles"] == ["job"]
    assert not found["well"]
    assert found["job"] == {"job_id": 999_999_001, "processes": [], "boxes": []}
    wanted = [one.id for one in CHECKS if "job" in one.roles]
    assert [one["id"] for one in found["checks"]] == wanted


def test_a_configuration_that_is_refused_is_found_and_ends_nothing(conf: Path) -> None:
    conf.write_text("colour = red\n")
    done = run("--conf", str(conf), "--role", "submit")
    assert done.exit_code == 1
    assert "settings-refused: " in " ".join(done.stdout.split())


def test_a_check_that_is_skipped_is_neither_told_nor_counted(conf: Path) -> None:
    words = "--conf", str(conf), "--role", "submit", "--json"
    found = {one["id"] for one in json.loads(run(*words).stdout)["checks"]}
    skipped = [word for name in found for word in ("--skip", name)]
    done = run(*words, *skipped)
    assert (done.exit_code, json.loads(done.stdout)["checks"]) == (0, [])
    one_left = [word for name in found - {"plugstack-line"} for word in ("--skip", name)]
    assert len(json.loads(run(*words, *one_left).stdout)["checks"]) == 1


def test_all_checks_can_be_listed() -> None:
    done = run("--list")
    assert done.exit_code == 0
    assert all(f"{one.id} (" in done.stdout for one in CHECKS)


def test_the_archive_is_written_once_and_named(conf: Path) -> None:
    bundle = conf.parent / "b.tar.gz"
    words = "--conf", str(conf), "--job", "999999001", "--bundle", str(bundle)
    done = run(*words)
    assert bundle.exists()
    assert f"{bundle} has README.txt" in done.stderr
    with pytest.raises(InspectorError, match="File exists"):
        run(*words)


def test_the_agent_does_not_load_the_doctor() -> None:
    code = (
        "import sys, nccl_inspector.agent.service\n"
        "assert not [name for name in sys.modules if '.doctor' in name]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
