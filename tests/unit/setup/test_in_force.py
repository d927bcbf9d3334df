# SPDX-License-Identifier: Apache-2.0
"""After `setup --apply` a service runs with what is configured, or setup says why it does not.

The agent is a real one. systemctl is played: it notes how it was called, and signals the agent.
"""

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config, read_config
from nccl_inspector.settings.in_force import AGENT, CONTROLLER, agent_note, running_note
from nccl_inspector.setup import in_force
from nccl_inspector.setup.host import Host
from nccl_inspector.setup.in_force import AGENT_UNIT, CONTROLLER_UNIT, AnswerStep, InForceStep
from nccl_inspector.setup.journal import Journal
from nccl_inspector.setup.steps import Look, State
from tests.support.agent_service import Service, service
from tests.support.processes import free_address

SYSTEMCTL = """#!/bin/sh
echo "$@" >>"$0.calls"
case $1 in
is-active) [ -e "$0.pid" ] && echo active || { echo inactive; exit 3; } ;;
show) cat "$0.pid" 2>/dev/null || echo 0 ;;
reload) [ -e "$0.deaf" ] || kill -HUP "$(cat "$0.pid")" ;;
restart) [ ! -e "$0.broken" ] ;;
*) exit 64 ;;
esac
"""


class Booted(Host):
    """This host, where systemd is said to run."""

    @property
    def is_booted(self) -> bool:
        return True


