# SPDX-License-Identifier: Apache-2.0
"""The files for Enroot, in containers of a stand-in and, where it is installed, of Enroot."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.enroot import HOOK, JOB, MARKER, Container
from tests.support.marks import as_root

pytestmark = as_root
IMAGE = "NCCL_PROFILER_PLUGIN=/opt/of/the/image.so\n"
VALUES = "env | grep -E 'NCCL|SLURM' | sort"
RAW = JOB["NCCL_INSPECTOR_RUN_DIR"]


@pytest.fixture(params=["stand-in", "enroot"])
def container(request: pytest.FixtureRequest) -> Iterator[Container]:
    if not os.access("/bin/busybox", os.X_OK):
        pytest.skip("no static busybox, of which the image is made")
    if request.param == "enroot" and shutil.which("enroot") is None:
        pytest.skip("Enroot is not installed")
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-enroot-") as place:
        one = Container(Path(place), request.param)
        if one.start("true", env={}, installed=False).returncode == 77:
            pytest.skip("cannot mount here")
        yield one


def output(container: Container, script: str, **words: object) -> list[str]:
    done = container.start(script, **words)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_measured_job_writes_into_its_directory_and_reads_the_rest(container: Container) -> None:
    script = (
        f"touch {RAW}/box && echo wrote; test -e $NCCL_PROFILER_PLUGIN && echo plugin;"
        "touch /usr/lib/nccl-inspector/x /run/nccl-inspector/control/x || echo refused"
    )
    assert output(container, script, env=JOB | MARKER) == ["wrote", "plugin", "refused"]


def test_the_jobs_variables_win_over_the_images(container: Container) -> None:
    (container.image / "etc" / "environment").write_text(IMAGE)
    found = output(container, VALUES, env=JOB | MARKER)
    assert found == sorted(f"{name}={value}" for name, value in (JOB | MARKER).items())


def test_what_the_user_tells_enroot_wins_over_the_jobs(container: Container) -> None:
    (container.image / "etc" / "environment").write_text(IMAGE)
    found = output(container, VALUES, env=JOB | MARKER, told="NCCL_PROFILER_PLUGIN=/my.so")
    assert "NCCL_PROFILER_PLUGIN=/my.so" in found


def test_under_pyxis_the_hook_leaves_the_rank_to_it(container: Container) -> None:
    found = output(container, VALUES, env=JOB | MARKER | {"PYXIS_RUNTIME_PATH": "/run/pyxis"})
    assert not [line for line in found if line.startswith("SLURM_")]


def test_a_container_of_a_job_that_is_not_measured_stays_as_it_is(container: Container) -> None:
    (container.image / "etc" / "environment").write_text(IMAGE)
    found = output(container, f"{VALUES}; ls -d {RAW} 2>&1 | grep -c such", env=JOB)
    assert found == [IMAGE.strip(), "1"]


@pytest.mark.parametrize("env", [{}, JOB | MARKER])
def test_where_nothing_is_installed_the_container_starts(
    container: Container, env: dict[str, str]
) -> None:
    script = "ls -d /usr/lib/nccl-inspector /run/nccl-inspector 2>&1 | grep -c such"
    assert output(container, script, env=env, installed=False) == ["2"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/a b/jobs/77/raw", marks=pytest.mark.long),
        "/a\n/jobs/77/raw",
        pytest.param("/jobs/78/raw", marks=pytest.mark.long),
        pytest.param("", marks=pytest.mark.long),
    ],
)
def test_a_directory_that_is_not_the_jobs_does_no_harm(container: Container, path: str) -> None:
    env = JOB | MARKER | {"NCCL_INSPECTOR_RUN_DIR": path}
    assert output(container, f"ls -d {RAW} 2>&1 | grep -c such", env=env) == ["1"]


def test_a_hook_that_fails_would_stop_the_container(container: Container) -> None:
    """The enemy of the hook's promise: without its trap, this is what a job would get."""
    (container.place / "etc" / HOOK).write_text("#!/bin/sh\nexit 1\n")
    assert container.start("true", env=JOB | MARKER).returncode != 0
