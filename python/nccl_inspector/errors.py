# SPDX-License-Identifier: Apache-2.0
"""The errors of the package; the text of each is one line that a user may see."""


class InspectorError(Exception):
    """A problem that the user or administrator can fix; the text is written for that reader."""


class RefusedError(InspectorError):
    """Input of a job that is not accepted.

    `reason` is one of a fixed set of words, because it becomes a label's value. The text may say
    more; it holds printable ASCII only.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class MissingExtraError(InspectorError, ModuleNotFoundError):
    """A module that only reports need is not installed, as on most nodes."""
