# SPDX-License-Identifier: Apache-2.0
"""Numbers of users that were given to somebody else: what was the former owner's is not shown.

Files are shared with numbers, and sites give them again. The index has the user's name beside the
number, as the hooks were told it.
"""

import pwd


def current_name(uid: int) -> str | None:
    """Return the name that a number has today; None: nobody's, or it is not known here."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return None


def is_owner(uid: int, user: str) -> bool:
    """Tell whether a number still is that of the user whom the hooks named; if unknown, yes."""
    return user in ("", str(uid)) or current_name(uid) in (None, user)
