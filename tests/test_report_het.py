# SPDX-License-Identifier: Apache-2.0
"""The report of a heterogeneous job, whose components are jobs of their own, and of a huge one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.hostlist import expand
from nccl_inspector.model import Process
from nccl_inspector.render import render_text
from nccl_inspector.report import Report, build_report, load_summaries
from nccl_inspector.summary import Head, NodeSummary
from tests.boxes import BoxOf, CommOf, KeyOf
from tests.test_report import FIRST, process_of, times, write_summary


def head(job: int, node: str, nodelist: str, leader: int = 12, **words: object) -> Head:
    values = {"job_id": job, "node": node, "nodelist": nodelist, "het_job_id": str(leader)}
    return replace(FIRST, **{**values, **words})  # type: ignore[arg-type]


def member(folder: Path, rank: int, procid: int, ms: float, pid: int = 0) -> Process:
    """One of four ranks of a communicator; `procid` as Slurm counts."""
    process = process_of(
        folder, BoxOf([CommOf(7, rank, 4, 2, "world")], [KeyOf(0, times(ms))], procid=procid)
    )
    return replace(process, facts=replace(process.facts, name=f"0_{pid or 100 + rank}"))


def write(reports: Path, head_: Head, processes: Sequence[Process] = ()) -> None:
    write_summary(reports / str(head_.job_id), NodeSummary(head_, tuple(processes)))


def write_two(
    reports: Path, boxes: Path, procids: Sequence[int] = (0, 1, 2, 3), pid: int = 0
) -> None:
    """Job 12 with n1, job 13 with n1 (the same node) and n2; rank 2, on n1 for 13, is late."""
    ranks = [
        member(boxes, rank, procid, 4 if rank == 2 else 12, pid)
        for rank, procid in enumerate(procids)
    ]
    write(reports, head(12, "n1", "n1"), ranks[:2])
    write(reports, head(13, "n1", "n[1-2]"), ranks[2:3])
    write(reports, head(13, "n2", "n[1-2]"), ranks[3:])


def report(reports: Path, job: int, attempt: int | None = None) -> Report:
    return build_report(load_summaries(job, reports, attempt))


@pytest.mark.parametrize("job", [12, 13])
def test_each_components_id_shows_the_whole_job(tmp_path: Path, job: int) -> None:
    write_two(tmp_path, tmp_path / "boxes")
    found = report(tmp_path, job)
    text = " ".join(render_text(found).split())
    assert "NCCL JOB REPORT job 12 (het: components 12, 13), user amy," in text
    assert "2 nodes, 4 ranks" in text
    assert "nodes 12: n1; 13: n[1-2]" in text
    assert "STRAGGLER: rank 2 (n1, GPU0) came late" in text
    assert "MISSING nothing" in text
    (comm,) = found.communicators
    assert (sorted(comm.members), comm.notes) == ([0, 1, 2, 3], ())


def test_ranks_that_count_anew_in_each_component_say_whose_they_are(tmp_path: Path) -> None:
    write_two(tmp_path, tmp_path / "boxes", (0, 1, 0, 1), pid=1)
    found = report(tmp_path, 12)
    assert found.named[0].place.name == "job 13 rank 0"
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
        render_text(found).split()
    )


def test_a_component_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write(tmp_path, head(12, "n1", "n1"))
    (tmp_path / "13").mkdir()
    (tmp_path / "13" / "n1.0.nodesummary").write_bytes(b"garbage")
    (problem,) = report(tmp_path, 12).problems
    assert problem.startswith("the report of job 13 cannot be read: n1: ")


def test_the_attempt_is_of_all_components(tmp_path: Path) -> None:
    for job in (12, 13):
        for restart in (0, 1):
            write(tmp_path, head(job, f"n{restart}", f"n{restart}", restart=restart))
    assert report(tmp_path, 13).nodelists == {12: "n1", 13: "n1"}
    assert report(tmp_path, 12, 0).nodelists == {12: "n0", 13: "n0"}


def test_missing_nodes_are_those_of_each_component(tmp_path: Path) -> None:
    write(tmp_path, head(12, "n1", "n[1-2]"))
    write(tmp_path, head(13, "n2", "n[2-9]"))
    text = render_text(report(tmp_path, 12))
    assert "no summary of 1 node of job 12: n2" in text
    assert "no summary of 7 nodes of job 13: n[3-9]" in text
    assert "2 of 9 nodes, 0 ranks" in " ".join(text.split())


# Two thousand nodes.


@pytest.mark.parametrize("step", [1, 3])
def test_of_two_thousand_nodes_the_missing_are_counted_and_named_shortly(
    tmp_path: Path, step: int
) -> None:
    names = [f"n{number:04}" for number in range(1, 2000 * step + 1, step)]
    for node in names[:4]:
        write(tmp_path, replace(FIRST, job_id=42, node=node, nodelist=",".join(names)))
    text = render_text(report(tmp_path, 42))
    words = " ".join(text.split())
    assert "4 of 2000 nodes, 0 ranks" in words
    assert max(map(len, text.splitlines())) <= 100
    said = words.partition("no summary of 1996 nodes: ")[2].replace(", ", ",")
    nodelist, _, more = said.partition(" and ")
    shown = expand(nodelist)
    assert shown == names[4 : 4 + len(shown)]
    assert len(shown) == 1996 if step == 1 else more == f"{1996 - len(shown)} more"
    assert len(text) < 2000


def test_all_of_them_are_named_on_request(tmp_path: Path) -> None:
    names = [f"n{number:04}" for number in range(1, 6001, 3)]
    write(tmp_path, replace(FIRST, job_id=42, node=names[0], nodelist=",".join(names)))
    text = " ".join(render_text(report(tmp_path, 42), everything=True).split())
    nodelist = text.partition("no summary of 1999 nodes: ")[2].replace(", ", ",")
    assert expand(nodelist) == names[1:]
