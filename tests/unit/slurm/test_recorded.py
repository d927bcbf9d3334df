"""What each release's commands said of jobs of every kind, read."""

import pytest

from nccl_inspector.model.jobid import JobName, parse_job
from nccl_inspector.slurm import accounting
from nccl_inspector.slurm.find_record import believe
from nccl_inspector.slurm.job_record import ACCOUNTING, CONTROLLER, JobRecord
from nccl_inspector.slurm.scontroljson import parse_json
from nccl_inspector.slurm.scontroltext import parse_text
from nccl_inspector.slurm.topology import read_places, used
from nccl_inspector.slurm.values import Facts
from tests.support.recorded_slurm import DELIMITER, Recording, folder, load
from tests.support.sandbox.slurm_jobs import HOSTILE

HOME = "/cluster/home/nccl-demo"


@pytest.fixture(params=["22.05", "24.11", "26.05"])
def said(request: pytest.FixtureRequest) -> Recording:
    """One release."""
    return load(request.param)


def controller(said: Recording, kind: str, name: JobName | None = None) -> Facts:
    output = said.output(kind, "scontrol")
    parse = parse_text if said.slurm.startswith("22.05") else parse_json
    return parse(output, name or JobName(said.ids[kind]))


def rows(said: Recording, kind: str) -> list[accounting.Row]:
    found = accounting.read_rows(said.output(kind, "sacct"), said.columns(kind), DELIMITER)
    assert found is not None
    return found


def record(said: Recording, kind: str, *, live: bool, name: JobName | None = None) -> JobRecord:
    """The record of a job, as long as slurmctld knows it (`live`) or afterwards."""
    mine = accounting.rows_of(rows(said, kind), name or JobName(said.ids[kind]))
    facts = {ACCOUNTING: accounting.facts(mine[-1])}
    if live:
        facts[CONTROLLER] = controller(said, kind, name)
    found = believe(facts, accounting.runs(mine))
    assert found is not None
    return found


@pytest.mark.parametrize("live", [True, False])
def test_a_finished_job_is_told_whole(said: Recording, live: bool) -> None:
    job = record(said, "finished", live=live)
    assert (job.name, job.user, job.account, job.partition) == (
        "train",
        "nccl-demo",
        "proj1",
        "gpu",
    )
    assert (job.cluster, job.state, job.exit_code, job.signal) == ("sandbox", "COMPLETED", 0, 0)
    assert (job.nodelist, job.num_nodes, job.gpus) == ("n[3-4]", 2, 8)
    assert (job.time_limit_s, job.work_dir, job.comment) == (1800, HOME, "a comment")
    assert job.submit_line is not None
    assert job.submit_line.startswith("sbatch --parsable -N2 ")
    assert job.submit_s is not None
    assert job.start_s is not None
    assert job.end_s is not None
    assert 1.7e9 < job.submit_s <= job.start_s <= job.end_s
    assert job.restart == 0


def test_what_only_slurmctld_knows_is_missing_without_it(said: Recording) -> None:
    whole, rest = record(said, "finished", live=True), record(said, "finished", live=False)
    assert (whole.tasks, whole.switches_asked) == (4, "1@2:00")
    assert "tasks" in rest.missing
    assert "switches" in rest.missing
    expected = {"segment"} if not said.slurm.startswith("26.05") else set()
    assert set(whole.missing) == expected


def test_the_output_is_where_the_job_wrote_it(said: Recording) -> None:
    whole, rest = record(said, "finished", live=True), record(said, "finished", live=False)
    path = f"{HOME}/slurm-train-{whole.job_id:04}-nccl-demo-n3.out"
    assert whole.stdout_path == whole.stderr_path == path
    assert rest.stdout_path == (None if said.slurm.startswith("22.05") else path)
    alone = believe({CONTROLLER: controller(said, "finished")})
    assert alone is not None
    assert alone.stdout_path == path
    assert record(said, "failed", live=True).stdout_path == f"{HOME}/slurm-{said.ids['failed']}.out"


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(
    ("kind", "state", "codes"),
    [
        ("failed", "FAILED", (3, 0)), ("signalled", "FAILED", (0, 9)),
        ("requeued", "FAILED", (4, 0)),
    ],
)  # fmt: skip
def test_how_a_job_ended_is_told(
    said: Recording, kind: str, state: str, codes: tuple[int, int], live: bool
) -> None:
    job = record(said, kind, live=live)
    assert job.state == state
    assert (job.exit_code, job.signal) == codes


@pytest.mark.parametrize(("kind", "state"), [("timeout", "TIMEOUT"), ("cancelled", "CANCELLED")])
def test_a_job_that_was_ended_is_told_by_its_state(said: Recording, kind: str, state: str) -> None:
    assert record(said, kind, live=True).state == state
    assert record(said, kind, live=False).state == state


