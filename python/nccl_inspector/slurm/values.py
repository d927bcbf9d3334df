# SPDX-License-Identifier: Apache-2.0
"""Slurm's spellings of numbers, times, states and lists, as values (pure).

None is for what is not there, and for what is not to be understood.
"""

import re
from collections.abc import Sequence

from nccl_inspector.slurm.job_record import OVER
from nccl_inspector.system.printable import printable

Value = int | str | tuple[int, ...] | None
Facts = dict[str, Value]  # by names of JobRecord's fields; without what was not said

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
    """A whole number; None for Slurm's words for none (Unknown, UNLIMITED, Partition_Limit)."""
    return int(text) if _NUMBER.fullmatch(text) else None


def whole(value: object) -> int | None:
    """A number of JSON's, plain or as {set, infinite, number}; None when it is none."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _WHOLE_MAX:
        return None
    return value


def plain(text: str) -> str:
    """A user's text, so that it can be printed."""
    return printable(text[:_TEXT_CHARS])


def optional(text: str) -> str:
    """A text that Slurm writes as (null) when there is none."""
    return "" if text in _NOTHING else plain(text)


def path(text: str) -> str | None:
    """A path that can be looked at: whole, absolute and without odd characters."""
    return text if text == plain(text) and text.startswith("/") else None


def moment(text: str) -> int | None:
    """A time of SLURM_TIME_FORMAT=%s; 0 is none."""
    return number(text) or None


def seconds(text: str) -> int | None:
    """`1-02:03:04`, `02:03:04` or `03:04`, in seconds."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, rest = (int(group or 0) for group in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


def exit_facts(text: str) -> Facts:
    """`3:0`: exit code and signal."""
    match = _EXIT.fullmatch(text)
    return Facts(exit_code=int(match[1]), signal=int(match[2])) if match else Facts()


def state_word(text: str) -> str:
    """CANCELLED of `CANCELLED by 1000`."""
    return plain(text.split(" ", 1)[0].split("+", 1)[0])


def tres_facts(allocated: str, asked: str) -> Facts:
    """What the job has, else what it asks for, and the GPUs among that."""
    text = optional(allocated) or optional(asked)
    if not text:
        return {}
    found = _GPUS.findall(text)
    every = [int(count) for kind, count in found if not kind]
    return {"tres": text, "gpus": every[0] if every else sum(int(count) for _, count in found)}


def switches_facts(text: str) -> Facts:
    """`1@00:05:00`: what --switches asks for, and for how long."""
    match = _SWITCHES.fullmatch(text)
    if match is None:
        return {}
    wait = seconds(match[2]) if match[2] else None
    return Facts(switches=int(match[1])) | ({} if wait is None else {"switches_wait_s": wait})


def id_set(text: str) -> tuple[int, ...]:
    """`10-11,14`: job ids; none when it is not such a list, or one without end."""
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
    """Return what was said, `times` being start and end.

    Of a job that waits or runs slurmctld gives times that it expects, and codes of nothing.
    """
    over = state in OVER
    found["state"] = state or None
    found["start_s"] = times[0] if over or state in ("RUNNING", "COMPLETING", "SUSPENDED") else None
    found["end_s"] = times[1] if over or state == "COMPLETING" else None
    if not over:
        found |= {"exit_code": None, "signal": None}
    return {key: value for key, value in found.items() if value is not None}
