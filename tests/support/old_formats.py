# SPDX-License-Identifier: Apache-2.0
"""Node summaries as earlier releases wrote them, stored beside this file.

Each directory has the four files of one job, `eight_ranks(sampled=False)`, written by the code of
the commit that is named here. A new format gets a directory of its own before the code changes:
see `write_stored`.
"""

from pathlib import Path

from nccl_inspector.summary.codec import VERSION
from tests.support.summaries import eight_ranks, write_summary

FOLDER = Path(__file__).with_name("old_formats")
# The last commit that wrote the format.
COMMITS = {11: "70803c0e3e2d595d25803eef79d668fac227f304"}


def folder_of(version: int) -> Path:
    """Where the summaries of a format are."""
    return FOLDER / f"summary-{version}"


def write_stored() -> None:
    """Store the summaries of the format that this code writes."""
    for summary in eight_ranks(sampled=False):
        write_summary(folder_of(VERSION), summary)


if __name__ == "__main__":
    write_stored()
