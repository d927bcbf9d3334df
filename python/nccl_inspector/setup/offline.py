# SPDX-License-Identifier: Apache-2.0
"""What useradd and systemctl do on a running host, done to the files of one that does not run.

Neither program is called on an image: they follow its links to this machine's files.
"""

import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.setup.host import Host, id_in
from nccl_inspector.system.tree import Tree

_UNIT_DIRS = "/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"
_LINKS = Path("/etc/systemd/system")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,200}")
_UNIT_BYTES = 1 << 16
_BY = {"WantedBy": "wants", "RequiredBy": "requires"}
_IDS = range(999, 200, -1)  # of system accounts, where all distributions have them
_DAY_S = 86400


def is_unit_name(text: str) -> bool:
    """Tell whether a text may be the name of a unit."""
    return _UNIT.fullmatch(text) is not None


def unit_file(host: Host, unit: str) -> str:
    """Return the path of a unit's file; empty if there is none."""
    with host.tree() as tree:
        return _unit_file(tree, unit)


def _unit_file(tree: Tree, unit: str) -> str:
    paths = (f"{place}/{unit}" for place in _UNIT_DIRS)
    return next((path for path in paths if tree.is_file(path)), "")


def _wanted_at(tree: Tree, unit: str) -> Iterator[Path]:
    """Yield the links that enable a unit, as its section [Install] says."""
    section = ""
    text = tree.read(_unit_file(tree, unit), _UNIT_BYTES).decode("utf-8", "replace")
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        key, _, value = line.partition("=")
        kind = _BY.get(key.strip())
        if section == "[Install]" and kind:
            for one in filter(_UNIT.fullmatch, value.split()):
                yield _LINKS / f"{one}.{kind}" / unit


def _is_link(tree: Tree, path: Path) -> bool:
    try:
        return stat.S_ISLNK(tree.link_status(path).st_mode)
    except OSError:
        return False


def is_enabled(host: Host, unit: str) -> bool:
    """Tell whether the next boot starts a unit."""
    with host.tree() as tree:
        links = list(_wanted_at(tree, unit))
        return bool(links) and all(_is_link(tree, one) for one in links)


def enable(host: Host, unit: str) -> None:
    """Let the next boot start a unit.

    Raises:
        InspectorError: it is masked, or cannot be enabled.
    """
    with host.tree() as tree:
        if _is_link(tree, _LINKS / unit) and not tree.is_file(_LINKS / unit):
            raise InspectorError(f"{unit} is masked: remove {_LINKS / unit}")
        target, links = _unit_file(tree, unit), list(_wanted_at(tree, unit))
        for path in links:
            try:
                host.make_parents(path)
                if not _is_link(tree, path):
                    tree.make_link(path, target)
            except OSError as err:
                raise InspectorError(f"{path}: cannot be made: {err.strerror}") from err


def disable(host: Host, unit: str) -> None:
    """Take that back, with the directories that are then empty.

    Raises:
        OSError: a link cannot be removed.
    """
    with host.tree() as tree:
        for path in _wanted_at(tree, unit):
            if _is_link(tree, path):
                tree.remove(path)
                with suppress(OSError):
                    tree.remove_directory(path.parent)


def _rows(host: Host, file: str) -> list[list[str]]:
    return [line.split(":") for line in host.read_text(Path("/etc") / file).splitlines()]


def _ids(rows: list[list[str]]) -> set[int]:
    found = (id_in(row[2]) for row in rows if len(row) > 2)
    return {one for one in found if one is not None}


def _choose_ids(host: Host, name: str, uid: int | None) -> tuple[int, int]:
    """Return a uid, and a gid that is the same if that is free.

    Raises:
        InspectorError: there is none, or a group has the name already.
    """
    accounts, groups = _rows(host, "passwd"), _rows(host, "group")
    if any(row[0] == name for row in groups):
        raise InspectorError(f"account {name}: a group has that name already, and no account is "
                             "in it")  # fmt: skip
    uids, gids = _ids(accounts), _ids(groups)
    free = [one for one in _IDS if one not in uids and one not in gids]
    if uid is not None and uid not in gids:
        return uid, uid
    if not free:
        raise InspectorError(f"account {name}: no number is free")
    return (free[0] if uid is None else uid), free[0]


def add_account(host: Host, name: str, uid: int | None) -> None:
    """Make a system account with a group of its own name, as `useradd --system` does.

    Raises:
        InspectorError: it cannot be made; nothing has changed then.
    """
    own, gid = _choose_ids(host, name, uid)
    added = {
        "group": f"{name}:x:{gid}:",
        "gshadow": f"{name}:!::",
        "shadow": f"{name}:!:{int(time.time()) // _DAY_S}::::::",
        "passwd": f"{name}:x:{own}:{gid}::/nonexistent:/usr/sbin/nologin",
    }
    before: dict[Path, bytes] = {}
    try:
        for file, row in added.items():
            path = Path("/etc") / file
            data = host.read(path)
            if data is None and file.endswith("shadow"):
                continue
            data = data or b""
            host.write(path, data + b"\n" * bool(data and data[-1:] != b"\n") + f"{row}\n".encode())
            before[path] = data
    except InspectorError:
        for path, data in before.items():
            host.write(path, data)
        raise
