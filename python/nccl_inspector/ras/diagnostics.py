# SPDX-License-Identifier: Apache-2.0
"""The lines of RAS' diagnostics, and which of them say that something is wrong.

NCCL marks with [OK] what is well and with [INFO] all else, faults too. The catalogue of NCCL's log
knows the faults.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nccl_inspector.nccl_log.catalogue import Matcher
from nccl_inspector.nccl_log.record import Level

_LINE = re.compile(
    r"(?:([\w.-]{1,64}):([0-9]{1,10}) )?NCCL DIAG (\[\w{1,8}\]) {1,8}([^:]{1,64}): (.*)"
)


@dataclass(frozen=True, slots=True)
class Check:
    """What one check of NCCL's says."""

    host: str  # the process that answered; empty and -1: it does not say
    pid: int
    is_ok: bool
    check: str
    text: str
    is_fault: bool


def read_checks(lines: Iterable[str]) -> Iterator[Check]:
    """Yield the checks; headings and lines of other forms are passed over."""
    matcher = Matcher()
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        host, pid, mark, check, text = match.groups()
        rule = matcher.find(Level.DIAG, f"{mark} {check}: {text}".encode(), ())
        is_ok = mark == "[OK]"
        yield Check(
            host or "", int(pid) if pid else -1, is_ok, check, text, not is_ok and rule is not None
        )


def fault_lines(checks: Iterable[Check]) -> Iterator[str]:
    """Yield the faults as text of a line each; nothing if there are none."""
    faults = [one for one in checks if one.is_fault]
    if faults:
        yield "NCCL's checks found something:"
    for one in faults:
        yield f"  {one.check}: {one.text}"
