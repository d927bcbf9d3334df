# SPDX-License-Identifier: Apache-2.0
"""The command nccl-inspector as a process of its own."""

import os
import subprocess
import sys

from tests.support.repository import PYTHON_DIR


def run(*words: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    code = "from nccl_inspector.cli import main; main()"
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(PYTHON_DIR)},
        **kwargs,
    )
