# SPDX-License-Identifier: Apache-2.0
"""Max-min fair shares: small demands are met in full, the others share the rest equally."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)


def fair_shares(wanted: Mapping[_Key, int], room: int) -> dict[_Key, int]:
    """Return how much of `room` each gets, never more than it wants; both are in the same unit.

    Nobody gets less than `room` divided by their number, unless they want less. All who get less
    than they want get the same. A remainder that cannot be divided evenly stays unused.
    """
    left, count = max(0, room), len(wanted)
    for want in sorted(wanted.values()):
        if want * count > left:
            break
        left -= want
        count -= 1
    if not count:
        return dict(wanted)
    most = left // count
    return {key: min(want, most) for key, want in wanted.items()}


def fair_job_shares(
    wanted: Mapping[int, int], users: Mapping[int, int], room: int
) -> dict[int, int]:
    """Return the share of each job: users share `room` fairly, and a user's jobs the user's share.

    `wanted`: by job id, in the unit of `room`. `users`: the uid of each of these jobs.
    """
    of_users: dict[int, dict[int, int]] = {}
    for job_id, want in wanted.items():
        of_users.setdefault(users[job_id], {})[job_id] = want
    totals = {uid: sum(jobs.values()) for uid, jobs in of_users.items()}
    shares: dict[int, int] = {}
    for uid, share in fair_shares(totals, room).items():
        shares |= fair_shares(of_users[uid], share)
    return shares
