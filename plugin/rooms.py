#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Check that each room of the plugin includes only rooms below it, and nothing in a circle."""

import re
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

# From top to bottom. Rooms of one line do not know each other; a file beside the rooms is a room.
ORDER = (
    "tables_old",
    "tables",
    "inspector",
    "beat json",
    "ask net prom upkeep",
    "hot",
    "nccl",
    "box",
    "config",
    "base",
)
LEVELS = {room: level for level, line in enumerate(ORDER) for room in line.split()}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
GENERATED = ("metrics_table.h", "settings_table.h")  # by the Makefile, into build/gen


def wrong_includes(root: Path, name: str, included: list[str]) -> list[str]:
    """Return what is wrong with the headers that a file includes; all are paths from root on."""
    room = name[:-2].split("/")[0]
    wrong = []
    for header in included:
        other = header[:-2].split("/")[0]
        if not (root / header).exists():
            wrong.append(f'{name}: "{header}" is not a header\'s path from {root.name}/ on')
        elif other != room and LEVELS.get(other, -1) <= LEVELS[room]:
            wrong.append(f'{name}: "{header}" is not below {room}')
    return wrong


def main(root: Path) -> int:
    """Print what is wrong below a folder. A .c and its header are one module."""
    wrong: list[str] = []
    modules: dict[str, set[str]] = {}
    for file in sorted(root.rglob("*.[ch]")):
        name = file.relative_to(root).as_posix()
        included = [one for one in INCLUDE.findall(file.read_text("utf-8")) if one not in GENERATED]
        if name[:-2].split("/")[0] in LEVELS:
            wrong += wrong_includes(root, name, included)
        else:
            wrong.append(f"{name}: its room has no place in the order of rooms")
        modules.setdefault(name[:-2], set()).update(one[:-2] for one in included)
    try:
        TopologicalSorter({one: below - {one} for one, below in modules.items()}).prepare()
    except CycleError as error:
        wrong.append("a circle of includes: " + " < ".join(error.args[1]))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent))
