# SPDX-License-Identifier: Apache-2.0
"""The layers of the plugin's C, as `make lint` checks them."""

import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]
CHECK = REPO / "plugin" / "rooms.py"


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, CHECK, root]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def plugin(folder: Path, **files: str) -> Path:
    """Make a plugin of files by path (`__` for a slash, `_c` or `_h` at the end) and text."""
    for name, text in files.items():
        path = folder / (name[:-2].replace("__", "/") + "." + name[-1])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_plugin_keeps_to_its_layers() -> None:
    done = check(REPO / "plugin")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_an_upward_include_is_refused(tmp_path: Path) -> None:
    upward = '#include <stdio.h>\n#include "hot/slots.h"\n'
    done = check(plugin(tmp_path, hot__slots_h="", box__gpu_c=upward))
    assert done.stdout == 'box/gpu.c: "hot/slots.h" is not below box\n'
    assert done.returncode == 1


def test_an_upward_include_of_a_header_is_refused(tmp_path: Path) -> None:
    root = plugin(tmp_path, inspector_h="", json__file_h='#include "inspector.h"\n')
    assert check(root).stdout == 'json/file.h: "inspector.h" is not below json\n'


def test_rooms_of_one_line_do_not_know_each_other(tmp_path: Path) -> None:
    root = plugin(tmp_path, net__proxy_h="", ask__mask_c='#include "net/proxy.h"\n')
    assert check(root).returncode == 1


def test_a_downward_include_is_allowed(tmp_path: Path) -> None:
    root = plugin(tmp_path, base__clock_h="", hot__slots_h="")
    plugin(root, hot__start_c='#include "hot/slots.h"\n')
    plugin(root, inspector_c='#include "base/clock.h"\n#include "metrics_table.h"\n')
    done = check(root)
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_circle_within_a_room_is_refused(tmp_path: Path) -> None:
    root = plugin(tmp_path, hot__a_h="", hot__b_h="", hot__a_c='#include "hot/b.h"\n')
    assert check(root).returncode == 0
    (root / "hot" / "b.c").write_text('#include "hot/a.h"\n')
    done = check(root)
    assert done.stdout.startswith("a circle of includes: hot/")
    assert done.returncode == 1


def test_an_include_is_written_from_the_plugins_folder_on(tmp_path: Path) -> None:
    root = plugin(tmp_path, hot__slots_h="", hot__slots_c='#include "slots.h"\n')
    assert check(root).stdout.startswith('hot/slots.c: "slots.h" is not a header\'s path')


def test_a_new_room_needs_a_place_in_the_order(tmp_path: Path) -> None:
    root = plugin(tmp_path, attic__old_c="")
    assert check(root).stdout == "attic/old.c: its room has no place in the order of rooms\n"


def test_every_room_is_in_the_table_of_contributing() -> None:
    text = (REPO / "CONTRIBUTING.md").read_text("utf-8")
    table = text[text.index("## The rooms of `plugin/`") :]
    rows = re.findall(r"^\| (`.*?) \|", table[: table.index("\n## ", 1)], re.MULTILINE)
    named = {re.sub(r"/$|\.[ch]$", "", room) for row in rows for room in re.findall("`(.*?)`", row)}
    order = re.search(r"ORDER = \((.*?)\n\)", CHECK.read_text("utf-8"), re.DOTALL)
    assert order
    assert named == {room for line in re.findall('"(.*?)"', order[1]) for room in line.split()}
