# SPDX-License-Identifier: Apache-2.0
"""The table says of each setting which service keeps it, and so does the code.

`setup` and `doctor` compare only those: one that the table forgets would never be in force.
"""

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from nccl_inspector.settings.config import load_settings
from tests.support.repository import REPO

PACKAGE = REPO / "python" / "nccl_inspector"
# What a service starts with, and the names that hold a Config there.
STARTS = {"agent": "agent/service.py", "controller": "controller/service.py"}
HOLDERS = {"config", "_config", "new", "old"}


@cache
def nodes(file: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse((PACKAGE / file).read_text())))


def imported(file: str) -> Iterator[str]:
    """Return the modules of the package that a module imports, anywhere in it."""
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nccl_inspector."):
            path = str(node.module).partition(".")[2].replace(".", "/")
            if (PACKAGE / f"{path}.py").exists():
                yield f"{path}.py"


def loaded(start: str) -> set[str]:
    found: set[str] = set()
    rest = {start}
    while rest:
        file = rest.pop()
        found.add(file)
        rest |= set(imported(file)) - found
    return found


def read_by(file: str) -> Iterator[str]:
    """Return the fields of Config that a module reads."""
    for node in nodes(file):
        if isinstance(node, ast.Attribute):
            holder = node.value
            name = getattr(holder, "attr", getattr(holder, "id", ""))
            if name in HOLDERS:
                yield node.attr


@pytest.mark.parametrize("reader", STARTS)
def test_what_a_service_reads_is_what_the_table_says_that_it_keeps(reader: str) -> None:
    settings = load_settings()
    names = {setting.field: name for name, setting in settings.items()}
    files = loaded(STARTS[reader])
    if reader == "controller":
        files |= loaded("controller/wiring.py")  # which its command gives it
    files.remove("settings/in_force.py")  # it says where the note is, of either service
    found = {names[one] for file in files for one in read_by(file) if one in names}
    said = {name for name, setting in settings.items() if reader in setting.readers}
    assert found == said


def test_what_the_spank_plugin_reads_is_read_by_each_job() -> None:
    for setting in load_settings().values():
        assert ("job" in setting.readers) == (setting.scope != "agent"), setting.name
        assert setting.readers <= {"job", "agent", "controller", "command"}, setting.name
