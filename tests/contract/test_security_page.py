# SPDX-License-Identifier: Apache-2.0
"""The trust table of the security page says what the code does."""

import dataclasses
import importlib
import re

import pytest

from nccl_inspector.model import net as netmodel
from nccl_inspector.model import operation_label as labelmodel
from nccl_inspector.model import process as model
from tests.support.repository import REPO

_PAGE = REPO / "packaging" / "doc" / "security.md"
_BOUND = re.compile(r"`([a-z_.]+)\.([A-Z][A-Z_]+)` = ([0-9.e]+)")
_TEST = re.compile(r"`(tests/[a-z_/]+\.py)(?:::(\w+))?`")
# What a box's records are made of, but for what is not a field of theirs.
_RECORDS = (
    model.Facts, model.Gpu, model.Comm, model.Key, model.Histogram, model.Peer, model.Line,
    model.Window, labelmodel.Label, netmodel.Net, netmodel.NetQueue, model.Operation,
    model.SampleKind, model.Union, model.UnionWindow, model.Process,
)  # fmt: skip


def _rows(heading: str) -> list[list[str]]:
    """Return the cells of the table behind a heading, without its two first lines."""
    text = _PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


TRUST = _rows("The trust table")


@pytest.mark.parametrize("row", TRUST, ids=lambda row: row[0].strip("| "))
def test_each_claim_has_a_bound_that_the_code_has_and_a_test(row: list[str]) -> None:
    assert len(row) == 5
    for module, name, said in _BOUND.findall(row[2]):
        assert getattr(importlib.import_module(f"nccl_inspector.{module}"), name) == float(said)
    tests = _TEST.findall(row[4])
    assert tests
    for path, name in tests:
        assert f"def {name or 'test_'}" in (REPO / path).read_text()


def test_most_bounds_are_numbers_of_the_code() -> None:
    assert sum(bool(_BOUND.search(row[2])) for row in TRUST) >= len(TRUST) // 2


def test_every_field_of_a_box_is_named() -> None:
    told = {row[0].strip("| `"): row[1].strip("| ").split(", ") for row in _rows("Fields of a box")}
    for record in _RECORDS:
        fields = (
            [one.name for one in dataclasses.fields(record)]
            if dataclasses.is_dataclass(record)
            else list(record._fields)
        )
        assert told.pop(record.__name__) == fields
    assert not told


_READS = re.compile(
    r"\bChecks\(|\brun_limited\(|\bTree\(|\bregular_file\(|\bArrivals\(|\.accept\(|\.recv\("
    r"|\bjson\.loads\(|\burlopen\("
)
_PACKAGE = REPO / "python" / "nccl_inspector"


def test_each_reader_of_what_others_write_has_a_row() -> None:
    claims = {row[0].strip("| ") for row in TRUST}
    named: set[str] = set()
    for row in _rows("Readers of what others write"):
        assert row[0].strip("| ") in claims, "a reader needs a row of the trust table"
        named |= set(re.findall(r"`([a-z_.]+)`", row[1]))
    reading = {
        ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
        for path in _PACKAGE.rglob("*.py")
        if _READS.search(path.read_text("utf-8"))
    }
    assert reading - named == set()
    for one in named:
        assert (_PACKAGE / f"{one.replace('.', '/')}.py").is_file(), one
