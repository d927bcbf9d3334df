# SPDX-License-Identifier: Apache-2.0
"""A service's note says what it runs with, and is believed only while that process runs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import parse_config
from nccl_inspector.settings.in_force import (
    AGENT,
    CONTROLLER,
    Note,
    differences,
    read_note,
    running_note,
    texts,
    this_process,
    write_note,
)
from nccl_inspector.system import clock

DEFAULTS = parse_config("", "test")


def note(text: str = "", reader: str = AGENT) -> Note:
    return Note(this_process(), texts(parse_config(text, "test"), reader))


def test_a_note_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = replace(note("listen = [::]:9435\n"), refused="why not", trouble="full", readings=3)
    write_note(tmp_path / "agent.json", written, 0o644)
    assert read_note(tmp_path / "agent.json") == written
    assert running_note(tmp_path / "agent.json") == written
    assert (tmp_path / "agent.json").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["agent.json"]


def test_each_setting_that_a_service_reads_is_compared_with_both_values() -> None:
    assert differences(note(), DEFAULTS, AGENT) == ()
    new = parse_config("report_dir = /b\nlisten = 127.0.0.1:9435\nagent_interval = 1m\n", "test")
    assert [str(one) for one in differences(note("report_dir = /a\n"), new, AGENT)] == [
        "report_dir: it runs with /a, configured is /b",
        "agent_interval: it runs with 5s, configured is 60s",
        "listen: it runs with (empty), configured is 127.0.0.1:9435",
    ]


def test_what_a_service_does_not_keep_is_not_compared() -> None:
    new = parse_config("default = prom\nmail_wait = 1s\nsummary_days = 7\n", "test")
    assert differences(note(), new, AGENT) == ()
    names = [one.name for one in differences(note(reader=CONTROLLER), new, CONTROLLER)]
    assert names == ["summary_days"]


def test_what_the_command_line_says_is_not_compared() -> None:
    own = Note(this_process(), texts(DEFAULTS, AGENT, {"report_dir"}))
    assert differences(own, parse_config("report_dir = /b\n", "test"), AGENT) == ()


@pytest.mark.parametrize(
    "url", ["postgresql://me:sesame@host/db", "postgresql://host/db?user=me&password=sesame"]
)
def test_no_password_is_in_a_note_or_in_what_is_said_of_it(url: str) -> None:
    config = parse_config(f"store_url = {url}\ncluster = one\n", "test")
    own = Note(this_process(), texts(config, CONTROLLER))
    assert "sesame" not in str(own)
    assert differences(own, config, CONTROLLER) == ()
    assert "sesame" not in str(differences(own, DEFAULTS, CONTROLLER)[0])


def test_what_a_process_of_the_past_has_left_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    code = (
        "import sys; from pathlib import Path; from nccl_inspector.settings.in_force import *\n"
        "write_note(Path(sys.argv[1]), Note(this_process(), {}), 0o644)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert read_note(path) is not None
    assert running_note(path) is None
    here = this_process()
    for other in ({"start": "1"}, {"boot": "another", "space": "elsewhere"}, {"pid": 1}):
        write_note(path, Note(replace(here, **other), {}), 0o644)
        assert running_note(path) is None, other
    write_note(path, Note(replace(here, space="elsewhere"), {}), 0o644)
    found = running_note(path)
    assert found is not None
    assert found.is_alive() is None, "it cannot be seen from here"


def test_in_a_container_a_service_may_see_another_boot_id_than_the_command(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    write_note(path, Note(replace(this_process(), boot="another"), {}), 0o644)
    assert running_note(path) is not None


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.with_name("elsewhere").write_text(json.dumps({}))
    path.symlink_to("elsewhere")


def make_text(path: Path) -> None:
    path.write_text('{"process": {"pid": "x"}}')


def make_list(path: Path) -> None:
    path.write_text("[]")


@pytest.mark.parametrize("make", [make_fifo, make_link, make_text, make_list])
def test_something_else_in_its_place_blocks_nobody_and_says_nothing(
    tmp_path: Path, make: object
) -> None:
    path = tmp_path / "agent.json"
    make(path)  # type: ignore[operator]
    with pytest.raises(InspectorError, match=r"agent\.json"):
        read_note(path)
    assert running_note(path) is None


def test_where_no_boot_has_an_id_a_service_starts_and_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_BOOT_ID", tmp_path / "none")
    me = this_process()
    assert me.boot == ""
    assert Note(me, {}).is_alive() is True
