# SPDX-License-Identifier: Apache-2.0
"""The result of a piece of the service's work."""

from dataclasses import dataclass

DONE, LATER, FAILED = "done", "later", "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """DONE, LATER or FAILED, with what an administrator should know as text.

    LATER: the job is not the cause, so the try does not count.
    """

    word: str
    detail: str = ""
