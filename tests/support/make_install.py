# SPDX-License-Identifier: Apache-2.0
"""`make install...` below a directory of a test."""

import fcntl
import os
import subprocess
from pathlib import Path

from tests.support.repository import REPO


def make(*words: str, stage: Path) -> str:
    """Run make in the repository; parts are put together below `stage`. Returns what it prints."""
    env = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    env |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    with (REPO / "Makefile").open() as lock:  # two sessions must not build at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["make", "--silent", f"STAGE={stage}", *words],
            cwd=REPO, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def files_below(root: Path) -> set[str]:
    """Return all that is below a directory and is not a directory itself."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
