# SPDX-License-Identifier: Apache-2.0
"""Let one user read a file or directory of another account, through a POSIX access control list."""

import errno
import os
import struct

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = 2
_NOBODY = 0xFFFFFFFF  # entries that name no one
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_ENTRY = struct.Struct("<HHI")


def pack(owner: int, reader_uid: int, reader: int) -> bytes:
    """Return the list that gives an owner and one reader rights (bits of rwx), others none."""
    entries = (
        (_USER_OBJ, owner, _NOBODY),
        (_USER, reader, reader_uid),
        (_GROUP_OBJ, 0, _NOBODY),
        (_MASK, reader, _NOBODY),
        (_OTHER, 0, _NOBODY),
    )
    return struct.pack("<I", _VERSION) + b"".join(_ENTRY.pack(*entry) for entry in entries)


def allow(fd: int, owner: int, reader_uid: int, reader: int) -> bool:
    """Set that list on an open file; False where the file system has none.

    Raises:
        OSError: it has, but this one cannot be set.
    """
    try:
        os.setxattr(fd, _ATTRIBUTE, pack(owner, reader_uid, reader))
    except OSError as err:
        if err.errno in (errno.ENOTSUP, errno.ENOSYS):
            return False
        raise
    return True
