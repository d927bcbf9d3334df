# SPDX-License-Identifier: Apache-2.0
"""A job tells how fast it is, in its own unit: one small file in its `raw/`, the last one counts.

In a training loop, on any rank (each node shows its own; that of rank 0 is enough):

    from nccl_inspector import mark
    mark(314.0, "TFLOP/s/GPU")

This file needs nothing but Python's own library, so that it may also be copied into a container.
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
    """What cannot be marked, or where nothing can; one line."""


def mark(throughput: float, unit: str = "TFLOP/s/GPU") -> bool:
    """Tell the job's throughput; False when it could not be told, and nothing else happens.

    It never raises, because training must not end for a figure, and takes well below a
    millisecond: a file on a tmpfs. `throughput`: a number, not a tensor, whose value would
    have to be waited for.
    """
    try:
        write_mark(throughput, unit, mark_dir(os.environ))
    except (MarkError, OSError):
        return False
    return True


def mark_dir(environ: Mapping[str, str], run_dir: str = RUN_DIR) -> Path:
    """Return where the job's files are.

    Raises:
        MarkError: this is no job.
    """
    told = environ.get("NCCL_INSPECTOR_RUN_DIR", "")
    if told.startswith("/"):
        return Path(told)
    job = environ.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdecimal()):
        raise MarkError("not inside a Slurm job: there is no SLURM_JOB_ID")
    return Path(run_dir, "jobs", job, "raw")


def check_mark(throughput: object, unit: object) -> float:
    """Return the number.

    Raises:
        MarkError: it is none that can be published, or the unit is unknown.
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
    """Write the file beside itself, then rename.

    Raises:
        MarkError: bad input.
        OSError: the directory is not there, or takes nothing.
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
