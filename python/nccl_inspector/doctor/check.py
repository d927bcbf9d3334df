# SPDX-License-Identifier: Apache-2.0
"""What a check is, and what can come of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from nccl_inspector.doctor.facts import CannotTellError, Facts


class Role(StrEnum):
    """What a host is, or what is looked at instead of a host."""

    NODE = "node"
    SUBMIT = "submit"
    CONTROLLER = "controller"
    JOB = "job"
    IMAGE = "image"


class Outcome(StrEnum):
    """What came of a check."""

    WELL = "well"
    FOUND = "found"
    CANNOT_TELL = "cannot tell"


# Returns the evidence of the fault, or an empty text if there is none.
Judge = Callable[[Facts], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that can be wrong.

    `looks_at`: where the facts come from. `meaning`: what it does to jobs. `mend`: what to do by
    hand; where `by_setup` is true, `nccl-inspector setup ROLE --apply` does it. `page`: file and
    anchor below `packaging/doc/`.
    """

    id: str  # does not change between releases
    roles: frozenset[Role]
    looks_at: str
    meaning: str
    mend: str
    page: str
    judge: Judge
    by_setup: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A check with what came of it; `evidence` is why it cannot be told, or what was found."""

    check: Check
    outcome: Outcome
    evidence: str


def run_check(check: Check, facts: Facts) -> Result:
    """Judge the facts."""
    try:
        evidence = check.judge(facts)
    except CannotTellError as err:
        return Result(check, Outcome.CANNOT_TELL, str(err))
    return Result(check, Outcome.FOUND if evidence else Outcome.WELL, evidence)
