# SPDX-License-Identifier: Apache-2.0
"""Directories of jobs that have ended, as the epilog leaves them to the agent."""

import time
from pathlib import Path

from tests.support.boxes import MS, BoxOf, CommOf, KeyOf, make_job, names

BOX = BoxOf([CommOf(7, 0, 2, name="world")], [KeyOf(0, [5 * MS] * 20)])


def end_job(run_dir: Path, job: int = 42, age_s: int = 100, **words: object) -> Path:
    """Make an ended job's directory; return its raw directory."""
    return make_job(run_dir / "ended" / f"{job}.{int(time.time() - age_s)}000000000", job, **words)


def ended(run_dir: Path) -> list[str]:
    return names(run_dir / "ended")
