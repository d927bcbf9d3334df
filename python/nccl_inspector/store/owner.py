# SPDX-License-Identifier: Apache-2.0
"""Uids that were given to another user: data of the former user are not shown.

Files are shared by uid, and sites use uids again. The index has the user's name with the uid, as
the hooks were told it.
"""

import pwd


def current_name(uid: int) -> str | None:
    """Return the present name of a uid; None: no user has it, or it is not known here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


def is_owner(uid: int, user: str) -> bool:
    """Tell whether a uid still belongs to the user that the hooks named; True if not known."""
    return user in ("", str(uid)) or current_name(uid) in (None, user)


def has_name(uid: int, user: str) -> bool:
    """Tell whether a name is still that of this uid; True if not known."""
    try:
        return pwd.getpwnam(user).pw_uid == uid
    except (KeyError, ValueError):
        return True
