# SPDX-License-Identifier: Apache-2.0
"""Turn Slurm's texts for numbers, times, states and lists into values.

None means that the value is missing or cannot be understood.
"""

import re
from collections.abc import Sequence

from nccl_inspector.slurm.job_record import OVER
from nccl_inspector.system.printable import printable

Value = int | str | tuple[int, ...] | None
Facts = dict[str, Value]  # keys are fields of JobRecord; values that were not told are missing

_TEXT_CHARS = 4096
_WHOLE_MAX = 1 << 60
_NUMBER = re.compile("[0-9]{1,18}")
_EXIT = re.compile("([0-9]{1,5}):([0-9]{1,3})")
_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{2})")
_SWITCHES = re.compile(r"([0-9]{1,9})(?:@(\S+))?")
_GPUS = re.compile(r"gres/gpu(:[^=,]+)?=([0-9]{1,9})")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NOTHING = frozenset({"", "(null)", "None assigned", "N/A"})
_IDS_MAX = 1024


def number(text: str) -> int | None:
    """Return a whole number; None for Slurm's words such as Unknown, UNLIMITED, Partition_Limit."""
    return int(text) if _NUMBER.fullmatch(text) else None


def whole(value: object) -> int | None:
    """Return a number of Slurm's JSON, plain or as {set, infinite, number}; None: it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _WHOLE_MAX:
        return None
    return value


def plain(text: str) -> str:
    """Return a user's text, cut and with `?` for unprintable characters."""
    return printable(text[:_TEXT_CHARS])


def optional(text: str) -> str:
    """Return a text; empty if Slurm writes that there is none, such as (null)."""
    return "" if text in _NOTHING else plain(text)


def path(text: str) -> str | None:
    """Return an absolute path that is complete and has only printable characters, else None."""
    return text if text == plain(text) and text.startswith("/") else None


def moment(text: str) -> int | None:
    """Return a time of SLURM_TIME_FORMAT=%s; 0 means none."""
    return number(text) or None


def seconds(text: str) -> int | None:
    """Return the seconds of `1-02:03:04`, `02:03:04` or `03:04`."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, rest = (int(group or 0) for group in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def exit_facts(text: str) -> Facts:
    """Return exit code and signal from `3:0`."""
    match = _EXIT.fullmatch(text)
    return Facts(exit_code=int(match[1]), signal=int(match[2])) if match else Facts()


def state_word(text: str) -> str:
    """Return the state's first word: CANCELLED from `CANCELLED by 1000`."""
    return plain(text.split(" ", 1)[0].split("+", 1)[0])


def tres_facts(allocated: str, asked: str) -> Facts:
    """Return what the job was allocated, else what it asked for, and the GPUs in that."""
    text = optional(allocated) or optional(asked)
    if not text:
        return {}
    found = _GPUS.findall(text)
    every = [int(count) for kind, count in found if not kind]
    return {"tres": text, "gpus": every[0] if every else sum(int(count) for _, count in found)}


def switches_facts(text: str) -> Facts:
    """Return what --switches asks for, and for how long, from `1@00:05:00`."""
    match = _SWITCHES.fullmatch(text)
    if match is None:
        return {}
    wait = seconds(match[2]) if match[2] else None
    return Facts(switches=int(match[1])) | ({} if wait is None else {"switches_wait_s": wait})


def id_set(text: str) -> tuple[int, ...]:
    """Return job ids from `10-11,14`; none if the list is invalid or too long."""
    ids: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            return ()
        low, high = int(match[1]), int(match[2] or match[1])
        if not 0 <= high - low < _IDS_MAX - len(ids):
            return ()
        ids += range(low, high + 1)
    return tuple(ids)


def as_far_as_it_is(found: Facts, state: str, times: Sequence[int | None]) -> Facts:
    """Return the facts with the state and `times` (start, end), without what is not final.

    For a job that waits or runs, slurmctld gives the times that it expects, and meaningless exit
    codes.
    """
    over = state in OVER
    found["state"] = state or None
    found["start_s"] = times[0] if over or state in ("RUNNING", "COMPLETING", "SUSPENDED") else None
    found["end_s"] = times[1] if over or state == "COMPLETING" else None
    if not over:
        found |= {"exit_code": None, "signal": None}
    return {key: value for key, value in found.items() if value is not None}
