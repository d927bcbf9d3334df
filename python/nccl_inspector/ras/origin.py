# SPDX-License-Identifier: Apache-2.0
"""Whether an answer is of the job that was meant: whoever got the port first answers there.

The services of one user share a port (SO_REUSEPORT), and the kernel chooses among them anew for
each connection. A service of another user keeps the port for itself. So an answer is compared with
what is known of the job on this node: the plugin's communicators, and the ids of the processes.
"""

import time
from collections.abc import Collection
from enum import StrEnum

from nccl_inspector.errors import InspectorError
from nccl_inspector.ras.find import RasPlace
from nccl_inspector.ras.status import RasStatus, read_status

# Where a job has a quarter of the processes at a port, all tries miss it once in 10,000 times.
_TRIES = 32
_TRIES_S = 30.0


class Origin(StrEnum):
    """Whose answer it is."""

    JOB = "job"
    OTHER = "other"
    UNKNOWN = "unknown"


class OtherJobError(InspectorError):
    """Another job, or another step, answers at the address."""


def find_origin(
    status: RasStatus, pids: Collection[int], comm_ranks: Collection[tuple[int, int]]
) -> Origin:
    """Return whose answer it is.

    `pids`: of the job's processes at this address, as they see them. `comm_ranks`: the plugin's
    communicators of the job on this node, with the rank here. A rank of them in the answer is
    enough. So is a host all of whose ranks are such processes; other hosts' ids say nothing.
    """
    if any((comm.hash, rank.rank) in comm_ranks for comm in status.comms for rank in comm.ranks):
        return Origin.JOB
    hosts: dict[str, set[int]] = {}
    for comm in status.comms:
        for rank in comm.ranks:
            hosts.setdefault(rank.host, set()).add(rank.pid)
    if not pids or not hosts:
        return Origin.UNKNOWN
    return Origin.JOB if any(found <= set(pids) for found in hosts.values()) else Origin.OTHER


def ask_job(place: RasPlace, comm_ranks: Collection[tuple[int, int]]) -> tuple[RasStatus, Origin]:
    """Return the answer of the job's service, and whether it is known to be the job's.

    Raises:
        OtherJobError: all answers are of others.
        RasError: there is no service, or its NCCL is too old.
        RefusedError: it is no such answer, or needs too much.
    """
    until_s = time.monotonic() + _TRIES_S
    for _ in range(_TRIES):
        status = read_status(place.address)
        origin = find_origin(status, place.pids, comm_ranks)
        if origin is not Origin.OTHER:
            return status, origin
        if time.monotonic() > until_s:
            break
    raise OtherJobError(
        f"{place.address}: processes of another job answer there; this job's own could not listen"
    )
