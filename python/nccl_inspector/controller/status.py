# SPDX-License-Identifier: Apache-2.0
"""The status of the controller's service, for administrators and for its own next start."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nccl_inspector.controller.queue import STATE
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.wording import number
from nccl_inspector.system.atomic import replace_path

FILE = "status.json"
_BYTES_MAX = 4 << 20
_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Stuck:
    """A process that hangs in a file system since `since_s` (Unix seconds).

    `uid`: the user whose path it opened; None: no user's path.
    """

    pid: int
    about: str
    since_s: float
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class Shunned:
    """A user whose paths are not opened until a time (Unix seconds); `mount`: where one hung."""

    uid: int
    mount: str
    until_s: float


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The service's state at the end of a pass; times are Unix seconds.

    `dropped`: ends that were not queued, by uid.
    """

    written_s: float = 0.0
    queued: int = 0
    stuck: tuple[Stuck, ...] = ()
    stuck_in_all: int = 0
    shunned: tuple[Shunned, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    found: int = 0  # ends that were in accounting but not in the queue
    accounted_s: float | None = None  # all ends before it have a report or are queued


def write_status(controller_dir: Path, status: ServiceStatus) -> None:
    """Write the status next to the queue.

    Raises:
        OSError: it could not be written.
    """
    data = f"{json.dumps(asdict(status))}\n".encode("ascii")
    replace_path(controller_dir / STATE / FILE, data, 0o640)


def _float(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and abs(value) < 1e12 else None


def _of(value: Any) -> ServiceStatus:
    """Return the status in a JSON value.

    Raises:
        KeyError, TypeError, ValueError: the value is not what `write_status` writes.
    """
    return ServiceStatus(
        written_s=float(value["written_s"]),
        queued=int(value["queued"]),
        stuck=tuple(Stuck(**one) for one in value["stuck"]),
        stuck_in_all=int(value["stuck_in_all"]),
        shunned=tuple(
            Shunned(int(one["uid"]), str(one["mount"]), float(one["until_s"]))
            for one in value["shunned"]
        ),
        dropped={str(uid): int(count) for uid, count in value["dropped"].items()},
        found=int(value["found"]),
        accounted_s=_float(value["accounted_s"]),
    )


def read_status(controller_dir: Path) -> ServiceStatus:
    """Return the status that the service wrote last.

    Raises:
        InspectorError: the service has written nothing yet, or the file cannot be read.
    """
    path = controller_dir / STATE / FILE
    try:
        with path.open("rb") as file:
            return _of(json.loads(file.read(_BYTES_MAX)))
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise InspectorError(f"{path}: not what the service writes") from err


def _most(counts: Mapping[str, int]) -> str:
    first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_MAX]
    return ", ".join(f"uid {uid}: {count}" for uid, count in first)


def status_text(status: ServiceStatus, now_s: float) -> str:
    """Return the status as lines for a terminal."""
    lines = [
        f"status of {now_s - status.written_s:.0f} s ago",
        f"{number(status.queued, 'end')} of jobs in the queue",
        f"{number(len(status.stuck), 'process')} left behind in a file system, "
        f"{status.stuck_in_all} since the service began",
        *(
            f"  pid {one.pid}: {one.about}, for {now_s - one.since_s:.0f} s"
            + ("" if one.uid is None else f", a file of uid {one.uid}")
            for one in status.stuck
        ),
        *(
            f"  no file of uid {one.uid} is opened for {max(0.0, one.until_s - now_s):.0f} s: "
            f"one on {one.mount} did not answer"
            for one in status.shunned[:_SHOWN_MAX]
        ),
        f"{number(status.found, 'end')} of jobs found in accounting that the queue did not have",
    ]
    if status.dropped:
        total = sum(status.dropped.values())
        lines.append(f"{number(total, 'end')} beyond the users' shares: {_most(status.dropped)}")
    return "\n".join(lines) + "\n"
