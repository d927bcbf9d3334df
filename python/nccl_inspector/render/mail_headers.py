# SPDX-License-Identifier: Apache-2.0
"""The headers of a mail, made here of a checked alphabet and by no library.

Users choose the names of jobs, and Python's email package has put what it decoded of them into
headers (CVE-2024-6923). Without `?` there is no encoded word, without control characters no second
line, and what is not ASCII is not there.
"""

import re

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.table_columns import cut

SUBJECT_CHARS_MAX = 78  # RFC 5322: a line of a header is not to be longer
LINE_CHARS_MAX = 900  # and never longer than 998
_ADDRESSES_MAX = 50
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9 .,:;=+*/%#@!&()\[\]<>_-]")
# No names, quotes, comments or programs: a part before the @ and a host, or an account alone.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LOCAL = r"[A-Za-z0-9_](?:[A-Za-z0-9_+=-]|\.(?!\.|@|$)){0,63}"
_ADDRESS = re.compile(rf"{_LOCAL}(?:@{_LABEL}(?:\.{_LABEL}){{0,9}})?")


def header_text(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """Return a text for a header: ASCII of the alphabet, `_` for anything else, one line."""
    return cut(_NOT_ALLOWED.sub("_", text), min(chars_max, LINE_CHARS_MAX))


def read_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses that commas separate in a text.

    Raises:
        InspectorError: one of them is not an address as `amy` or `amy@example.org`.
    """
    found = tuple(one.strip(" ") for one in text.split(",", _ADDRESSES_MAX))
    if len(found) > _ADDRESSES_MAX or not all(map(_ADDRESS.fullmatch, found)):
        raise InspectorError("not the address of a mail, as amy or amy@example.org")
    return found


def header_lines(to: tuple[str, ...], subject: str) -> bytes:
    """Return the lines of the headers that are ours, each with its end."""
    lines = (
        "To: " + ",\n ".join(to),
        f"Subject: {header_text(subject)}",
        "Auto-Submitted: auto-generated",
    )
    return "".join(f"{line}\n" for line in lines).encode("ascii")
