"""Turns a check into two tests: ours passes it, the rival does not, and for the reason that is named."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.defects.stage import OURS, RIVAL, Side, Stage

Check = Callable[[Stage], None]


def defect(number: str, words: str, *, pending: str = "") -> Callable[[Check], Any]:
    """Mark a check of the defect `number`; `words` must be in what is said of the rival.

    `pending` names what ours has not got yet: its test must fail until then.
    """
    unfinished = [pytest.mark.xfail(strict=True, reason=pending)] if pending else []
    ours = replace(OURS, patience_s=2.0) if pending else OURS

    def decorate(check: Check) -> Any:
        @pytest.mark.parametrize(
            "side",
            [
                pytest.param(ours, id=number, marks=unfinished),
                pytest.param(RIVAL, id=f"{number}-rival"),
            ],
        )
        def test(side: Side) -> None:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as out:
                stage = Stage(side, Path(out))
                if side is ours:
                    check(stage)
                    return
                with pytest.raises(AssertionError, match=re.escape(words)):
                    check(stage)

        test.__name__ = check.__name__
        test.__module__ = check.__module__
        test.__doc__ = check.__doc__
        return test

    return decorate
