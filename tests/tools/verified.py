"""The page of the docs that says what was run on which Slurm, made from the test runs themselves.

A test that is a line of the page is marked `case(section, words)`; several tests may share a
line. A test may also leave a whole table, see `leave_table`. Each pytest session on a cluster adds
what it saw to build/verified/<release>.json; `python -m tests.tools.verified` writes
packaging/doc/verified.md of these, and with --check says where the page and the runs differ.
"""

import argparse
import difflib
import fcntl
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support.repository import BUILD, DOC, REPO

PAGE = DOC / "verified.md"
RESULTS = BUILD / "verified"

SECTIONS = (
    "Options", "Policy of a site's default", "Identities", "Installation", "Lifecycle", "Bad input",
)  # fmt: skip
_WORDS = {"passed": "yes", "failed": "**NO**", "skipped": "n/a"}
_RANK = ("skipped", "passed", "failed")  # of several tests of a line the last of these counts

Rows = list[list[str]]

_HEAD = """# Verified

Made by `make verified` from the test runs; no line is written by hand. Each line was run on a real
slurmctld, slurmd and munged of that Slurm release, with four nodes on one machine. n/a: this
release does not have it (no such flag, no pyslurm, or no Open MPI, which comes with the first
release only). 22.05, 24.11 and 26.05 are Debian's. 25.11 was built from SchedMD's sources, without
Lua, and CI does not run it.
"""


class Session:
    """What this pytest session has seen; written at its end when a cluster was up."""

    def __init__(self) -> None:
        self.slurm = ""  # version of the session's cluster
        self.part = False  # some cases have been left out
        self.lines: dict[str, dict[str, str]] = {}
        self.tables: dict[str, Rows] = {}

    def add(self, section: str, words: str, outcome: str) -> None:
        if section not in SECTIONS:
            raise ValueError(f"not a section of the page: {section}")
        known = self.lines.setdefault(section, {}).get(words, "skipped")
        self.lines[section][words] = max(known, outcome, key=_RANK.index)

    def write(self) -> None:
        """Add to what earlier sessions on this release have seen."""
        if not self.slurm or not (self.lines or self.tables):
            return
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{release(self.slurm)}.json"
        with (RESULTS / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            seen = read(path)
            for section, lines in self.lines.items():
                seen["lines"].setdefault(section, {}).update(lines)
            seen["tables"].update(self.tables)
            seen["part"] = self.part or bool(seen.get("part"))
            path.write_text(json.dumps(seen, indent=1, sort_keys=True) + "\n")


SESSION = Session()


def release(version: str) -> str:
    """22.05 of 22.05.8."""
    return ".".join(version.split(".")[:2])


def leave_table(title: str, rows: Rows) -> None:
    """Put a table on the page, under Options; its first row is the heading."""
    SESSION.tables[title] = rows


def read(path: Path) -> dict[str, Any]:
    """The results in a file, none when there is no such file."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {"lines": {}, "tables": {}}
    return found


def _table(rows: Rows) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield "|" + "---|" * len(row)


def render(results: dict[str, dict[str, Any]]) -> str:
    """The page, of results by release."""
    releases = sorted(results)
    lines = [_HEAD]
    for section in SECTIONS:
        tables = list(_options(results)) if section == "Options" else []
        rows = [["", *releases]]
        columns = [results[name]["lines"].get(section, {}) for name in releases]
        known = sorted({words for column in columns for words in column})
        for words in known:
            seen = [column.get(words) for column in columns]
            rows.append([words, *(_WORDS[one] if one else "not run" for one in seen)])
        if known or tables:
            lines += [f"## {section}", "", *tables]
        lines += [*_table(rows), ""] if known else []
    return "\n".join(lines)


def _options(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Each table once for all releases that agree on it."""
    titles = sorted({title for one in results.values() for title in one["tables"]})
    for title in titles:
        versions: dict[str, list[str]] = {}
        for name in sorted(results):
            if title in results[name]["tables"]:
                rows = json.dumps(results[name]["tables"][title])
                versions.setdefault(rows, []).append(name)
        for rows, names in versions.items():
            yield from (f"{title} (Slurm {', '.join(names)})", "", *_table(json.loads(rows)), "")


def restrict(page: str, releases: Sequence[str]) -> str:
    """The page as it would be had only these releases been run: other columns are taken out."""
    lines, kept = [], list[int]()
    for line in page.splitlines():
        cells = line.split("|")
        if line.startswith("|  | "):
            kept = [
                at for at, cell in enumerate(cells) if at < 2 or cell.strip() in (*releases, "")
            ]
        elif not line.startswith("|"):
            kept = []
            if "(Slurm " in line:
                title, _, names = line.rstrip(")").partition(" (Slurm ")
                names = ", ".join(name for name in names.split(", ") if name in releases)
                line = f"{title} (Slurm {names})"
        lines.append("|".join(cells[at] for at in kept if at < len(cells)) if kept else line)
    return "\n".join(lines)


def check(page: str, results: dict[str, dict[str, Any]]) -> list[str]:
    """Where the page differs from the runs, as a diff; none when it does not."""
    whole = {name: seen for name, seen in results.items() if not seen.get("part")}
    wanted = restrict(page, sorted(whole)).splitlines()
    found = restrict(render(whole), sorted(whole)).splitlines()
    difference = difflib.unified_diff(wanted, found, "the page", "the runs", lineterm="", n=0)
    parts = [line for name in sorted({*results} - {*whole}) for line in _new(page, name, results)]
    return [*(difference if whole else ()), *parts]


def _new(page: str, name: str, results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What was seen in a part of the cases on a release, and is not on the page.

    A new case that passes where the page says `not run` is none: the page says less.
    """
    known = restrict(page, [name]).splitlines()
    for line in restrict(render({name: results[name]}), [name]).splitlines():
        before = re.sub(r" \| (?:yes|n/a) \|$", " | not run |", line)
        if line not in known and before not in known:
            yield f"+{line}"


def add(page: str, results: dict[str, dict[str, Any]]) -> str:
    """The page with what was seen of cases that it has as not run; all else stays."""
    lines, section, releases = [], "", list[str]()
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("## "):
            section, releases = line.removeprefix("## "), []
        elif line.startswith("|  | "):
            releases = cells[2:-1]
        elif releases and len(cells) == len(releases) + 3:
            for at, name in enumerate(releases, 2):
                seen = results.get(name, {}).get("lines", {}).get(section, {}).get(cells[1])
                if cells[at] == "not run" and seen:
                    cells[at] = _WORDS[seen]
                    line = f"| {' | '.join(cells[1:-1])} |"
        lines.append(line)
    return "\n".join(lines) + "\n" * page.endswith("\n")


def main() -> int:
    """Exit status 1 when the page and the runs differ, or a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.verified", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, do not write")
    parser.add_argument("--add", action="store_true", help="of cases that were not run before")
    words = parser.parse_args()
    results = {path.stem: read(path) for path in sorted(RESULTS.glob("*.json"))}
    if not results:
        print("cases: nothing was run", file=sys.stderr)
        return 1
    text = add(PAGE.read_text(), results) if words.add else render(results)
    if not words.check:
        PAGE.write_text(text)
        print(f"{PAGE.relative_to(REPO)}: Slurm {', '.join(sorted(results))}")
        return int(_WORDS["failed"] in text)
    difference = check(PAGE.read_text(), results)
    print(
        "\n".join(difference) or f"the page is what was run on Slurm {', '.join(sorted(results))}"
    )
    return int(bool(difference) or _WORDS["failed"] in text)


if __name__ == "__main__":
    sys.exit(main())