class Systemd:
    """The played systemctl."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(SYSTEMCTL)
        path.chmod(0o755)

    def runs(self, pid: int) -> None:
        """Let systemd know the main process of the unit."""
        self.path.with_name("systemctl.pid").write_text(f"{pid}\n")

    def is_(self, word: str) -> None:
        """Make reloads do nothing (deaf), or restarts fail (broken)."""
        self.path.with_name(f"systemctl.{word}").touch()

    def changes(self) -> list[str]:
        """Return the calls that change something."""
        calls = self.path.with_name("systemctl.calls").read_text().splitlines()
        return [one for one in calls if one.split()[0] not in ("is-active", "show")]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return Systemd(tmp_path / "bin" / "systemctl")


@pytest.fixture
def agent(tmp_path: Path, systemd: Systemd) -> Iterator[Service]:
    with service(tmp_path, "cluster = old\n") as running:
        running.until(agent_note(read_config(running.conf)).exists, "its note")
        systemd.runs(running.process.pid)
        yield running


def configure(agent: Service, text: str) -> Config:
    """Change the file, and say nothing to the agent."""
    base = f"run_dir = {agent.run_dir}\nreport_dir = {agent.run_dir}\nagent_interval = 100ms\n"
    agent.conf.write_text(base + text)
    return read_config(agent.conf)


def step_for(config: Config) -> InForceStep:
    return InForceStep(AGENT_UNIT, AGENT, agent_note(config), config)


def look(step: InForceStep | AnswerStep) -> Look:
    return step.look(Booted(), Journal(Host(Path("/nowhere")), "node"))


def act(step: InForceStep | AnswerStep) -> None:
    step.apply(Booted(), Journal(Host(Path("/nowhere")), "node"))


def test_a_changed_setting_is_in_force_afterwards(agent: Service, systemd: Systemd) -> None:
    assert look(step_for(configure(agent, "cluster = old\n"))).state is State.DONE
    config = configure(agent, "cluster = new\n")
    found = look(step_for(config))
    assert (found.state, found.text, found.lines) == (
        State.TO_DO,
        f"{AGENT_UNIT}: reload, because it runs with other settings",
        ("cluster: it runs with old, configured is new",),
    )
    act(step_for(config))
    note = running_note(agent_note(config))
    assert note is not None
    assert (note.settings["cluster"], note.process.pid) == ("new", agent.process.pid)
    agent.until(lambda: 'agent_jobs{cluster="new"' in agent.own(), "a pass with it")
    assert look(step_for(config)).state is State.DONE
    act(step_for(config))
    assert systemd.changes() == [f"reload {AGENT_UNIT}"], "nothing differs: nothing is restarted"


def test_a_setting_that_jobs_read_restarts_nothing(agent: Service, systemd: Systemd) -> None:
    config = configure(agent, "cluster = old\ndefault = prom\nsummary_days = 3\n")
    assert look(step_for(config)).state is State.DONE
    act(step_for(config))
    assert systemd.changes() == []


def test_settings_that_the_agent_refuses_are_no_success(agent: Service) -> None:
    config = configure(agent, "cluster = new\nlisten = 192.0.2.1:9435\n")
    for _ in range(2):  # what it refused the first time is not taken for the second answer
        with pytest.raises(InspectorError) as caught:
            act(step_for(config))
        assert str(caught.value) == (
            f"{AGENT_UNIT} refuses the settings: listen = 192.0.2.1:9435: Cannot assign requested "
            "address"
        )
    found = look(step_for(config))
    assert (found.state, len(found.lines)) == (State.TO_DO, 2)
    act(step_for(configure(agent, "cluster = newest\n")))


def test_an_agent_that_takes_no_notice_is_no_success(
    agent: Service, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_force, "WAIT_S", 0.5)
    systemd.is_("deaf")
    config = configure(agent, "cluster = new\n")
    with pytest.raises(InspectorError, match=r"does not take the settings \(cluster: it runs with"):
        act(step_for(config))


def test_a_service_that_says_nothing_is_restarted(
    agent: Service, systemd: Systemd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(in_force, "WAIT_S", 0.5)
    config = configure(agent, "cluster = old\n")
    silent = InForceStep(CONTROLLER_UNIT, CONTROLLER, tmp_path / "running.json", config)
    found = look(silent)
    assert (found.state, "restart, because it does not say" in found.text) == (State.TO_DO, True)
    with pytest.raises(InspectorError, match="does not come up with these settings"):
        act(silent)
    assert systemd.changes() == [f"restart {CONTROLLER_UNIT}"]
    systemd.is_("broken")
    with pytest.raises(InspectorError, match="systemctl restart"):
        act(silent)


def test_the_note_of_another_process_than_systemds_counts_for_nothing(
    agent: Service, systemd: Systemd
) -> None:
    config = configure(agent, "cluster = old\n")
    assert look(step_for(config)).state is State.DONE
    systemd.runs(os.getpid())
    assert "does not say" in look(step_for(config)).text


@pytest.fixture
def other_page() -> Iterator[str]:
    """A server that answers, and is no agent."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"up 1\n")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_agent_is_said_to_answer_only_if_it_has_answered(
    agent: Service, monkeypatch: pytest.MonkeyPatch, other_page: str
) -> None:
    monkeypatch.setattr(in_force, "WAIT_S", 0.3)
    address = free_address()
    config = configure(agent, f"cluster = old\nlisten = {address}\n")
    answers = AnswerStep(address, agent_note(config))
    found = look(answers)
    assert (found.state, "answers at" in found.text.replace("see that the agent answers", "")) == (
        State.TO_DO, False,
    )  # fmt: skip
    with pytest.raises(InspectorError, match=r"does not answer at .*Connection refused"):
        act(answers)
    with pytest.raises(InspectorError, match="has no series of the agent"):
        act(AnswerStep(other_page, agent_note(config)))
    monkeypatch.setattr(in_force, "WAIT_S", 30.0)
    act(step_for(config))
    act(answers)
    found = look(answers)
    assert (found.state, found.text) == (State.DONE, f"metrics: the agent answers at {address}")


@pytest.mark.parametrize("address", ["0.0.0.0", "[::]", "[::1]"])  # noqa: S104
def test_an_agent_that_listens_everywhere_is_asked_here(agent: Service, address: str) -> None:
    if "[" in address:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6: this machine has no address ::1")
    port = free_address().rpartition(":")[2]
    config = configure(agent, f"cluster = old\nlisten = {address}:{port}\n")
    act(step_for(config))
    act(AnswerStep(config.listen, agent_note(config)))


def test_without_systemd_what_differs_is_left_to_the_admin(
    agent: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Booted, "is_booted", property(lambda _self: False))
    config = configure(agent, f"cluster = new\nlisten = {free_address()}\n")
    found = look(step_for(config))
    assert (found.state, found.lines[0], found.lines[-1]) == (
        State.BY_HAND,
        "cluster: it runs with old, configured is new",
        f"kill -HUP {agent.process.pid}",
    )
    found = look(AnswerStep(config.listen, agent_note(config)))
    assert (found.state, "does not answer at" in found.text) == (State.BY_HAND, True)
