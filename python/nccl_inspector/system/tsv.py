# SPDX-License-Identifier: Apache-2.0
"""Read the tables that come with the package: text, a tab between two cells."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def read_tsv(name: str) -> list[list[str]]:
    """Return the cells of each line of a table; lines that begin with # are comments.

    `name`: its path within the package, as `exposition/metrics.tsv`.
    """
    text = (_PACKAGE / name).read_text("ascii")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
