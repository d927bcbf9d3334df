# SPDX-License-Identifier: Apache-2.0
"""What `setup` has changed on a host, so that it knows its own files and can undo its work.

An entry is written before its change is made: whatever kills `setup`, `--undo` finds all of it.
A host has one journal, whatever its roles are, because they share files: an entry names the roles
that need its change, and the change is undone with the last of them.

Whoever made an image may have written the journal in it. Therefore it is root's and nobody else may
write to it, or it is refused; each entry has a form that this release writes, or the journal is
refused as a whole; and what an entry names is undone only if a step of this release makes it
(plan.own_changes). It never says what to put into a file.
"""

import json
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from nccl_inspector.errors import InspectorError, RefusedError
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.offline import is_unit_name
from nccl_inspector.setup.site_file import is_account_name, is_line_of_setup
from nccl_inspector.system.checked_json import Checks

JOURNAL_DIR = Path("/var/lib/nccl-inspector/setup")
# What the removal of the package with the SPANK plugin takes out again, in a form that a shell can
# read: packaging/unplug. A line each: the file, made (by setup) or kept, and the line, with tabs.
PLUGSTACK_LINES = JOURNAL_DIR / "plugstack-lines"
_JOURNAL = JOURNAL_DIR / "journal.json"
# Of older releases, which had one for each role; the first writing replaces them.
_OLD_ROLES = "controller", "node", "monitoring"
_UNIT_STATES = frozenset(("enabled", "active"))
_CHECKS = Checks("damaged")
_WHAT_CHARS_MAX = 4096
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

Key = tuple[str, str]  # kind and name of what a change is about


def fingerprint(data: bytes) -> str:
    """Return what a file is recognized by."""
    return sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Change:
    """A change; `kind` says which of the other fields matter."""

    kind: str  # file, directory, parent (of these two), unit, account
    what: str  # a path or a name
    written: str = ""  # file: the fingerprint of what was written
    before: str | None = None  # file: its text before; None: there was none. unit: how it was
    appended: str = ""  # file: the text that was added at its end, if the rest is the site's
    replaced: str = ""  # file: what setup had appended before, in the place of that
    roles: tuple[str, ...] = ()  # that need it

    @property
    def key(self) -> Key:
        return self.kind, self.what

    def without(self, role: str) -> "Change":
        """Return the same for the other roles."""
        return replace(self, roles=tuple(one for one in self.roles if one != role))

    def also_for(self, roles: Iterable[str]) -> "Change":
        """Return the same for these roles, too."""
        return replace(self, roles=tuple(sorted({*self.roles, *roles})))


def _is_well_named(kind: str, what: str) -> bool:
    if kind == "unit":
        return is_unit_name(what)
    if kind == "account":
        return is_account_name(what)
    path = Path(what)
    return (
        kind in ("file", "directory", "parent")
        and what.isprintable()
        and path.is_absolute()
        and ".." not in path.parts
    )


def _is_as_written(change: Change) -> bool:
    """Tell whether an entry may be one that setup wrote.

    A file that setup makes was not there before, and of one that was there setup adds to the end:
    no text is to be put back.
    """
    before = change.before
    if change.kind == "unit":
        return before is not None and _UNIT_STATES.issuperset(before.split())
    if change.kind != "file":
        return before is None and not change.written and not change.appended
    if change.appended:
        return before in (None, "") and is_line_of_setup(change.appended)
    return before is None


def _entry(row: Any) -> Change:
    """Return a row of the journal as an entry.

    Raises:
        RefusedError: it is none that setup has written.
    """
    table = _CHECKS.table(row)
    kind = _CHECKS.text(table.get("kind"))
    what = _CHECKS.text(table.get("what"), _WHAT_CHARS_MAX)
    names = {one.name for one in fields(Change)}
    if not names.issuperset(table) or table.get("replaced") or not _is_well_named(kind, what):
        raise RefusedError("damaged", f"{what[:80]} is no entry of setup")
    texts = (table.get("written", ""), table.get("before"), table.get("appended", ""))
    if not all(one is None or isinstance(one, str) for one in texts):
        raise RefusedError("damaged", "invalid text")
    roles = tuple(map(_CHECKS.text, _CHECKS.rows(table.get("roles", []))))
    found = Change(kind, what, texts[0] or "", texts[1], texts[2] or "", roles=roles)
    if not _is_as_written(found) or not set(roles) <= set(_OLD_ROLES):
        raise RefusedError("damaged", f"{what[:80]} is no entry of setup")
    return found


def _refuse_strangers(path: Path, status: os.stat_result) -> None:
    """Refuse what is not root's, or the caller's, alone.

    Raises:
        InspectorError: it is somebody else's.
    """
    if status.st_uid not in (0, os.geteuid()):
        raise InspectorError(f"{path} belongs to uid {status.st_uid}, not to root: it is not "
                             "setup's journal, and nothing was changed. Remove it")  # fmt: skip
    if status.st_mode & _OTHERS_WRITE:
        raise InspectorError(f"others than root may write to {path}: it is not setup's journal, "
                             "and nothing was changed. Remove it")  # fmt: skip


