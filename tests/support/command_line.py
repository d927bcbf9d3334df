# SPDX-License-Identifier: Apache-2.0
"""The command nccl-inspector as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import click

from tests.support.repository import PYTHON_DIR

# For a Python that job users can run: that of the tests may lie where they cannot go.
USERS_PATHS = f"{PYTHON_DIR}:{Path(click.__file__).parents[1]}"
MAIN = "from nccl_inspector.cli import main; main()"
COMMAND = (sys.executable, "-c", MAIN)


def environment() -> dict[str, str]:
    """Ours, in which a child finds the product."""
    return os.environ | {"PYTHONPATH": str(PYTHON_DIR)}


def run(*words: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [*COMMAND, *words], capture_output=True, text=True, **{"env": environment()} | kwargs
    )
