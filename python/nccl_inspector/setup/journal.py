# SPDX-License-Identifier: Apache-2.0
"""What `setup` has changed on a host, so that it knows its own files and can undo its work.

An entry is written before its change is made: whatever kills `setup`, `--undo` finds all of it.
A host has one journal, whatever its roles are, because they share files: an entry names the roles
that need its change, and the change is undone with the last of them.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.setup.host import Host, directory_of
from nccl_inspector.system.atomic import replace_file

JOURNAL_DIR = Path("/var/lib/nccl-inspector/setup")
# What the removal of the package with the SPANK plugin takes out again, in a form that a shell can
# read: packaging/unplug. A line each: the file, made (by setup) or kept, and the line, with tabs.
PLUGSTACK_LINES = JOURNAL_DIR / "plugstack-lines"
_JOURNAL = JOURNAL_DIR / "journal.json"
# Of older releases, which had one for each role; the first writing replaces them.
_OLD_ROLES = "controller", "node", "monitoring"

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


def _rows(host: Host, path: Path) -> list[Change]:
    """Return the entries in a file; none if it does not exist.

    Raises:
        InspectorError: it is damaged.
    """
    try:
        found = [Change(**row) for row in json.loads(host.read_text(path) or "[]")]
    except (TypeError, ValueError) as err:
        raise InspectorError(f"{path}: damaged: {err}") from err
    return [replace(one, roles=tuple(one.roles)) for one in found]


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
        place = self._host.at(path)
        try:
            if not text:
                place.unlink(missing_ok=True)
                return
            with directory_of(place) as parent:
                replace_file(parent, place.name, text.encode(), 0o600)
        except OSError as err:
            raise InspectorError(f"{path}: cannot be written: {err.strerror}") from err
