# SPDX-License-Identifier: Apache-2.0
"""Let one user, or a group, read what is another account's, through a POSIX access control list."""

import errno
import os
import struct

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = 2
_NOBODY = 0xFFFFFFFF  # entries that name no one
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_ENTRY = struct.Struct("<HHI")


def pack(owner: int, uid: int | None, reader: int, gid: int | None = None) -> bytes:
    """Return the list that gives an owner, a user and a group rights (bits of rwx), others none.

    `uid`, `gid` None: no such reader.
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
    """Set that list on an open file; False where the file system has none.

    There a group still reads what is made its own, but no single user does.

    Raises:
        OSError: it has, but this one cannot be set; or the group is none of ours.
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
