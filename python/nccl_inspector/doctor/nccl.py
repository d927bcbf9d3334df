# SPDX-License-Identifier: Apache-2.0
"""Versions of NCCL, the list deny_nccl, and the lines of files that set variables."""

import re
from collections.abc import Mapping

from nccl_inspector.doctor.facts import Version
from nccl_inspector.settings.deny_nccl import advice_on, is_listed
from nccl_inspector.system.printable import printable

PROFILER = "NCCL_PROFILER_PLUGIN"
FIRST_WITH_PROFILER: Version = (2, 23, 0)
FIRST_WITH_TIMES: Version = (2, 26, 0)
OPENS_NO_PATH: Version = (2, 27, 3)

_OF_NAME = re.compile(r"libnccl\.so\.([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})")
_MATTERS = re.compile(
    rf"^[^\n#]*\b(?:{PROFILER}|NCCL_INSPECTOR_[A-Z0-9_]+|NCCL_RAS_ENABLE|NCCL_CONF_FILE)\b[^\n]*$",
    re.M,
)
_LINES_MAX, _LINE_CHARS = 20, 200


def version_of_name(name: str) -> Version | None:
    """Return the version in `libnccl.so.2.28.3`."""
    match = _OF_NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def version_words(version: Version) -> str:
    """Return `NCCL 2.28.3`."""
    return "NCCL " + ".".join(map(str, version))


def lines_that_matter(text: str) -> tuple[str, ...]:
    """Return the lines of a file that set variables which decide about measuring."""
    found = [printable(line.strip()[:_LINE_CHARS]) for line in _MATTERS.findall(text)]
    return tuple(found[:_LINES_MAX])


def problem_of(version: Version, deny_nccl: str) -> str:
    """Return why processes with this NCCL are not measured, or an empty text."""
    words = version_words(version)
    if version < FIRST_WITH_PROFILER:
        return f"{words} has no interface for profilers (2.23 and later have)"
    if is_listed(version, deny_nccl):
        return f"{words} is on the site's list deny_nccl"
    return ""


def advice_against(version: Version, deny_nccl: str) -> str:
    """Return why processes with this NCCL are better not measured; empty: they may be, or are not.

    The reason is that of the list that comes with the package.
    """
    advice = advice_on(version)
    if advice is None or problem_of(version, deny_nccl):
        return ""
    return f"{version_words(version)}: {advice.reason} {advice.reference}"


def libraries_advised_against(nccl: Mapping[str, Version | None], deny_nccl: str) -> str:
    """Return the libraries that are better not measured, each with the reason."""
    found = (
        f"{path}: {why}"
        for path, version in nccl.items()
        if version and (why := advice_against(version, deny_nccl))
    )
    return "; ".join(found)
