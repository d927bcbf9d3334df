# SPDX-License-Identifier: Apache-2.0
"""Show what a host needs, do it, or undo it: all or nothing."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nccl_inspector.errors import InspectorError
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.journal import JOURNAL_DIR, Change, Journal
from nccl_inspector.setup.steps import Look, State, Step, undo


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
    place = host.at(JOURNAL_DIR)
    try:
        host.make_parents(JOURNAL_DIR)
        place.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise InspectorError(f"{JOURNAL_DIR}: cannot be made: {err.strerror}") from err
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InspectorError("another nccl-inspector setup runs on this host") from None
    finally:
        os.close(fd)


def look(host: Host, role: str, steps: Sequence[Step]) -> Shown:
    """Return how the steps stand; nothing is changed.

    Raises:
        InspectorError: a file of the host cannot be read.
    """
    journal = Journal(host, role)
    return Shown(tuple(step.look(host, journal) for step in steps))


def _take_back(host: Host, changes: Sequence[Change]) -> list[str]:
    """Undo changes, the newest first; return what could not be undone, and why."""
    stays = []
    for change in reversed(changes):
        try:
            if said := undo(host, change):
                stays.append(said)
        except InspectorError as err:
            stays.append(str(err))
    return stays


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
        except InspectorError as err:
            stays = _take_back(host, journal.of_this_run)
            journal.save(before)
            left = f"; but {'; '.join(stays)}" if stays else ""
            raise InspectorError(f"{err}. What was done before it is undone{left}") from err
        finally:
            journal.note_plugstack_lines()
    return shown


def take_back_all(host: Host, role: str) -> list[str]:
    """Undo all that `apply` has done for a role; return what stays, and why.

    Raises:
        InspectorError: the journal cannot be read or written.
    """
    with _only_one(host):
        journal = Journal(host, role)
        stays = _take_back(host, journal.changes)
        journal.save(())
        journal.note_plugstack_lines()
        return stays


def describe(shown: Shown, *, applied: bool) -> list[str]:
    """Return the lines that are printed: each step, and below it what would be, or was, written."""
    lines = []
    for one in shown.looks:
        word = "changed" if applied and one.state is State.TO_DO else one.state
        lines.append(f"  {word:<8} {one.text}")
        if one.state is not State.DONE:
            lines += [f"             {line}" for line in one.lines]
    return lines
