# SPDX-License-Identifier: Apache-2.0
"""One thing that NCCL or PyTorch wrote, whatever way it came.

Today it comes as a line of text (`lines.py`). NCCL's log plugin will bring the same as fields.
"""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How NCCL marks a line; PyTorch's own lines have a level of their own here.

    RCCL and NCCLX have an ERROR more, which comes before WARN. So a level is told by its word, and
    never by its number.
    """

    ERROR = "ERROR"
    WARN = "WARN"
    ATTN = "ATTN"
    DIAG = "DIAG"
    INFO = "INFO"
    TORCH = "PyTorch"
    JOB = "job"  # any other line of a job's output


# What is written even if nobody asked for details.
LOUD = frozenset({Level.ERROR, Level.WARN, Level.ATTN})


@dataclass(frozen=True, slots=True)
class Record:
    """What a process wrote; a text that is not known is empty, a number None.

    `time_s`: seconds since 1970 by the clock of the process's host, in its own time zone. Such
    times can be compared with each other, not with Unix times. `rank` is only what the line says.
    """

    level: Level
    message: bytes
    time_s: float | None = None
    host: str = ""
    pid: int | None = None
    rank: int | None = None
    subsystem: str = ""
    site: str = ""  # file:line of NCCL's source
    code: int | None = None  # NCCL's result
    cut: bool = False  # NCCL cut the line, so its end is not known
