# SPDX-License-Identifier: Apache-2.0
"""What `setup` has changed on a host, so that it knows its own files and can undo its work.

An entry is written before its change is made: whatever kills `setup`, `--undo` finds all of it.
"""

import json
from collections.abc import Iterable
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


class Journal:
    """The changes of one role, the oldest first; `of_this_run` has those that were made just now.

    Of a file that was changed in several runs, `changes` has the content before the first one.
    """

    def __init__(self, host: Host, role: str) -> None:
        """Read what earlier runs have written.

        Raises:
            InspectorError: the journal is damaged.
        """
        self._host = host
        self.of_this_run: list[Change] = []
        self._path = JOURNAL_DIR / f"{role}.json"
        text = host.read_text(self._path)
        try:
            self.changes = [Change(**row) for row in json.loads(text or "[]")]
        except (TypeError, ValueError) as err:
            raise InspectorError(f"{self._path}: damaged: {err}") from err

    def wrote(self, path: Path) -> str:
        """Return the fingerprint of what was last written to a file; empty if nothing was."""
        found = (one.written for one in reversed(self.changes)
                 if (one.kind, one.what) == ("file", str(path)))  # fmt: skip
        return next(found, "")

    def note_parents(self, path: Path) -> None:
        """Add the directories above a path that are missing, and about to be made."""
        for one in self._host.missing_parents(path):
            self.note(Change("parent", str(one)))

    def note(self, change: Change) -> None:
        """Add a change that is about to be made."""
        self.of_this_run.append(change)
        key = change.kind, change.what
        first = next((one for one in self.changes if (one.kind, one.what) == key), None)
        if first is not None:
            self.changes.remove(first)
            change = replace(change, before=first.before, replaced=first.replaced)
        self.save([*self.changes, change])

    def save(self, changes: Iterable[Change]) -> None:
        """Write the journal anew; without changes, remove it.

        Raises:
            InspectorError: it cannot be written.
        """
        self.changes = list(changes)
        rows = [asdict(one) for one in self.changes]
        self._write(self._path, json.dumps(rows, indent=1) if rows else "")

    def note_plugstack_lines(self) -> None:
        """Write down which lines of plugstack.conf the package takes out when it is removed: those
        that setup has put there, but not where other hosts read them, too.

        Raises:
            InspectorError: the list cannot be written.
        """
        journals = sorted(self._host.at(JOURNAL_DIR).glob("*.json"))
        rows = [row for file in journals for row in json.loads(file.read_text("utf-8"))]
        self._write(PLUGSTACK_LINES, "".join(
            f"{row['what']}\t{'made' if row['before'] is None else 'kept'}\t{row['appended']}"
            for row in rows
            if row["appended"] and not self._host.is_shared(Path(row["what"]))
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
