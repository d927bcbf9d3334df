"""Turns a check into two tests: ours passes it, and the rival fails in the way that is named."""

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_nccl import LIMIT_S, OURS, RIVAL, Stage

Check = Callable[[Stage], None]


def defect(number: str, words: str) -> Callable[[Check], Any]:
    """Mark a check of the defect `number`; `words` must be in what is said of the rival."""

    def decorate(check: Check) -> Any:
        @pytest.mark.parametrize(
            "profiler",
            [
                pytest.param(OURS, id=number),
                pytest.param(RIVAL, id=f"{number}-rival"),
            ],
        )
        def test(profiler: Path) -> None:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as out:
                if profiler == RIVAL:
                    with pytest.raises(AssertionError, match=re.escape(words)):
                        check(Stage(RIVAL, Path(out), in_vain=words))
                else:
                    check(Stage(OURS, Path(out), limit_s=LIMIT_S))

        test.__name__ = check.__name__
        test.__module__ = check.__module__
        test.__doc__ = check.__doc__
        return test

    return decorate
