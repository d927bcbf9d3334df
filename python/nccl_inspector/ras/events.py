# SPDX-License-Identifier: Apache-2.0
"""What RAS tells as it happens (MONITOR): processes that connect, fall silent, or are dead."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nccl_inspector.errors import RefusedError
from nccl_inspector.system.checked_json import Checks

_CHECKS = Checks("ras_event")
_LINES_MAX = 64  # of one event; NCCL writes up to 13
_PID_MAX = (1 << 31) - 1
_GPUS_MAX = 64
_DETAILS_CHARS_MAX = 2048


@dataclass(frozen=True, slots=True)
class RasEvent:
    """One event; an empty `host` and `pid` -1: it is about no process that RAS knows."""

    time: str  # local time of the process that tells it
    group: str  # LIFECYCLE or TRACE
    event: str
    host: str  # mostly an IP address
    pid: int
    gpus: tuple[int, ...]
    details: str


def _parse(text: str) -> RasEvent:
    words = _CHECKS.table(_CHECKS.load(text.encode()))
    peer = _CHECKS.table(words.get("peer", {}))
    return RasEvent(
        _CHECKS.text(words.get("timestamp")),
        _CHECKS.text(words.get("group")),
        _CHECKS.text(words.get("event")),
        _CHECKS.text(peer.get("host", peer.get("addr", ""))),
        _CHECKS.integer(peer["pid"], _PID_MAX) if "pid" in peer else -1,
        tuple(
            _CHECKS.integer(gpu, _PID_MAX)
            for gpu in _CHECKS.rows(peer.get("cuda_devs", []), most=_GPUS_MAX)
        ),
        _CHECKS.text(words.get("details"), _DETAILS_CHARS_MAX),
    )


def parse_events(lines: Iterable[str]) -> Iterator[RasEvent]:
    """Yield the events of a stream of lines, each as soon as it is complete.

    Raises:
        RefusedError: something else comes; a last event that is cut off is not yielded.
    """
    parts: list[str] = []
    for line in lines:
        if not parts and not line.strip():
            continue
        parts.append(line)
        if parts[0] != "{" or len(parts) > _LINES_MAX:
            raise RefusedError("ras_event", "not an event")
        if line == "}":
            yield _parse("\n".join(parts))
            parts = []
