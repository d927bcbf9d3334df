# SPDX-License-Identifier: Apache-2.0
"""Tasks of an array are one line of the history, with the worst of their verdicts."""

from dataclasses import replace

from nccl_inspector.model.card import DEGRADED, HEALTHY, STRAGGLER
from nccl_inspector.store.card_rows import JobRow, rows_of
from nccl_inspector.store.rollup import roll_up
from nccl_inspector.store.text import jobs_text
from tests.support.stored_cards import card


def row(number: int, task: str = "", **words: object) -> JobRow:
    healthy = {"status": HEALTHY, "cause": "", "cost_s": None}
    return replace(rows_of(card(number)).job, array_task=task, **(healthy | words))  # type: ignore[arg-type]


LATE = {"status": DEGRADED, "cause": STRAGGLER, "cost_s": 30.0}


def test_an_array_is_one_line_with_its_worst_verdict_and_how_many_have_it() -> None:
    jobs = [
        row(815, "810_3"), row(900), row(814, "810_2", **LATE), row(813, "810_1", **LATE),
    ]  # fmt: skip
    found = roll_up(jobs)
    assert [(one.name, len(one.tasks), one.worst.job_id) for one in found] == [
        ("810_*", 3, 814), ("900", 1, 900),
    ]  # fmt: skip
    text = jobs_text(jobs, all_jobs=True)
    assert "2/3 DEGRADED (" in " ".join(text.split())
    assert found[0].sum_of(lambda one: one.cost_s) == 60.0
    assert max(map(len, text.splitlines())) <= 100


def test_each_task_has_its_line_where_that_is_asked() -> None:
    jobs = [row(815, "810_3"), row(814, "810_2", **LATE)]
    text = jobs_text(jobs, all_jobs=True, each_task=True)
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["810_3", "810_2"]


def test_attempts_and_other_clusters_stay_apart() -> None:
    again = row(815, "810_3", restart=1)
    other = replace(row(816, "810_4"), cluster="elsewhere")
    assert [one.name for one in roll_up([again, row(815, "810_3"), other])] == [
        "810_3.1", "810_3", "810_4",
    ]  # fmt: skip


def test_jobs_of_one_number_on_two_clusters_show_which_is_which() -> None:
    jobs = [replace(row(815), cluster=name) for name in ("green", "blue", "")]
    title, *lines = jobs_text(jobs, all_jobs=True).splitlines()
    assert title.split()[:2] == ["JOB", "CLUSTER"]
    assert [line.split()[:2] for line in lines] == [["815", "green"], ["815", "blue"], ["815", "-"]]
    assert max(map(len, (title, *lines))) <= 100
    assert "CLUSTER" not in jobs_text(jobs[:1] * 2, all_jobs=True), "one has no column for it"
