# SPDX-License-Identifier: Apache-2.0
"""What the service writes about itself at the end of each pass, and reads at its next start."""

import time
from collections import Counter
from pathlib import Path

from nccl_inspector.controller.children import Children
from nccl_inspector.controller.missed_ends import LostEnds
from nccl_inspector.controller.status import (
    ServiceStatus,
    Shunned,
    Stuck,
    read_status,
    write_status,
)
from nccl_inspector.errors import InspectorError

USERS_MAX = 10_000  # users whose dropped ends are counted separately


class Notes:
    """The status file of one service."""

    def __init__(self, controller_dir: Path, children: Children) -> None:
        """Take over from the last service the users to avoid and the search of accounting."""
        self._folder, self._children = controller_dir, children
        try:
            last = read_status(controller_dir)
        except InspectorError:
            last = ServiceStatus()
        self.accounted_s = last.accounted_s
        self._dropped: Counter[str] = Counter(last.dropped)
        shift_s = time.monotonic() - time.time()
        for one in last.shunned:
            children.avoided.remember(one.uid, one.mount, one.until_s + shift_s, time.monotonic())

    def write(self, queued: int, dropped: Counter[str], lost: LostEnds) -> str:
        """Write the status; return what is new and belongs in the log, as text."""
        self._dropped += dropped
        if len(self._dropped) > USERS_MAX:
            self._dropped = Counter(dict(self._dropped.most_common(USERS_MAX)))
        children, now_s = self._children, time.monotonic()
        shift_s = time.time() - now_s
        status = ServiceStatus(
            written_s=now_s + shift_s,
            queued=queued,
            stuck=tuple(
                Stuck(one.pid, one.about, one.since_s + shift_s, one.uid) for one in children.left
            ),
            stuck_in_all=children.left_in_all,
            shunned=tuple(
                Shunned(one.uid, one.mount, one.until_s + shift_s)
                for one in children.avoided.listed(now_s)
            ),
            dropped=dict(self._dropped),
            found=lost.found,
            accounted_s=lost.settled_s,
        )
        try:
            write_status(self._folder, status)
        except OSError as err:
            return f"no status is written: {err.filename or self._folder}: {err.strerror}"
        if dropped:
            users = ", ".join(sorted(dropped))
            return f"ends of jobs were not queued, their users' shares are full: uid {users}"
        return ""
