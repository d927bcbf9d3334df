# SPDX-License-Identifier: Apache-2.0
"""How a piece of the service's work went."""

from dataclasses import dataclass

DONE, LATER, FAILED = "done", "later", "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went: DONE, LATER or FAILED, and as text what an administrator should know.

    LATER: not the fault of the job, so another try does not count.
    """

    word: str
    detail: str = ""
