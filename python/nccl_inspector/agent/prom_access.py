# SPDX-License-Identifier: Apache-2.0
"""Who may read the published files: everybody, or root and one group (setting `prom_group`)."""

import grp
import os

from nccl_inspector.errors import InspectorError
from nccl_inspector.system.safe_files import open_directory

_EVERYBODY, _GROUP = 0o755, 0o750
_ROOT = 0
_MODE_BITS = 0o7777


def group_id(name: str) -> int | None:
    """Return the number of a group, or None for an empty name.

    Raises:
        InspectorError: there is no such group on this node.
    """
    if not name:
        return None
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise InspectorError(f"prom_group = {name}: there is no such group") from None


def set_access(run_fd: int, gid: int | None) -> None:
    """Give `prom/` only to root and this group, or to everybody if `gid` is None.

    It is done in each pass, because systemd-tmpfiles may have set the default mode again.

    Raises:
        OSError: the directory does not exist, or is not root's.
    """
    fd = open_directory("prom", run_fd)
    try:
        status = os.fstat(fd)
        mode, group = (_EVERYBODY, _ROOT) if gid is None else (_GROUP, gid)
        if status.st_mode & _MODE_BITS != mode:
            os.fchmod(fd, mode)
        if status.st_gid != group:
            _give_to_group(fd, group)
    finally:
        os.close(fd)


def _give_to_group(fd: int, gid: int) -> None:
    """Change the group of our directory without CAP_CHOWN, which the agent's unit does not have."""
    before = os.getegid()
    os.setegid(gid)
    try:
        os.fchown(fd, -1, gid)
    finally:
        os.setegid(before)


def groups_of_reader(prom_fd: int) -> list[int]:
    """Return the groups that an unprivileged process needs to read this directory.

    Root's own group is never among them.
    """
    status = os.fstat(prom_fd)
    is_closed = status.st_mode & 0o005 != 0o005
    return [status.st_gid] if is_closed and status.st_gid != _ROOT else []
