"""All targets."""

from collections.abc import Sequence

from tests.fuzzers import (
    box,
    flight,
    joboutput,
    lines,
    nccllog,
    nccltests,
    page,
    promanswers,
    ras,
    slurmanswers,
    smallfiles,
    stored,
    summary,
    vendorpage,
)
from tests.fuzzers.target import Target

TARGETS: Sequence[Target] = (
    box.TARGET, summary.TARGET, page.TARGET, vendorpage.TARGET, stored.TARGET, joboutput.TARGET,
    nccllog.TARGET, promanswers.TARGET, slurmanswers.TARGET, lines.TARGET, smallfiles.TARGET,
    flight.TARGET, ras.TARGET, nccltests.TARGET,
)  # fmt: skip


def find(names: Sequence[str]) -> list[Target]:
    """Return the targets of these names; of none, all.

    Raises:
        KeyError: there is no such one.
    """
    known = {one.name: one for one in TARGETS}
    return [known[name] for name in names] or [*TARGETS]