def _rows(host: Host, path: Path) -> list[Change]:
    """Return the entries in a file; none if it does not exist.

    Raises:
        InspectorError: it is damaged, or not root's alone.
    """
    try:
        with host.tree() as tree:
            for one in (JOURNAL_DIR.parent, JOURNAL_DIR, path):
                _refuse_strangers(one, tree.link_status(one))
    except FileNotFoundError:
        return []
    except OSError as err:
        raise InspectorError(f"{path}: cannot be read: {err.strerror}") from err
    try:
        found = _CHECKS.load(host.read(path) or b"[]")
        return [_entry(row) for row in _CHECKS.rows(found)]
    except RefusedError as err:
        raise InspectorError(f"{path}: {err}. Nothing was changed; remove it to go on without "
                             "it") from err  # fmt: skip


def _is_present(host: Host, change: Change) -> bool:
    """Tell whether a file is as this entry has it."""
    data = host.read(Path(change.what)) or b""
    if change.appended:
        return change.appended in data.decode("utf-8", "surrogateescape")
    return fingerprint(data) == change.written


def _of_old_journals(host: Host) -> list[Change]:
    """Return what the journals of single roles say, with one entry for each thing.

    If two of them have the same file, the one that describes the present content counts. If a host
    has the role of a node and that of a controller, both need the files and the account that they
    share, whichever made them.
    """
    journals = {role: _rows(host, JOURNAL_DIR / f"{role}.json") for role in _OLD_ROLES}
    sharing = [role for role in ("controller", "node") if journals[role]]
    merged: dict[Key, Change] = {}
    for role, changes in journals.items():
        for change in changes:
            is_shared = role in sharing and change.kind in ("file", "account", "parent")
            new = change.also_for(sharing if is_shared else [role])
            old = merged.get(new.key)
            if old is not None:
                is_newer = new.kind == "file" and _is_present(host, new)
                new = (new if is_newer else old).also_for({*old.roles, *new.roles})
            merged[new.key] = new
    return list(merged.values())


class Journal:
    """The changes on a host, the oldest first; `of_this_run` has those that were made just now.

    Of a file that was changed in several runs, `changes` has the content before the first one.
    """

    def __init__(self, host: Host, role: str) -> None:
        """Read what earlier runs have written, for any role; what is added now is for `role`.

        Raises:
            InspectorError: the journal is damaged.
        """
        self._host, self._role = host, role
        self.of_this_run: list[Change] = []
        self.changes = _rows(host, _JOURNAL)
        known = {one.key for one in self.changes}
        self.changes += [one for one in _of_old_journals(host) if one.key not in known]

    def of_role(self) -> list[Change]:
        """Return the changes that the role needs."""
        return [one for one in self.changes if self._role in one.roles]

    def wrote(self, path: Path) -> str:
        """Return the fingerprint of what was last written to a file; empty if nothing was."""
        found = (one.written for one in reversed(self.changes) if one.key == ("file", str(path)))
        return next(found, "")

    def note_parents(self, path: Path) -> None:
        """Add the directories above a path that are missing, and about to be made."""
        for one in self._host.missing_parents(path):
            self.note(Change("parent", str(one)))

    def note(self, change: Change) -> None:
        """Add a change that is about to be made."""
        change = change.also_for([self._role])
        self.of_this_run.append(change)
        first = next((one for one in self.changes if one.key == change.key), None)
        if first is not None:
            self.changes.remove(first)
            change = replace(change, before=first.before, replaced=first.replaced)
            change = change.also_for(first.roles)
        self.save([*self.changes, change])

    def claim(self, keys: Sequence[Key]) -> None:
        """Note that the role needs what a run for another role has made, with its directories."""
        wanted = set(keys)
        wanted |= {("parent", str(above)) for _, what in keys for above in Path(what).parents}
        claimed = [one.also_for([self._role]) if one.key in wanted else one for one in self.changes]
        if claimed != self.changes:
            self.save(claimed)

    def save(self, changes: Iterable[Change]) -> None:
        """Write the journal anew; without changes, remove it.

        Raises:
            InspectorError: it cannot be written.
        """
        self.changes = list(changes)
        rows = [asdict(one) for one in self.changes]
        self._write(_JOURNAL, json.dumps(rows, indent=1) if rows else "")
        for role in _OLD_ROLES:
            self._write(JOURNAL_DIR / f"{role}.json", "")

    def note_plugstack_lines(self) -> None:
        """Write down which lines of plugstack.conf the package takes out when it is removed: those
        that setup has put there, but not where other hosts read them, too.

        Raises:
            InspectorError: the list cannot be written.
        """
        self._write(PLUGSTACK_LINES, "".join(
            f"{one.what}\t{'made' if one.before is None else 'kept'}\t{one.appended}"
            for one in self.changes
            if one.appended and not self._host.is_shared(Path(one.what))
        ))  # fmt: skip

    def _write(self, path: Path, text: str) -> None:
        """Write a file beside the journal anew; remove it if it would be empty.

        Raises:
            InspectorError: it cannot be written.
        """
        try:
            if text:
                self._host.write(path, text.encode("utf-8", "surrogateescape"), 0o600, is_new=True)
                return
            with suppress(FileNotFoundError), self._host.tree() as tree:
                tree.remove(path)
        except OSError as err:
            raise InspectorError(f"{path}: cannot be written: {err.strerror}") from err
