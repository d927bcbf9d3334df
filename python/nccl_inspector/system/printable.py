# SPDX-License-Identifier: Apache-2.0
"""Make text of users safe to show on a terminal and on a page."""

import unicodedata

# Control, format (including those that change the direction of writing), surrogates, private use,
# and the two separators that end a line.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def printable(text: str) -> str:
    """Return `text` with `?` for each character that could move a cursor or end a line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def plain(text: str) -> str:
    """Return `text` with `?` for each character that is not printable ASCII."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if " " <= char <= "~" else "?" for char in text)


def visible(text: str) -> str:
    """Return `text` of any script with `?` for what cannot be seen or changes what is around it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if unicodedata.category(char) in _HIDDEN else char for char in text)
