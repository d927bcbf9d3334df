# SPDX-License-Identifier: Apache-2.0
"""Of a large job the records of some processes are read: those in question, and their peers."""

from dataclasses import replace

import pytest

from nccl_inspector.analysis.replay import process_choice
from nccl_inspector.analysis.replay.process_choice import choose
from nccl_inspector.model.card import DEGRADED
from nccl_inspector.model.process import Process
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.samples import PackedSamples
from tests.bench.card import JOB, MANY, write_job
from tests.bench.sampled import LOCAL

# Together they take longer than `make test` has for one subject.
pytestmark = pytest.mark.long

NODES, READ = 16, 48  # nodes of the job, processes that are read
LATE = f"rank {NODES // 2 * LOCAL + 3}"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    reports = tmp_path_factory.mktemp("job") / "reports"
    write_job(reports, NODES, MANY, counted=False)
    return load_summaries(JOB, reports, None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer processes are read than the job has."""
    monkeypatch.setattr(process_choice, "PROCESSES_MAX", READ)


def placed_of(loaded: Loaded) -> list[tuple[str, Process]]:
    return [(one.head.node, process) for one in loaded.summaries for process in one.processes]


def changed(loaded: Loaded, **words: object) -> Loaded:
    """Return the job with something else in the first node's last process."""
    first, *others = loaded.summaries
    processes = (*first.processes[:-1], replace(first.processes[-1], **words))  # type: ignore[arg-type]
    return replace(loaded, summaries=(replace(first, processes=processes), *others))


def test_of_few_processes_all_are_read(loaded: Loaded) -> None:
    found = choose(placed_of(loaded))
    assert found.members == tuple(range(NODES * LOCAL))
    assert not found.some
    assert not found.left_out


@pytest.mark.usefixtures("few")
def test_whole_nodes_are_read_with_the_first_and_that_of_who_waited_least(loaded: Loaded) -> None:
    placed = placed_of(loaded)
    found = choose(placed)
    assert found.some
    assert found.by_busy
    assert READ - LOCAL < len(found.members) <= READ
    nodes = [placed[one][0] for one in found.members]
    assert {nodes.count(node) for node in nodes} == {LOCAL}
    assert placed[0][0] in nodes
    assert f"n{NODES // 2 + 1}" in nodes
    # Of each communicator within a node that is not read, all; of one over nodes, the others.
    whole, over = LOCAL, NODES - READ // LOCAL
    assert {whole, over} <= set(found.left_out.values())


@pytest.mark.usefixtures("few")
def test_without_unions_nodes_are_read_evenly_and_that_is_known(loaded: Loaded) -> None:
    placed = [
        (node, replace(process, unions=(), busy_share=None)) for node, process in placed_of(loaded)
    ]
    found = choose(placed)
    assert not found.by_busy
    assert len(found.members) == READ


@pytest.mark.usefixtures("few")
def test_the_late_rank_is_named_and_the_report_says_what_it_looked_at(loaded: Loaded) -> None:
    card = build_card(loaded)
    assert card.verdict.status == DEGRADED
    assert [one.rank for one in card.stragglers if one.flagged] == [LATE]
    (gap,) = [one.words for one in card.data_quality.gaps if "operation by operation" in one.words]
    assert f"{NODES * LOCAL - READ} of {NODES * LOCAL} processes" in gap


def test_what_all_records_cost_is_about_what_some_say(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = build_card(loaded)
    monkeypatch.setattr(process_choice, "PROCESSES_MAX", READ)
    some = build_card(loaded)
    assert every.verdict.cost_share == pytest.approx(some.verdict.cost_share, rel=0.25)
    assert not [one for one in every.data_quality.gaps if "operation by operation" in one.words]


@pytest.mark.parametrize("torn", ["facts", "columns", "unions"])
def test_records_that_cannot_be_read_are_counted_and_the_others_are_judged(
    loaded: Loaded, torn: str
) -> None:
    process = loaded.summaries[0].processes[-1]
    assert isinstance(process.samples, PackedSamples)
    facts, columns = process.samples.streams
    unions = process.samples.unions
    broken = {
        "facts": PackedSamples(b"x" + facts, columns, unions),
        "columns": PackedSamples(facts, columns[:-9], unions),
        "unions": PackedSamples(facts, columns, type(unions)(b"junk")),  # type: ignore[call-arg]
    }
    card = build_card(changed(loaded, samples=broken[torn]))
    assert [one.rank for one in card.stragglers if one.flagged] == [LATE]
    assert card.data_quality.refused == {"bad_summary": 1}


def test_a_summary_says_how_busy_its_processes_were(loaded: Loaded) -> None:
    """Nobody need unpack the windows of all processes to choose some."""
    for _, process in placed_of(loaded)[:LOCAL]:
        (union,) = process.unions
        assert process.busy_share == union.busy_share
        assert 0 < union.busy_share < 1


def test_the_same_are_chosen_where_only_the_windows_say_how_busy_they_were(loaded: Loaded) -> None:
    placed = placed_of(loaded)
    unsaid = [(node, replace(process, busy_share=None)) for node, process in placed]
    assert choose(unsaid) == choose(placed)
