# SPDX-License-Identifier: Apache-2.0
"""C test programs, and what libraries export and need."""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.repository import REPO

SOURCES = sorted((REPO / "tests" / "native" / "unit").glob("test_*.c"))


def run_tap(
    command: list[str | Path],
    again_after: int | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run a test program and see that it went through its whole plan without a failure.

    `again_after`: a return code that may come once.
    """
    env = {**os.environ, **variables}
    for _ in range(2):
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=60, check=False
        )
        if done.returncode != again_after:
            break
    failed = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
    plan = re.search(r"^1\.\.(\d+)$", done.stdout, re.MULTILINE)
    assert plan, f"{command} did not finish:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert int(plan[1]) > 0
    assert not failed, "\n".join([*failed, done.stderr[-4000:]])
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stderr[-4000:]}"


def exported(library: Path) -> set[str]:
    """The names that a library gives to others."""
    done = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=posix", library],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {line.split()[0] for line in done.stdout.splitlines()}


def needed_glibc(library: Path) -> dict[str, tuple[int, ...]]:
    """Version of each of glibc's functions that a library was linked with, of any machine."""
    done = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True
    )
    return {
        name: tuple(map(int, version.split(".")))
        for name, version in re.findall(r" (\w+)@+GLIBC_([0-9.]+)", done.stdout)
    }
