# SPDX-License-Identifier: Apache-2.0
"""Let one user or one group read another account's file, through a POSIX access control list."""

import errno
import os
import struct

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = 2
_NOBODY = 0xFFFFFFFF  # in entries that name no user or group
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_ENTRY = struct.Struct("<HHI")


def pack(owner: int, uid: int | None, reader: int, gid: int | None = None) -> bytes:
    """Return the list as bytes: `owner` rights for the owner, `reader` rights for `uid` and `gid`.

    Rights are bits of rwx; everybody else gets none. `uid` or `gid` None: no such entry.
    """
    entries = [
        (_USER_OBJ, owner, _NOBODY),
        *([(_USER, reader, uid)] if uid is not None else []),
        (_GROUP_OBJ, 0, _NOBODY),
        *([(_GROUP, reader, gid)] if gid is not None else []),
        (_MASK, reader, _NOBODY),
        (_OTHER, 0, _NOBODY),
    ]
    return struct.pack("<I", _VERSION) + b"".join(_ENTRY.pack(*entry) for entry in entries)


def allow(fd: int, owner: int, uid: int | None, reader: int, gid: int | None = None) -> bool:
    """Set the list of `pack` on an open file; return False if the file system has no such lists.

    In that case the file is given to the group `gid` instead; a single user `uid` gets no access.

    Raises:
        OSError: the file system has lists but this one cannot be set, or we may not use the group.
    """
    try:
        os.setxattr(fd, _ATTRIBUTE, pack(owner, uid, reader, gid))
    except OSError as err:
        if err.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        if gid is not None:
            os.fchown(fd, -1, gid)
            os.fchmod(fd, owner << 6 | reader << 3)
        return False
    return True
