# SPDX-License-Identifier: Apache-2.0
"""Bring settings into force: services read them again, and are asked whether they did."""

import time
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.exposition.page import last_pass_s, page_url, read_page
from nccl_inspector.settings.config import Config
from nccl_inspector.settings.in_force import AGENT, Note, differences, running_note
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.journal import Journal
from nccl_inspector.setup.steps import Look, MakesNothing, State

AGENT_UNIT = "nccl-inspector-agent.service"
CONTROLLER_UNIT = "nccl-inspector-controller.service"
WAIT_S = 30.0  # a pass of the agent takes some 12 s at most
_LOOK_S = 0.1
_ANSWER_S = 5.0


def reread_settings(host: Host) -> None:
    """Let services that run read the settings that are there now; one that does not run does so
    when it starts."""
    if host.is_booted:
        for unit in (AGENT_UNIT, CONTROLLER_UNIT):
            host.ask("systemctl", "try-reload-or-restart", unit)


def _has_read(note: Note, before: Note | None) -> bool:
    """Tell whether a service has read its settings since it wrote the note `before`."""
    return before is None or (note.process, note.readings) != (before.process, before.readings)


@dataclass(frozen=True, slots=True)
class InForceStep(MakesNothing):
    """A service that runs with the settings of `config`; `note`: where it says with which."""

    unit: str
    reader: str
    note: Path
    config: Config

    def look(self, host: Host, journal: Journal) -> Look:
        """Compare what runs with what is wanted; without systemd it is a thing to do by hand."""
        del journal
        starts = Look(State.DONE, f"{self.unit} starts with these settings")
        if not host.is_live:
            return starts
        runs = f"{self.unit} runs with these settings"
        note = self._note(host)
        changes = self._changes(note)
        if not host.is_booted:
            if note is None:
                return starts
            if not changes:
                return Look(State.DONE, runs)
            how = f"kill -HUP {note.process.pid}" if self._reloads(note) else "start it again"
            return Look(State.BY_HAND, f"{self.unit}: it runs with other settings", (*changes, how))
        if not self._is_active(host):
            return Look(State.TO_DO, f"{self.unit}: see that it runs with these settings",
                        afterwards=runs)  # fmt: skip
        if note is None:
            return Look(State.TO_DO, f"{self.unit}: restart, because it does not say with which "
                        "settings it runs", afterwards=f"{runs} (restarted)")  # fmt: skip
        if not changes:
            return Look(State.DONE, runs)
        word = "reload" if self._reloads(note) else "restart"
        return Look(State.TO_DO, f"{self.unit}: {word}, because it runs with other settings",
                    changes, f"{runs} ({word}ed)")  # fmt: skip

    def _is_active(self, host: Host) -> bool:
        return host.ask("systemctl", "is-active", self.unit).strip() == "active"

    def _note(self, host: Host) -> Note | None:
        """Return what the running service says; None: it says nothing."""
        note = running_note(self.note)
        if note is None:
            return None
        pid = host.ask("systemctl", "show", "--property=MainPID", "--value", self.unit).strip()
        return note if pid in ("", "0", str(note.process.pid)) else None

    def _changes(self, note: Note | None) -> tuple[str, ...]:
        if note is None:
            return ()
        return tuple(str(one) for one in differences(note, self.config, self.reader))

    def _reloads(self, note: Note) -> bool:
        """Tell whether it takes these changes without a restart."""
        changed = {one.name for one in differences(note, self.config, self.reader)}
        return self.reader == AGENT and "run_dir" not in changed

    def apply(self, host: Host, journal: Journal) -> None:
        """Let it read the settings again, and wait until it says that it uses them."""
        del journal
        before = self._note(host)
        if before is not None and not self._changes(before):
            return  # a step before this one has started it
        if before is not None and self._reloads(before):
            host.call(["systemctl", "reload", self.unit])
        else:
            host.call(["systemctl", "restart", self.unit])
        until_s = time.monotonic() + WAIT_S
        while (note := self._note(host)) is None or self._changes(note):
            if note is not None and note.refused and _has_read(note, before):
                raise InspectorError(f"{self.unit} refuses the settings: {note.refused}")
            if time.monotonic() > until_s:
                raise InspectorError(self._why_not(note))
            time.sleep(_LOOK_S)

    def _why_not(self, note: Note | None) -> str:
        if note is None:
            return f"{self.unit} does not come up with these settings: journalctl -u {self.unit}"
        changes = "; ".join(self._changes(note))
        return f"{self.unit} does not take the settings ({changes}): journalctl -u {self.unit}"


@dataclass(frozen=True, slots=True)
class AnswerStep(MakesNothing):
    """The agent's metrics, at the address of the setting `listen`; `note`: the agent's."""

    listen: str
    note: Path

    def look(self, host: Host, journal: Journal) -> Look:
        """Ask for them."""
        del journal
        if not host.is_live or not (host.is_booted or running_note(self.note)):
            return Look(State.DONE, f"metrics: the agent answers at {self.listen} once it runs")
        answers = f"metrics: the agent answers at {self.listen}"
        why = self._why_not()
        if not why:
            return Look(State.DONE, answers)
        if not host.is_booted:
            return Look(State.BY_HAND, f"metrics: the agent does not answer at {self.listen}: "
                        f"{why}")  # fmt: skip
        return Look(State.TO_DO, f"metrics: see that the agent answers at {self.listen}",
                    afterwards=answers)  # fmt: skip

    def _why_not(self) -> str:
        """Return why no agent answers; empty: it does."""
        try:
            page = read_page(page_url(self.listen), _ANSWER_S)
        except InspectorError as err:
            return str(err)
        return "what answers there has no series of the agent" if last_pass_s(page) is None else ""

    def apply(self, host: Host, journal: Journal) -> None:
        """Wait until it answers."""
        del host, journal
        until_s = time.monotonic() + WAIT_S
        while why := self._why_not():
            if time.monotonic() > until_s:
                raise InspectorError(f"metrics: the agent does not answer at {self.listen}: {why}")
            time.sleep(_LOOK_S)
