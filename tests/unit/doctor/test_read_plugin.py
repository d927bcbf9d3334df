# SPDX-License-Identifier: Apache-2.0
"""plugstack.conf and the entries of slurm.conf, as the doctor reads them."""

from pathlib import Path

import pytest

from nccl_inspector.doctor.facts import PlugStack, Slurm
from nccl_inspector.doctor.read_plugin import (
    entries,
    plugin_settings,
    read_hooks,
    read_plugstack,
    read_script,
)
from nccl_inspector.settings.config import parse_config

OURS = "spank_nccl_inspector.so"


def stack(tmp_path: Path, text: str, **config: str) -> PlugStack:
    path = tmp_path / "plugstack.conf"
    path.write_text(text)
    return read_plugstack(Slurm({"PlugStackConfig": str(path), **config}, None, None))


def test_our_line_is_found_among_others(tmp_path: Path) -> None:
    found = stack(
        tmp_path, f"# optional /no/{OURS}\nrequired /x/pyxis.so a=b\noptional /y/{OURS} sample=2\n"
    )
    assert [(one.word, str(one.path), one.words) for one in found.lines] == [
        ("optional", f"/y/{OURS}", ("sample=2",))
    ]
    assert found.library is not None
    assert found.library.problem == "No such file or directory"


def test_included_files_are_read_by_pattern_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "plugstack.conf.d").mkdir()
    (tmp_path / "plugstack.conf.d" / "50.conf").write_text(f"optional /y/{OURS}\n")
    found = stack(tmp_path, "include plugstack.conf.d/*.conf\n")
    assert [str(one.path) for one in found.lines] == [f"/y/{OURS}"]
    assert len(found.files) == 2


def test_a_file_that_includes_itself_is_read_once(tmp_path: Path) -> None:
    found = stack(tmp_path, f"include plugstack.conf\noptional /y/{OURS}\n")
    assert len(found.lines) == 1


def test_a_bare_name_is_looked_up_in_slurms_directories(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / OURS).write_text("")
    found = stack(tmp_path, f"optional {OURS}\n", PluginDir=f"{tmp_path}/a:{tmp_path}/b")
    assert found.lines[0].path == tmp_path / "b" / OURS


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("colour=red", "unknown word"),
        ("prom", "unknown word"),
        ("sample=x", "sample: not a number"),
        ("listen=127.0.0.1:1", "listen is the agent's"),
        ("conf=/nonexistent.conf", "/nonexistent.conf: no such file"),
    ],
)
def test_words_that_the_plugin_refuses_are_told(tmp_path: Path, word: str, reason: str) -> None:
    refused = stack(tmp_path, f"optional /y/{OURS} {word}\n").lines[0].refused
    assert len(refused) == 1
    assert refused[0].startswith(reason)


def test_words_and_conf_decide_where_the_plugin_looks(tmp_path: Path) -> None:
    conf = tmp_path / "own.conf"
    conf.write_text("hooks = /opt/hooks\nprofiler = /opt/a.so\n")
    found = stack(tmp_path, f"optional /y/{OURS} conf={conf} profiler=/opt/b.so\n")
    config = plugin_settings(found, parse_config("", "test"))
    assert (str(config.hooks), str(config.profiler)) == ("/opt/hooks", "/opt/b.so")


def test_there_may_be_no_plugstack(tmp_path: Path) -> None:
    path = tmp_path / "none" / "plugstack.conf"
    found = read_plugstack(Slurm({"PlugStackConfig": str(path)}, None, None))
    assert found.lines == ()


def test_a_pattern_finds_dangling_links_and_no_hidden_files(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("")
    (tmp_path / "10-link").symlink_to("/usr/lib/nccl-inspector/none")
    found = read_script("Prolog", f"{tmp_path}/*")
    assert [one.path.name for one in found.files] == ["10-link"]
    assert found.files[0].dangling
    assert read_script("Prolog", f"{tmp_path}/*.sh").files == ()


def test_several_entries_of_one_key_are_told_apart() -> None:
    config = {"Prolog": "/a,/b/*,name-of-configless"}
    assert entries(config, "Prolog") == ["/a", "/b/*"]


def test_without_a_slurmd_it_cannot_tell_what_slurmd_has_loaded(tmp_path: Path) -> None:
    config = parse_config(f"hooks = {tmp_path}\n", "test")
    found = read_hooks(Slurm({}, None, None), config, ())
    assert str(found.slurmd_has_plugin).startswith("CannotTell(reason='slurmd does not run")
    assert [str(one.files[0].path) for one in found.ours] == [
        f"{tmp_path}/{kind}/50-nccl-inspector.sh" for kind in ("prolog", "epilog")
    ]
