# SPDX-License-Identifier: Apache-2.0
"""Of a job whose summaries are too large for memory, most is left in the files until it is used."""

import os
import tracemalloc
from pathlib import Path

import pytest

from nccl_inspector.errors import RefusedError
from nccl_inspector.model.card import DEGRADED, Card
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary import budget, directory, streams
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.budget import Budget
from nccl_inspector.summary.codec import decode, encode, encode_process
from nccl_inspector.summary.columns import pack_keys
from nccl_inspector.summary.fit_tables import LENGTH, piece
from nccl_inspector.summary.packed_tables import PackedKeys
from nccl_inspector.summary.streams import SummaryVersion
from nccl_inspector.system.safe_files import stamp_of
from tests.bench.card import JOB, MANY, write_job
from tests.bench.sampled import LOCAL

NODES = 8
LATE = f"rank {NODES // 2 * LOCAL + 3}"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reports = tmp_path_factory.mktemp("job") / "reports"
    write_job(reports, NODES, MANY, counted=False)
    return reports


@pytest.fixture
def reports(written: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    folder = tmp_path / str(JOB)
    folder.mkdir()
    for path in (written / str(JOB)).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No job is small enough to be kept in memory."""
    monkeypatch.setattr(directory, "HELD_BYTES_MAX", 0)


def load(reports: Path) -> Loaded:
    return load_summaries(JOB, reports, None)


def accused(card: Card) -> list[str]:
    return [one.rank for one in card.stragglers if one.flagged]


@pytest.mark.long
def test_of_a_large_file_only_what_is_needed_is_read(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = load(reports)
    monkeypatch.setattr(directory, "HELD_BYTES_MAX", 0)
    monkeypatch.setattr(streams, "_WHOLE_BYTES_MAX", 0)
    assert load(reports) == in_memory


@pytest.mark.long
def test_the_report_is_that_of_a_job_in_memory(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = load(reports)
    monkeypatch.setattr(directory, "HELD_BYTES_MAX", 0)
    in_files = load(reports)
    assert all(
        isinstance(process.keys, PackedKeys)
        for summary in in_files.summaries
        for process in summary.processes
    )
    assert in_files == in_memory
    card = build_card(in_files)
    assert card == build_card(in_memory)
    assert (card.verdict.status, accused(card)) == (DEGRADED, [LATE])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("what", [pytest.param("gone", marks=pytest.mark.long), "replaced", "cut"])
def test_a_file_that_changes_after_it_was_read_is_said_and_accuses_nobody_else(
    reports: Path, what: str
) -> None:
    loaded = load(reports)
    path = reports / str(JOB) / f"n{NODES}.0.nodesummary"
    match what:
        case "gone":
            path.unlink()
        case "replaced":
            beside = path.with_name("new")
            beside.write_bytes(path.read_bytes())
            beside.replace(path)
        case "cut":
            os.truncate(path, 1000)
    card = build_card(loaded)
    assert accused(card) == [LATE]
    words = " ".join(card.data_quality.refused)
    assert ("No such file" if what == "gone" else "it has changed since") in words
    assert card.data_quality.ranks_seen == NODES * LOCAL


def test_a_node_takes_a_fraction_of_the_memory(reports: Path) -> None:
    path = reports / str(JOB) / "n1.0.nodesummary"
    version = SummaryVersion(path, stamp_of(path.stat()))
    taken = []
    for version_or_none in (None, version):
        tracemalloc.start()
        data = path.read_bytes()
        budget_ = Budget(budget.NODE_BYTES)
        kept = decode(data, budget_, version_or_none)
        del data
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(kept.processes) == LOCAL
        assert taken[-1] < budget.NODE_BYTES - budget_.left
    assert taken[1] < taken[0] / 4
    # So all 100,000 ranks of a job on 12,500 nodes find room.
    assert budget.NODE_BYTES - budget_.left < budget.node_share(12_500)


def test_each_communicator_has_its_own_keys(reports: Path) -> None:
    keys = load(reports).summaries[0].processes[0].keys
    many = [key._replace(comm=at % 100) for at, key in enumerate([*keys] * 20)]
    packed = PackedKeys.of(many, pack_keys(many))
    assert packed == many
    for comm in range(101):
        assert list(packed.of_comm(comm)) == [key for key in many if key.comm == comm]


def test_invalid_keys_are_refused_at_once_and_not_when_they_are_used(reports: Path) -> None:
    path = reports / str(JOB) / "n1.0.nodesummary"
    summary = decode(path.read_bytes())
    block = encode_process(summary.processes[0])
    keys_at = LENGTH.size + LENGTH.unpack_from(block)[0]
    rest_at = keys_at + LENGTH.size + LENGTH.unpack_from(block, keys_at)[0]
    torn = piece(pack_keys(summary.processes[0].keys)[:-1])
    path.write_bytes(encode(summary.head, [block[:keys_at] + torn + block[rest_at:]]))
    with pytest.raises(RefusedError, match="bad_summary"):
        decode(path.read_bytes(), None, SummaryVersion(path, stamp_of(path.stat())))
