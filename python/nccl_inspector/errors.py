# SPDX-License-Identifier: Apache-2.0
"""The errors of the package: each is one line that a user may see."""


class InspectorError(Exception):
    """Something that the user or administrator can act on; the text is written for him."""


class RefusedError(InspectorError):
    """Input of a job that is not taken.

    `reason` is one of a fixed set of words (it becomes a label's value); the
    text may say more and holds only printable ASCII.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
