# SPDX-License-Identifier: Apache-2.0
"""The rooms of tests/: no test lies flat, none needs another one, and helpers are in support/."""

import re

from tests.support.repository import PYTHON_DIR, REPO

TESTS = REPO / "tests"
PACKAGE = PYTHON_DIR / "nccl_inspector"
OTHERS = {"hooks", "packaging"}  # unit tests of what is not Python


def test_no_test_lies_flat() -> None:
    assert sorted(path.name for path in TESTS.glob("*.py")) == ["__init__.py", "conftest.py"]


def test_no_module_imports_a_test_module() -> None:
    """Nor does a program that a test starts, whose text is a string."""
    imports = re.compile(r"^\s*(?:from|import)\s+tests\b.*\btest_\w+", re.M)
    found = {
        str(path.relative_to(TESTS)): line[0].strip()
        for path in TESTS.rglob("*.py")
        for line in imports.finditer(path.read_text("utf-8"))
    }
    assert found == {}


def test_no_helper_is_called_a_test() -> None:
    assert list((TESTS / "support").rglob("test_*")) == []


def test_unit_has_the_rooms_of_the_product() -> None:
    rooms = {path.parent for path in (TESTS / "unit").rglob("test_*.py")} - {TESTS / "unit"}
    names = {str(room.relative_to(TESTS / "unit")) for room in rooms} - OTHERS
    missing = {name for name in names if not (PACKAGE / name).is_dir()}
    assert missing == {"agent/collect", "agent/orphans", "agent/publish"}, "parts of one room"
