# SPDX-License-Identifier: Apache-2.0
"""The headers of a mail, made here from checked characters and without a library.

Users choose the names of jobs, and Python's email package has put text decoded from them into
headers (CVE-2024-6923). Without `?` there is no encoded word, and without control characters no
second line. Characters that are not allowed become `_`.
"""

import re

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.table_columns import cut

SUBJECT_CHARS_MAX = 78  # RFC 5322: a header's line should not be longer
LINE_CHARS_MAX = 900  # and never longer than 998
_ADDRESSES_MAX = 50
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9 .,:;=+*/%#@!&()\[\]<>_-]")
# No names, quotes, comments or programs: only `local@host`, or an account.
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LOCAL = r"[A-Za-z0-9_](?:[A-Za-z0-9_+=-]|\.(?!\.|@|$)){0,63}"
_ADDRESS = re.compile(rf"{_LOCAL}(?:@{_LABEL}(?:\.{_LABEL}){{0,9}})?")


def header_text(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """Return one line of text for a header; characters that are not allowed become `_`."""
    return cut(_NOT_ALLOWED.sub("_", text), min(chars_max, LINE_CHARS_MAX))


def read_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses in a text with commas between them.

    Raises:
        InspectorError: one of them is not an address such as `amy` or `amy@example.org`.
    """
    found = tuple(one.strip(" ") for one in text.split(",", _ADDRESSES_MAX))
    if len(found) > _ADDRESSES_MAX or not all(map(_ADDRESS.fullmatch, found)):
        raise InspectorError("not a mail address such as amy or amy@example.org")
    return found


def header_lines(to: tuple[str, ...], subject: str) -> bytes:
    """Return the lines of our headers, each with its line end."""
    lines = (
        "To: " + ",\n ".join(to),
        f"Subject: {header_text(subject)}",
        "Auto-Submitted: auto-generated",
    )
    return "".join(f"{line}\n" for line in lines).encode("ascii")
