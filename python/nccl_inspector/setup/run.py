# SPDX-License-Identifier: Apache-2.0
"""Show what a host needs, do it, or undo it: all or nothing."""

import fcntl
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import DEFAULT_CONF
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.in_force import reread_settings
from nccl_inspector.setup.journal import JOURNAL_DIR, Change, Journal, Key
from nccl_inspector.setup.steps import Look, State, Stay, Step, undo


@dataclass(frozen=True, slots=True)
class Shown:
    """How all steps of a role stand."""

    looks: tuple[Look, ...]

    def has(self, state: State) -> bool:
        """Tell whether a step stands so."""
        return any(one.state is state for one in self.looks)


@contextmanager
def _only_one(host: Host) -> Iterator[None]:
    """Keep a second setup of this host out.

    Raises:
        InspectorError: another one runs, or the journal's directory cannot be made.
    """
    with ExitStack() as stack:
        try:
            host.make_parents(JOURNAL_DIR)
            tree = stack.enter_context(host.tree())
            with suppress(FileExistsError):
                tree.make_directory(JOURNAL_DIR, 0o700)
            fd = stack.enter_context(tree.directory(JOURNAL_DIR))
        except OSError as err:
            raise InspectorError(f"{JOURNAL_DIR}: cannot be made: {err.strerror}") from err
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InspectorError("another nccl-inspector setup runs on this host") from None
        yield


def look(host: Host, role: str, steps: Sequence[Step]) -> Shown:
    """Return how the steps stand; nothing is changed.

    Raises:
        InspectorError: a file of the host cannot be read.
    """
    journal = Journal(host, role)
    return Shown(tuple(step.look(host, journal) for step in steps))


def _take_back(host: Host, changes: Sequence[Change]) -> list[tuple[Change, Stay]]:
    """Undo changes, the newest first; return what stays, and why.

    A service that goes on running reads the settings again that are there now.
    """
    found = [(change, undo(host, change)) for change in reversed(changes)]
    if any(change.key == ("file", str(DEFAULT_CONF)) for change in changes):
        reread_settings(host)
    return [(change, stay) for change, stay in found if stay is not None]


def apply(host: Host, role: str, steps: Sequence[Step]) -> Shown:
    """Do what is to do; return how the steps stood before.

    If a step fails, those that were done before it are undone.

    Raises:
        InspectorError: a step is refused, or failed; the host is as it was then, except for what
            the text names.
    """
    with _only_one(host):
        journal = Journal(host, role)
        before = list(journal.changes)
        shown = Shown(tuple(step.look(host, journal) for step in steps))
        if refused := [one for one in shown.looks if one.state is State.REFUSED]:
            raise InspectorError(f"nothing was changed: {refused[0].text}")
        try:
            for step, found in zip(steps, shown.looks, strict=True):
                if found.state is State.TO_DO:
                    step.apply(host, journal)
                elif found.state is State.DONE:
                    journal.claim(step.makes(host))
        except InspectorError as err:
            stays = _take_back(host, journal.of_this_run)
            known = {one.key for one in before}
            again = [change for change, stay in stays if not stay.is_final]
            journal.save([*before, *(one for one in again if one.key not in known)])
            left = f"; but {'; '.join(stay.text for _, stay in stays)}" if stays else ""
            raise InspectorError(f"{err}. What was done before it is undone{left}") from err
        finally:
            journal.note_plugstack_lines()
    return shown


@dataclass(frozen=True, slots=True)
class Undone:
    """What `--undo` has left; `pending`: it may go when it is undone once more."""

    stays: tuple[str, ...]
    pending: tuple[str, ...]


def _is_own(change: Change, own: Collection[Key]) -> bool:
    if change.kind != "parent":
        return change.key in own
    return any(Path(change.what) in Path(what).parents for kind, what in own if kind != "unit")


def _not_own(change: Change) -> Stay | None:
    """Return why something stays that no step makes now; None: a directory that is not worth it."""
    if change.kind == "parent":
        return None
    is_final = change.kind != "file"
    text = f"{change.what} stays: the journal names it, but no step with this site file makes it"
    return Stay(text if is_final else f"{text} (--site)", is_final)


def take_back_all(host: Host, role: str, own: Collection[Key]) -> Undone:
    """Undo all that `apply` has done for a role and that no other role needs.

    `own`: what the steps of this release make (plan.own_changes). Nothing else is touched, whatever
    the journal says. What could not be undone now stays in the journal, so that this can be done
    once more.

    Raises:
        InspectorError: the journal cannot be read or written.
    """
    with _only_one(host):
        journal = Journal(host, role)
        mine = journal.of_role()
        only_mine = [one for one in mine if one.roles == (role,)]
        left = _take_back(host, [one for one in only_mine if _is_own(one, own)])
        strange = [(one, _not_own(one)) for one in only_mine if not _is_own(one, own)]
        left += [(one, stay) for one, stay in strange if stay is not None]
        again = {change.key for change, stay in left if not stay.is_final}
        kept = [
            one if one.key in again else one.without(role)
            for one in journal.changes
            if one.roles != (role,) or one.key in again
        ]
        # A directory above others' files goes with the last of those.
        heirs = {name for one in kept for name in one.roles}
        parents = [
            replace(one, roles=tuple(sorted(heirs)))
            for one in mine
            if one.roles == (role,) and one.kind == "parent" and host.is_directory(Path(one.what))
        ]
        journal.save([*(parents if heirs else ()), *kept])
        journal.note_plugstack_lines()
        needed = [
            f"{one.what} stays: setup {' and setup '.join(one.without(role).roles)} needs it"
            for one in mine
            if one.roles != (role,) and one.kind != "parent"
        ]
        return Undone(
            (*needed, *(stay.text for _, stay in left if stay.is_final)),
            tuple(stay.text for _, stay in left if not stay.is_final),
        )


def describe(shown: Shown, *, applied: bool) -> list[str]:
    """Return the lines that are printed: each step, and below it what would be, or was, written."""
    lines = []
    for one in shown.looks:
        is_changed = applied and one.state is State.TO_DO
        word = "changed" if is_changed else one.state
        text = one.afterwards if is_changed and one.afterwards else one.text
        lines.append(f"  {word:<8} {text}")
        if one.state is not State.DONE:
            lines += [f"             {line}" for line in one.lines]
    return lines
