# SPDX-License-Identifier: Apache-2.0
"""RAS' answer to STATUS, checked value by value: communicators, their ranks, missing ranks.

RAS counts what a rank has launched, not what has ended, and no Send or Recv.

Whoever has the port may answer, and a small text can be a large value: so a child with limits of
memory and time asks and reads, and its parent gets the checked answer alone.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from nccl_inspector.errors import RefusedError
from nccl_inspector.ras.client import Address, RasError, ask_status
from nccl_inspector.system.checked_json import Checks
from nccl_inspector.system.limited import Limits, run_limited

_COUNT_MAX = (1 << 64) - 1
_INT_MAX = (1 << 31) - 1
_RANKS_MAX = 1 << 20  # of all communicators
_COMMS_MAX = 1 << 16
MEMORY_BYTES_MAX = 3 << 29  # 16,384 ranks in 25 communicators need half of it
READ_S = 180.0  # an answer may take a minute to come
_LIMITS = Limits(cpu_s=120, wall_s=READ_S, memory_bytes=MEMORY_BYTES_MAX)
_CHECKS = Checks("ras")
# NCCL 2.28.9 leaves out a comma where it tells of a missing rank.
_NO_COMMA = re.compile(rb'("nvml_dev": -?[0-9]{1,10})(\s{1,40}"status")')


@dataclass(frozen=True, slots=True)
class RasRank:
    """A rank that answered."""

    rank: int
    host: str  # mostly an IP address
    pid: int
    gpu: int
    init_state: int
    async_error: int
    is_ending: bool  # it has called finalize, or its communicator is being destroyed or aborted
    launched: Mapping[str, int]  # by function


@dataclass(frozen=True, slots=True)
class MissingRank:
    """A rank of which RAS has nothing."""

    rank: int
    host: str
    pid: int
    gpu: int
    is_dead: bool
    is_unresponsive: bool


@dataclass(frozen=True, slots=True)
class RasComm:
    """A communicator; `hash` is the id that the plugin has, but for split communicators."""

    hash: int
    size: int
    ranks: tuple[RasRank, ...]
    missing: tuple[MissingRank, ...]


@dataclass(frozen=True, slots=True)
class RasStatus:
    """All that one process could learn of its job."""

    nccl: str
    comms: tuple[RasComm, ...]
    timeouts: int  # processes that did not answer in time


def _int(value: Any) -> int:
    """Return a whole number from -1 on, which means unknown."""
    return -1 if value == -1 and not isinstance(value, bool) else _CHECKS.integer(value, _INT_MAX)


def _hash(value: Any) -> int:
    text = _CHECKS.text(value)
    digits = text.removeprefix("0x")
    if text == digits or not 0 < len(digits) <= 16 or not set(digits) <= set("0123456789abcdef"):
        raise _CHECKS.refused("invalid hash")
    return int(digits, 16)


def _list(value: Any, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise _CHECKS.refused("invalid list")
    return value


def _rank(row: Any) -> RasRank:
    words = _CHECKS.table(row)
    status = _CHECKS.table(words.get("status"))
    counts = _CHECKS.table(words.get("collective_counts"))
    return RasRank(
        _int(words.get("rank")),
        _CHECKS.text(words.get("host")),
        _int(words.get("pid")),
        _int(words.get("cuda_dev")),
        _int(status.get("init_state")),
        _int(status.get("async_error")),
        any(status.get(name) is True for name in ("finalize_called", "destroy_flag", "abort_flag")),
        {name: _CHECKS.integer(count, _COUNT_MAX) for name, count in counts.items()},
    )


def _missing(row: Any) -> MissingRank:
    words = _CHECKS.table(row)
    status = _CHECKS.table(words.get("status"))
    return MissingRank(
        _int(words.get("rank")),
        _CHECKS.text(words.get("host")),
        _int(words.get("pid")),
        _int(words.get("cuda_dev")),
        status.get("considered_dead") is True,
        status.get("unresponsive") is True,
    )


def parse_status(data: bytes) -> RasStatus:
    """Return the checked answer.

    Raises:
        RefusedError: it is not such an answer.
    """
    words = _CHECKS.table(_CHECKS.load(_NO_COMMA.sub(rb"\1,\2", data)))
    left, comms = _RANKS_MAX, []
    for row in _list(words.get("communicators"), _COMMS_MAX):
        comm = _CHECKS.table(row)
        ranks, missing = (_list(comm.get(name), left) for name in ("ranks", "missing_ranks"))
        left -= len(ranks) + len(missing)
        if left < 0:
            raise RefusedError("ras", "too many ranks")
        comms.append(
            RasComm(
                _hash(comm.get("hash")),
                _int(comm.get("size")),
                tuple(map(_rank, ranks)),
                tuple(map(_missing, missing)),
            )
        )
    return RasStatus(
        _CHECKS.text(words.get("nccl_version")),
        tuple(comms),
        _int(_CHECKS.table(words.get("ras")).get("timeouts_count")),
    )


def _asked(where: Address) -> bytes:
    try:
        found: RasStatus | RasError = parse_status(ask_status(where))
    except RasError as err:
        found = err
    return pickle.dumps(found, pickle.HIGHEST_PROTOCOL)


def read_status(where: Address) -> RasStatus:
    """Ask a service, and return its checked answer.

    Raises:
        RasError: there is no service, or its NCCL is too old.
        RefusedError: it is no such answer, or needs too much memory or time.
    """
    ((_, answer),) = run_limited([partial(_asked, where)], _LIMITS)
    if isinstance(answer, RefusedError):
        raise answer
    found: RasStatus | RasError = pickle.loads(answer)  # noqa: S301 - our own child's
    if isinstance(found, RasError):
        raise found
    return found
