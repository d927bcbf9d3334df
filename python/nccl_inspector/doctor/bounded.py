# SPDX-License-Identifier: Apache-2.0
"""Run readers side by side, each in a child process that is left behind if it hangs."""

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nccl_inspector.doctor.facts import CannotTell, CannotTellError
from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.system.limited import LateError, Limits, run_limited
from nccl_inspector.system.printable import printable

READER_S = 12.0  # longer than a command of Slurm may take
_ANSWER_BYTES_MAX = 16 << 20
_FILE_BYTES_MAX = 1 << 20  # what a check writes to see whether it may

Reader = Callable[[], Any]


def _attempt(work: Reader) -> Any:
    try:
        return work()
    except OSError as err:
        where = f"{err.filename}: " if err.filename else ""
        return CannotTell(printable(f"{where}{err.strerror or err}"))
    except (CannotTellError, InspectorError) as err:
        return CannotTell(printable(str(err)))


def _in_child(work: Reader) -> bytes:
    return pickle.dumps(_attempt(work), pickle.HIGHEST_PROTOCOL)


def _taken(answer: bytes | RefusedError, seconds: float) -> Any:
    if isinstance(answer, LateError):
        return CannotTell(f"no answer in {seconds:g} s")
    if isinstance(answer, RefusedError) or len(answer) > _ANSWER_BYTES_MAX:
        return CannotTell("its reader failed")
    return pickle.loads(answer)  # noqa: S301 - our own child's


def gather(readers: Mapping[str, Reader], seconds: float = READER_S) -> dict[str, Any]:
    """Return what each reader returns, or a CannotTell if it failed or gave no answer in time."""
    works = [partial(_in_child, one) for one in readers.values()]
    names = list(readers)
    answers = run_limited(
        works, Limits(wall_s=seconds, file_bytes=_FILE_BYTES_MAX), at_once=len(works)
    )
    return {names[number]: _taken(answer, seconds) for number, answer in answers}