def test_a_running_job_has_no_end_and_no_code(said: Recording) -> None:
    for live in (True, False):
        job = record(said, "running", live=live)
        assert (job.state, job.end_s, job.exit_code) == ("RUNNING", None, None)
        assert job.start_s is not None


def test_a_requeue_is_another_attempt_of_one_job(said: Recording) -> None:
    job = record(said, "requeued", live=True)
    assert job.restart == 1
    assert [run.restart for run in job.runs] == [0, 1]
    first, second = job.runs
    assert first.state == "REQUEUED"
    assert first.end_s is not None
    assert second.start_s is not None
    assert first.end_s <= second.start_s


def test_the_attempt_that_is_meant_is_told(said: Recording) -> None:
    mine = rows(said, "requeued")
    facts = {ACCOUNTING: accounting.facts(mine[-1]), CONTROLLER: controller(said, "requeued")}
    job = believe(facts, accounting.runs(mine), attempt=0)
    assert job is not None
    assert (job.restart, job.state) == (0, "REQUEUED")
    assert job.sources[0] == ACCOUNTING


@pytest.mark.parametrize("live", [True, False])
def test_a_task_of_an_array_is_found_by_its_number(said: Recording, live: bool) -> None:
    name = JobName(said.ids["array"], 2)
    job = record(said, "array", live=live, name=name)
    assert (job.array_task, job.array_job_id) == (str(name), name.job_id)
    assert job.job_id != name.job_id
    assert (job.state, job.exit_code) == ("FAILED", 2)


@pytest.mark.parametrize("live", [True, False])
def test_tasks_that_wait_have_no_job_of_their_own(said: Recording, live: bool) -> None:
    name = parse_job(f"{said.ids['held']}_[1-4%2]")
    job = record(said, "held", live=live, name=name)
    assert (job.state, job.array_tasks, job.array_task) == ("PENDING", "1-4%2", "")
    assert (job.start_s, job.end_s, job.nodelist) == (None, None, "")


@pytest.mark.parametrize("live", [True, False])
def test_components_of_a_het_job_are_told_apart(said: Recording, live: bool) -> None:
    leader = said.ids["het"]
    first = record(said, "het", live=live)
    second = record(said, "het", live=live, name=JobName(leader, offset=1))
    assert (first.job_id, first.het_job_id, first.het_offset) == (leader, leader, 0)
    assert (second.job_id, second.het_job_id, second.het_offset) == (leader + 1, leader, 1)
    assert (first.num_nodes, second.num_nodes, second.gpus) == (1, 2, 2)
    assert first.het_components == ((leader, leader + 1) if live else ())


@pytest.mark.parametrize("live", [True, False])
def test_a_name_that_imitates_slurm_changes_nothing(said: Recording, live: bool) -> None:
    job = record(said, "hostile", live=live)
    assert job.job_id == said.ids["hostile"]
    assert (job.user, job.num_nodes) == ("nccl-demo", 1)
    assert job.name == "".join(one if one.isprintable() else "?" for one in HOSTILE)
    assert job.switches in (None, 0)
    assert (job.state, job.exit_code) == ("COMPLETED", 0)


def test_what_sacct_says_is_cut_into_records_by_count_alone(said: Recording) -> None:
    columns = said.columns("hostile")
    output = said.output("hostile", "sacct")
    assert accounting.read_rows(output[:-3], columns, DELIMITER) is None
    assert accounting.read_rows(output, columns[1:], DELIMITER) is None
    assert accounting.read_rows("", columns, DELIMITER) == []
    four = DELIMITER.join("abcd") + DELIMITER
    assert accounting.read_rows(four, ["one", "two"], DELIMITER) is None


def test_leaf_switches_are_read(said: Recording) -> None:
    places = read_places(said.output("topology", "scontrol"))
    assert places == {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}
    assert used(places, ["n2", "n3", "n9"]) == {"": ("n9",), "leaf1": ("n2",), "leaf2": ("n3",)}


def test_blocks_are_read() -> None:
    places = read_places((folder() / "blocks.txt").read_text())
    assert places == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}


@pytest.mark.parametrize(
    "output",  # of Slurm 26.05
    [
        "RingName=r1 Nodes=n[1-4] RingSize=4\n",
        "TorusName=t1 Dims=2x2x1 Nodes=n[1-4]\n",
        "",
    ],
)
def test_a_topology_without_switches_or_blocks_has_no_places(output: str) -> None:
    assert read_places(output) == {}


def test_segments_are_told_by_the_release_that_tells_them() -> None:
    assert record(load("26.05"), "segment", live=True).segment == 1
    assert record(load("24.11"), "segment", live=True).segment is None
