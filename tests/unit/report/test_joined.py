# SPDX-License-Identifier: Apache-2.0
"""The report of a heterogeneous job, whose components are jobs of their own, and of a huge one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.model.hostlist import expand
from nccl_inspector.model.process import Process
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.report.joined_job import Report, build_report
from nccl_inspector.summary.attempts import load_summaries
from nccl_inspector.summary.codec import Head, NodeSummary
from nccl_inspector.system.safe_files import read_at
from tests.support.boxes import BoxOf, CommOf, KeyOf
from tests.support.summaries import FIRST, process_of, times, write_summary

ONLY = "other components of the het job, if there were any: only"


def head(job: int, node: str, nodelist: str, leader: int = 12, **words: object) -> Head:
    values = {"job_id": job, "node": node, "nodelist": nodelist, "het_job_id": str(leader)}
    return replace(FIRST, **{**values, **words})  # type: ignore[arg-type]


def member(folder: Path, rank: int, procid: int, pid: int = 0) -> Process:
    """One of four ranks of a communicator, of which number 2 died; `procid` as Slurm counts."""
    state = 1 if rank == 2 else 2
    box = BoxOf([CommOf(7, rank, 4, 2, "world")], [KeyOf(0, times(5))], procid=procid, state=state)
    process = process_of(folder, box)
    return replace(process, facts=replace(process.facts, name=f"0_{pid or 100 + rank}"))


def write(reports: Path, head_: Head, processes: Sequence[Process] = ()) -> None:
    write_summary(reports / str(head_.job_id), NodeSummary(head_, tuple(processes)))


def write_two(
    reports: Path, boxes: Path, procids: Sequence[int] = (0, 1, 2, 3), pid: int = 0
) -> None:
    """Job 12 with n1, job 13 with n1 (the same node) and n2; rank 2, on n1 for 13, died."""
    ranks = [member(boxes, rank, procid, pid) for rank, procid in enumerate(procids)]
    write(reports, head(12, "n1", "n1"), ranks[:2])
    write(reports, head(13, "n1", "n[1-2]"), ranks[2:3])
    write(reports, head(13, "n2", "n[1-2]"), ranks[3:])


def report(reports: Path, job: int, attempt: int | None = None) -> Report:
    return build_report(load_summaries(job, reports, attempt))


def text_of(reports: Path, job: int, everything: bool = False) -> str:
    return render_text(build_card(load_summaries(job, reports, None)), everything)


@pytest.mark.parametrize("job", [12, 13])
def test_each_components_id_shows_the_whole_job(tmp_path: Path, job: int) -> None:
    write_two(tmp_path, tmp_path / "boxes")
    found = report(tmp_path, job)
    text = " ".join(text_of(tmp_path, job).split())
    assert "NCCL JOB REPORT job 12 (het: components 12, 13), user amy," in text
    assert "2 nodes, 4 ranks" in text
    assert "nodes 12: n1; 13: n[1-2]" in text
    assert "up to the last event: rank 2 (n1)" in text
    assert f"MISSING {ONLY} 12, 13 have measurements in this report" in text
    (comm,) = found.communicators
    assert (sorted(comm.members), comm.notes) == ([0, 1, 2, 3], ())


def test_ranks_that_count_anew_in_each_component_say_whose_they_are(tmp_path: Path) -> None:
    write_two(tmp_path, tmp_path / "boxes", (0, 1, 0, 1), pid=1)
    found = report(tmp_path, 12)
    assert "up to the last event: job 13 rank 0 (n1)" in " ".join(text_of(tmp_path, 12).split())
    places = {one.place for one in found.communicators[0].members.values()}
    assert len(places) == 4, "also where every container has its process 1 on the same node"


def test_a_leader_in_which_nobody_used_nccl_has_its_job_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, head(13, "n1", "n1"))
    write(tmp_path, head(15, "n2", "n2"))
    for job in (12, 13, 15):
        assert list(report(tmp_path, job).nodelists) == [13, 15]
    with pytest.raises(InspectorError, match="no report of job 14"):
        report(tmp_path, 14)


@pytest.mark.parametrize(
    "other", [{"leader": 0}, {"leader": 14}, {"uid": 7}, {"cluster": "c2"}], ids=str
)
def test_a_neighbour_is_no_component(tmp_path: Path, other: dict[str, int]) -> None:
    write(tmp_path, head(12, "n1", "n1"))
    write(tmp_path, head(13, "n1", "n1", **other))
    assert list(report(tmp_path, 12).nodelists) == [12]


def test_no_more_components_than_slurm_allows(tmp_path: Path) -> None:
    for job in range(12, 12 + 130):
        write(tmp_path, head(job, "n1", "n1"))
    found = report(tmp_path, 20)
    assert len(found.nodelists) == 128
    assert "components 12, 13, 14, 15, 16, 17, 18, 19 and 120 more)" in " ".join(
        text_of(tmp_path, 20).split()
    )


def spoil(reports: Path, job: int, name: str) -> Path:
    (reports / str(job)).mkdir(exist_ok=True)
    (reports / str(job) / name).write_bytes(b"garbage")
    return reports / str(job) / name


def test_a_components_summary_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write(tmp_path, head(12, "n1", "n1"))
    write(tmp_path, head(13, "n2", "n[1-2]"))
    spoil(tmp_path, 13, "n1.0.nodesummary")
    (problem,) = report(tmp_path, 12).problems
    assert problem.startswith("job 13, n1: its summary cannot be read: ")


def test_what_a_neighbour_cannot_read_is_its_own_affair(tmp_path: Path) -> None:
    write(tmp_path, head(12, "n1", "n1"))
    spoil(tmp_path, 13, "n1.0.nodesummary")
    write(tmp_path, head(14, "n1", "n1", het_job_id=""))
    spoil(tmp_path, 14, "n2.0.nodesummary")
    assert report(tmp_path, 12).problems == ()


def test_of_one_component_alone_nobody_knows_whether_there_were_more(tmp_path: Path) -> None:
    write(tmp_path, head(12, "n1", "n1"))
    text = " ".join(text_of(tmp_path, 12).split())
    assert f"MISSING {ONLY} 12 has measurements in this report" in text


def test_of_many_components_only_some_are_named(tmp_path: Path) -> None:
    for job in range(12, 32):
        write(tmp_path, head(job, "n1", "n1"))
    assert f"{ONLY} 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23 and 8 more have" in " ".join(
        text_of(tmp_path, 12).split()
    )
    assert "30, 31 have measurements" in " ".join(text_of(tmp_path, 12, everything=True).split())


def attempt_of(node: str, job: int, restart: int) -> Head:
    return head(job, node, node, restart=restart, start=100 * (restart + 1))


def test_the_attempt_is_of_all_components(tmp_path: Path) -> None:
    for job in (12, 13):
        for restart in (0, 1):
            write(tmp_path, attempt_of(f"n{restart}", job, restart))
    assert report(tmp_path, 13).nodelists == {12: "n1", 13: "n1"}
    assert report(tmp_path, 12, 0).nodelists == {12: "n0", 13: "n0"}


@pytest.mark.parametrize("job", [12, 13, 14])
def test_each_id_shows_the_same_attempt_of_all_components(tmp_path: Path, job: int) -> None:
    write(tmp_path, attempt_of("n1", 13, 0))
    write(tmp_path, attempt_of("n1", 13, 1))
    write(tmp_path, attempt_of("n2", 14, 0))
    latest = report(tmp_path, job)
    assert (latest.head.restart, latest.nodelists, latest.attempts) == (1, {13: "n1"}, (0, 1))
    assert latest.problems == ("job 14, no summary of attempt 1; it has 0",)
    first = report(tmp_path, job, 0)
    assert (first.head.restart, first.nodelists) == (0, {13: "n1", 14: "n2"})
    with pytest.raises(InspectorError, match=f"job {job} has no attempt 5; it has 0, 1"):
        report(tmp_path, job, 5)


def test_a_latest_attempt_of_a_component_that_cannot_be_read_is_no_reason_for_an_earlier_one(
    tmp_path: Path,
) -> None:
    write(tmp_path, attempt_of("n1", 12, 0))
    write(tmp_path, attempt_of("n2", 13, 0))
    spoil(tmp_path, 13, "n2.1.nodesummary")
    with pytest.raises(InspectorError, match=r"attempt 1 of job 12 cannot be read: n2: .*; --atte"):
        report(tmp_path, 12)
    assert report(tmp_path, 12, 0).problems == ()


@pytest.mark.parametrize("restart", [0, 1])
def test_a_component_whose_id_another_job_had_before_is_found(tmp_path: Path, restart: int) -> None:
    write(tmp_path, head(12, "n1", "n1", start=500))
    write(tmp_path, head(13, "n2", "n2", start=500))
    write(tmp_path, head(13, "n3", "n3", 0, uid=7, user="bob", start=9, restart=restart))
    found = report(tmp_path, 12)
    assert found.nodelists == {12: "n1", 13: "n2"}
    (problem,) = found.problems
    assert problem.startswith("job 13, n3: its summary")
    assert problem.endswith("is of another job of this number (user bob, cluster c1)")


class Counted:
    """Counts what is read through `read_at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.bytes = 0
        monkeypatch.setattr("nccl_inspector.summary.directory.read_at", self)

    def __call__(self, fd: int, count: int, offset: int) -> bytes:
        data = read_at(fd, count, offset)
        self.reads += 1
        self.bytes += len(data)
        return data


@pytest.mark.long
@pytest.mark.parametrize("job", [12, 13])
def test_an_id_costs_little_whatever_the_neighbours_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: int
) -> None:
    process = member(tmp_path / "boxes", 0, 0, 5)
    (tmp_path / "r").mkdir()
    write(tmp_path / "r", head(13, "n1", "n1", leader=13))
    for neighbour in range(14, 12 + 128):
        for node in range(8):
            plain = head(neighbour, f"n{node}", "n[0-7]", het_job_id="")
            write(tmp_path / "r", plain, [process] * 8)
    counted = Counted(monkeypatch)
    if job == 12:
        with pytest.raises(InspectorError, match="no report of job 12"):
            report(tmp_path / "r", job)
    else:
        assert list(report(tmp_path / "r", job).nodelists) == [13]
    assert counted.reads <= 3 * 128 + 3
    assert counted.bytes <= counted.reads * 4096


def test_missing_nodes_are_those_of_each_component(tmp_path: Path) -> None:
    write(tmp_path, head(12, "n1", "n[1-2]"))
    write(tmp_path, head(13, "n2", "n[2-9]"))
    text = text_of(tmp_path, 12)
    assert "no summary of 1 node of job 12: n2" in text
    assert "no summary of 7 nodes of job 13: n[3-9]" in text
    assert "2 of 9 nodes, 0 ranks" in " ".join(text.split())


# Two thousand nodes.


def after(words: str, text: str) -> str:
    """Return the rest of the line that has these words, wherever it was broken."""
    lines = text.replace("\n   ", " ").splitlines()
    (found,) = [line.partition(words)[2] for line in lines if words in line]
    return found.replace(", ", ",")


@pytest.mark.parametrize("step", [1, 3])
def test_of_two_thousand_nodes_the_missing_are_counted_and_named_shortly(
    tmp_path: Path, step: int
) -> None:
    names = [f"n{number:04}" for number in range(1, 2000 * step + 1, step)]
    for node in names[:4]:
        write(tmp_path, replace(FIRST, job_id=42, node=node, nodelist=",".join(names)))
    text = text_of(tmp_path, 42)
    assert "4 of 2,000 nodes, 0 ranks" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    said = after("no summary of 1,996 nodes: ", text)
    nodelist, _, more = said.partition(" and ")
    shown = expand(nodelist)
    assert shown == names[4 : 4 + len(shown)]
    assert len(shown) == 1996 if step == 1 else more == f"{1996 - len(shown):,} more"
    assert len(text) < 2000


def test_all_of_them_are_named_on_request(tmp_path: Path) -> None:
    names = [f"n{number:04}" for number in range(1, 6001, 3)]
    write(tmp_path, replace(FIRST, job_id=42, node=names[0], nodelist=",".join(names)))
    text = text_of(tmp_path, 42, everything=True)
    assert expand(after("no summary of 1,999 nodes: ", text)) == names[1:]
