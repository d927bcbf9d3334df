# SPDX-License-Identifier: Apache-2.0
"""Read the tables that come with the package: text with tabs between the cells."""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def read_tsv(name: str) -> list[list[str]]:
    """Return the cells of each line of a table; empty lines and # comments are skipped.

    `name`: the path within the package, such as `exposition/metrics.tsv`.
    """
    text = (_PACKAGE / name).read_text("ascii")
    return [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
