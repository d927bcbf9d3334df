# SPDX-License-Identifier: Apache-2.0
"""Which report is due when."""

from collections.abc import Mapping, Sequence

from nccl_inspector.controller.due_reports import SETTLE_S, Due, ToDo, find_due
from nccl_inspector.controller.queue import Entry
from nccl_inspector.summary.directory import SummaryFile

NOW_S = 1_700_000_000.0
WAIT_S = 900.0


def entry(
    nodelist: str = "n[1-2]", restart: int = 0, age_s: float = 60, job_id: int = 42, het: int = 0
) -> Entry:
    return Entry(
        f"{job_id}.{int(NOW_S - age_s)}", 0, job_id, restart, NOW_S - age_s, nodelist=nodelist,
        het_job_id=het or None,
    )  # fmt: skip


def files(
    nodes: Sequence[str], attempt: int = 0, job_id: int = 42, at_ns: int = 1
) -> dict[SummaryFile, int]:
    return {SummaryFile(job_id, attempt, node, ""): at_ns for node in nodes}


def due(
    entries: Sequence[Entry],
    found: Mapping[SummaryFile, int],
    stored_ns: Mapping[int, int] | None = None,
) -> ToDo:
    by_job: dict[int, dict[SummaryFile, int]] = {one.job_id: {} for one in entries}
    for file, at_ns in found.items():
        by_job[file.job_id][file] = at_ns
    return find_due(entries, by_job, stored_ns or {}, NOW_S, WAIT_S)


def test_a_report_is_due_when_all_nodes_have_told() -> None:
    one = entry()
    assert due([one], files(["n1"])) == ToDo()
    assert due([one], files(["n1", "n2"])) == ToDo(Due(42, 0, (one,), True))


def test_after_the_wait_it_is_made_of_what_there_is() -> None:
    one = entry(age_s=WAIT_S + 1)
    assert due([one], files(["n1"])) == ToDo(Due(42, 0, (one,), False))
    assert due([one], {}) == ToDo(empty=(one,))


def test_right_after_the_end_nothing_is_due() -> None:
    assert due([entry(age_s=SETTLE_S / 2)], files(["n1", "n2"])) == ToDo()


def test_of_a_requeued_job_the_attempt_that_ended_is_meant() -> None:
    # slurmctld counts the restarts up before the epilog of the attempt that is over.
    first, last = entry(restart=1, age_s=100), entry(restart=1, age_s=50)
    zero, one = files(["n1", "n2"]), files(["n1", "n2"], 1, at_ns=5)
    assert due([first], zero) == ToDo(Due(42, 0, (first,), True))
    assert due([last], zero | one, {0: 2}) == ToDo(Due(42, 1, (last,), True))
    assert due([last], zero, {0: 2}) == ToDo()


def test_the_report_of_an_older_job_of_that_number_is_made_anew() -> None:
    one = entry()
    assert due([one], files(["n1", "n2"], at_ns=5), {0: 9}) == ToDo()
    assert due([one], files(["n1", "n2"], at_ns=10), {0: 9}) == ToDo(Due(42, 0, (one,), True))


def test_a_node_that_told_late_takes_no_report_from_the_next_attempt() -> None:
    # Attempt 0 was reported without n2, which told afterwards; then attempt 1 ends.
    told = files(["n1"]) | files(["n2"], at_ns=3)
    last, waited = entry(restart=1), entry(restart=1, age_s=WAIT_S + 1)
    assert due([last], told, {0: 2}) == ToDo(), "attempt 1 is waited for"
    assert due([last], told | files(["n1", "n2"], 1, at_ns=5), {0: 2}).due == Due(
        42, 1, (last,), True
    )
    assert due([waited], told | files(["n1"], 1, at_ns=5), {0: 2}).due == Due(
        42, 1, (waited,), False
    )


def test_a_het_job_is_one_report_when_all_components_have_told() -> None:
    parts = [entry("n1", job_id=42, het=42), entry("n2", job_id=43, het=42)]
    first, second = files(["n1"], job_id=42), files(["n2"], job_id=43)
    assert due(parts, first) == ToDo()
    assert due(parts, first | second) == ToDo(Due(42, 0, tuple(parts), True))


def test_an_unreadable_node_list_is_waited_for_to_the_end() -> None:
    assert due([entry("n[1-")], files(["n1"])) == ToDo()
    assert due([entry("n[1-", age_s=WAIT_S + 1)], files(["n1"])).due
