# SPDX-License-Identifier: Apache-2.0
"""Let a job tell its throughput in a unit of its own; only the last value counts.

In a training loop, on any rank (each node shows its own; that of rank 0 is enough):

    from nccl_inspector import mark
    mark(314.0, "TFLOP/s/GPU")

The value is one small file in the job's `raw/`. This module needs only Python's standard library,
so that it can also be copied into a container.
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path

UNITS = (
    "TFLOP/s/GPU", "TFLOP/s", "tokens/s/GPU", "tokens/s", "samples/s/GPU", "samples/s",
    "images/s", "steps/s", "MFU",
)  # fmt: skip
MARK_FILE = "nccl_inspector_mark"
THROUGHPUT_MAX = 1e15
RUN_DIR = "/run/nccl-inspector"


class MarkError(ValueError):
    """A value that cannot be marked, or no place to write it to; the text is one line."""


def mark(throughput: float, unit: str = "TFLOP/s/GPU") -> bool:
    """Tell the job's throughput; return False if that was not possible.

    It never raises, because a figure must not end a training. It takes well below a millisecond: it
    writes a file on a tmpfs. `throughput` must be a number, not a tensor: reading a tensor's value
    would wait for the GPU.
    """
    try:
        write_mark(throughput, unit, mark_dir(os.environ))
    except (MarkError, OSError):
        return False
    return True


def mark_dir(environ: Mapping[str, str], run_dir: str = RUN_DIR) -> Path:
    """Return the directory for the job's files.

    Raises:
        MarkError: the process is not in a job.
    """
    told = environ.get("NCCL_INSPECTOR_RUN_DIR", "")
    if told.startswith("/"):
        return Path(told)
    job = environ.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdecimal()):
        raise MarkError("not inside a Slurm job: there is no SLURM_JOB_ID")
    return Path(run_dir, "jobs", job, "raw")


def check_mark(throughput: object, unit: object) -> float:
    """Return the throughput as a float.

    Raises:
        MarkError: it is not a number from 0 to THROUGHPUT_MAX, or the unit is unknown.
    """
    if unit not in UNITS:
        raise MarkError(f"unknown unit {str(unit)[:40]!r}; known: {', '.join(UNITS)}")
    if isinstance(throughput, bool) or not isinstance(throughput, Real):
        raise MarkError("the throughput is not a number")
    try:
        number = float(throughput)
    except OverflowError:
        number = math.inf
    if not 0 <= number <= THROUGHPUT_MAX:
        raise MarkError(f"the throughput is not between 0 and {THROUGHPUT_MAX:g}")
    return number


def write_mark(throughput: object, unit: object, directory: Path) -> None:
    """Write a file beside the mark, then rename it.

    Raises:
        MarkError: the throughput or the unit is not valid.
        OSError: the directory does not exist or cannot be written.
    """
    text = f"throughput={check_mark(throughput, unit)!r}\nunit={unit}\nend\n"
    beside = directory / f".{MARK_FILE}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(beside, flags, 0o600)
    try:
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
        beside.rename(directory / MARK_FILE)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise
