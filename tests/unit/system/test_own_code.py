# SPDX-License-Identifier: Apache-2.0
"""Another Python that runs our code runs nothing that lies in the current directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from nccl_inspector.system.own_code import words_to_run

NAMES = ("nccl_inspector", "sitecustomize", "usercustomize", "json", "re", "os", "duckdb")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A directory in which somebody has left modules that leave a file behind."""
    place = tmp_path / "here"
    place.mkdir()
    for name in NAMES:
        (place / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')")
    return place


@pytest.mark.parametrize("python_path", [None, ":/nowhere", ".", "/nowhere:"])
def test_a_task_of_analyze_imports_nothing_from_where_it_was_started(
    hostile: Path, python_path: str | None
) -> None:
    words = words_to_run(
        sys.executable, "nccl_inspector.capture.task", [str(hostile), "read", "step0"], sys.path
    )
    env = {"PATH": "/usr/bin:/bin"} | ({"PYTHONPATH": python_path} if python_path else {})
    done = subprocess.run(
        words, cwd=hostile, env=env, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert "No such file or directory" in done.stderr, "it came as far as the plan"
    assert not (hostile.parent / "ran").exists()


def test_a_python_of_the_users_own_finds_its_own_modules(tmp_path: Path) -> None:
    """As for NCCL, which comes with the user's PyTorch."""
    (tmp_path / "own.py").write_text("def main(words): print('own', *words)")
    (tmp_path / "nccl_inspector").mkdir()
    words = words_to_run(sys.executable, "own", ["word"])
    done = subprocess.run(
        words, cwd="/", env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "own word\n", done.stderr
