# SPDX-License-Identifier: Apache-2.0
"""The controller service without a Slurm: what it makes of the queue, and what failures cost."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.controller import children, passes, report_child
from nccl_inspector.controller.children import Children
from nccl_inspector.controller.due_reports import SETTLE_S
from nccl_inspector.controller.duty import alone
from nccl_inspector.controller.outcome import Outcome
from nccl_inspector.controller.passes import TRIES_MAX, Controller
from nccl_inspector.controller.queue import TORN_S, Queue
from nccl_inspector.controller.remake_index import rebuild
from nccl_inspector.controller.report_child import Makers, make_report
from nccl_inspector.controller.unentered import noted
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.errors import InspectorError
from nccl_inspector.model.card import Card
from nccl_inspector.render.json import card_from_json
from nccl_inspector.settings.config import Config
from nccl_inspector.store.place import INDEX
from nccl_inspector.store.suspects import read_suspects
from nccl_inspector.summary.attempts import Loaded, load_summaries
from nccl_inspector.summary.codec import encode
from tests.sandbox import wait_until
from tests.support.nvidia_files import UUID, bucket, record_of
from tests.support.postgres import Postgres
from tests.support.queued_jobs import ended_job, enqueue, left, run_pass, stored, summarize
from tests.support.summaries import HEAD

Deed = Callable[[], object]


def test_an_ended_job_becomes_a_stored_report(config: Config, tmp_path: Path) -> None:
    ended_job(config, tmp_path, 42)
    assert run_pass(config, usual_makers(config)) == 0
    card = card_from_json((config.store_dir / "42" / "0.json").read_bytes())
    assert (card.job.job_id, card.job.name, card.job.user) == (42, "train", HEAD.user)
    assert card.communicators[0].nranks == 2
    assert stored(config) == [42]
    assert left(config) == left(config, "failed") == []


def test_a_pass_also_lists_the_suspect_nodes_for_all_users(config: Config, tmp_path: Path) -> None:
    ended_job(config, tmp_path, 42)
    run_pass(config, usual_makers(config))
    listed = read_suspects(config.store_dir)
    assert listed is not None
    assert (listed.jobs, listed.suspects) == (1, ())


def test_a_job_that_nvidias_plugin_measured_has_a_stored_report_of_its_means(
    config: Config,
) -> None:
    enqueue(config, 42)
    head = replace(HEAD, job_id=42, node="n1", nodelist="n1", num_nodes=1, restart=0)
    place = config.report_dir / "42"
    place.mkdir()
    dumped = record_of({UUID: [bucket(), bucket()]}).means()
    (place / "n1.0.nodesummary").write_bytes(encode(head, [], None, dumped))
    assert run_pass(config, usual_makers(config)) == 0
    card = card_from_json((config.store_dir / "42" / "0.json").read_bytes())
    assert (card.verdict.status, card.job.name) == ("CANNOT TELL", "train")
    assert card.operations[0].notes[-1].startswith("2 dumps of 1 GPU; ")
    assert b"2 dumps of 1 GPU" in (config.store_dir / "42" / "0.html").read_bytes()
    assert stored(config) == [42]
    assert left(config) == left(config, "failed") == []


def test_a_claimed_array_task_is_not_stored_when_slurm_knows_of_none(
    config: Config, tmp_path: Path
) -> None:
    """The controller's epilog is told of each task's array, and was of none here."""
    ended_job(config, tmp_path, 42)
    path = config.report_dir / "42" / "n1.0.nodesummary"
    head, _, blocks = path.read_bytes().partition(b"\n")
    path.write_bytes(head.replace(b'"array_task": ""', b'"array_task": "100_3"') + b"\n" + blocks)
    assert load_summaries(42, config.report_dir, None).head.array_task == "100_3"
    run_pass(config, usual_makers(config))
    card = card_from_json((config.store_dir / "42" / "0.json").read_bytes())
    assert card.job.array_task == ""


def test_the_array_task_that_the_controllers_epilog_was_told_is_stored(
    config: Config, tmp_path: Path
) -> None:
    enqueue(config, 42, "array_job_id=40\narray_task_id=2\n")
    summarize(config, tmp_path / "boxes", 42)
    run_pass(config, usual_makers(config))
    card = card_from_json((config.store_dir / "42" / "0.json").read_bytes())
    assert card.job.array_task == "40_2"


def test_a_job_without_nccl_leaves_the_queue_and_no_report(config: Config) -> None:
    enqueue(config, 42)
    assert run_pass(config, usual_makers(config)) == 0
    assert list(config.store_dir.iterdir()) == []


def bad_only(config: Config, number: int, deed: Deed) -> Makers:
    """Makers of which the card of one job does something bad."""

    def card(loaded: Loaded) -> Card:
        if loaded.head.job_id == number:
            deed()
        return usual_makers(config).card(loaded)

    return replace(usual_makers(config), card=card)


def crash() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # not pytest's, which writes a page about it
    os.kill(os.getpid(), signal.SIGSEGV)


def eat_memory() -> None:
    bytearray(children.CHILD_BYTES)


def raise_error() -> None:
    raise KeyError("something nobody thought of")


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        (crash, "ended by SIGSEGV"),
        pytest.param(eat_memory, "more memory", marks=pytest.mark.long),
        pytest.param(raise_error, "process failed", marks=pytest.mark.long),
    ],
)
def test_a_bad_job_stops_no_other_and_is_set_aside_at_last(
    config: Config, tmp_path: Path, deed: Deed, why: str
) -> None:
    for number in (41, 42, 43):
        ended_job(config, tmp_path, number)
    makers = bad_only(config, 42, deed)
    assert run_pass(config, makers) == 1
    assert stored(config) == [41, 43]
    (name,) = left(config)
    assert name.endswith(".try1")
    for _ in range(TRIES_MAX - 1):
        run_pass(config, makers)
    assert left(config) == []
    kept, words = left(config, "failed")
    assert (kept, words) == (name.replace("try1", f"try{TRIES_MAX}"), f"{kept}.why")
    assert why in (config.controller_dir / "failed" / words).read_text()
    # An administrator moves it back when the fault is mended.
    failed = config.controller_dir / "failed" / kept
    failed.rename(config.controller_dir / "queue" / kept.partition(".try")[0])
    assert run_pass(config, usual_makers(config)) == 0
    assert stored(config) == [41, 42, 43]


@pytest.mark.long
def test_a_job_that_takes_for_ever_is_ended(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "CHILD_S", 1)
    ended_job(config, tmp_path, 42)
    assert run_pass(config, bad_only(config, 42, signal.pause)) == 1
    assert left(config)[0].endswith(".try1")


def test_a_fault_of_the_storage_is_no_fault_of_the_job(config: Config, tmp_path: Path) -> None:
    ended_job(config, tmp_path, 42)
    moved = config.store_dir.rename(config.store_dir.with_name("gone"))
    for _ in range(TRIES_MAX + 2):
        assert run_pass(config, usual_makers(config)) == 1
    assert ".try" not in left(config)[0]
    moved.rename(config.store_dir)
    assert run_pass(config, usual_makers(config)) == 0
    assert stored(config) == [42]


DOWN = "Unable to contact slurm controller (connect failure)"


def slurm_that_says(folder: Path, words: str) -> Path:
    """A scontrol and a sacct that both fail with this."""
    for name in ("scontrol", "sacct"):
        program = folder / name
        program.write_text(
            "#!/bin/sh\n"
            '[ "$1" != --version ] || { echo slurm-wlm 24.11.5; exit; }\n'
            f"echo 'slurm_load_jobs error: {words}' >&2; exit 1\n"
        )
        program.chmod(0o755)
    return folder / "scontrol"


def test_reports_wait_for_a_slurmctld_that_is_down(config: Config, tmp_path: Path) -> None:
    """What Slurm says of a job would be missing in its report for ever."""
    config = replace(config, scontrol=slurm_that_says(tmp_path, DOWN))
    for job_id in (41, 42):
        ended_job(config, tmp_path, job_id)
    assert run_pass(config, usual_makers(config)) == 2
    assert not [*config.store_dir.glob("4?/*.json")]
    assert [name.partition(".")[0] for name in left(config)] == ["41", "42"]
    slurm_that_says(tmp_path, "Invalid job id specified")
    assert run_pass(config, usual_makers(config)) == 0
    assert stored(config) == [41, 42]


def test_a_report_does_not_wait_longer_than_an_hour_for_slurmctld(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, scontrol=slurm_that_says(tmp_path, DOWN))
    ended_job(config, tmp_path, 42)
    monkeypatch.setattr(report_child, "SLURM_WAIT_S", 30)  # it ended a minute ago
    assert run_pass(config, usual_makers(config)) == 0
    card = card_from_json((config.store_dir / "42" / "0.json").read_bytes())
    assert any(DOWN in one.detail for one in card.data_quality.inputs), "it says what is missing"


def test_an_index_that_is_locked_gets_its_rows_when_it_is_free(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for who in ("_WRITER_WAITS_S", "_READER_WAITS_S"):
        monkeypatch.setattr(f"nccl_inspector.store.sqlite_file.{who}", 0)
    ended_job(config, tmp_path, 41)
    assert run_pass(config, usual_makers(config)) == 0
    ended_job(config, tmp_path, 42)
    with closing(sqlite3.connect(config.store_dir / INDEX)) as reader:
        reader.execute("BEGIN EXCLUSIVE")
        assert run_pass(config, usual_makers(config)) == 0
        assert (config.store_dir / "42" / "0.json").exists(), "the report itself does not wait"
    assert stored(config) == [41]
    run_pass(config, usual_makers(config))
    assert stored(config) == [41, 42]


@pytest.mark.long
def test_a_database_that_is_down_delays_rows_and_no_report(
    config: Config, tmp_path: Path, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = replace(config, store_url=postgres.url(postgres.new_database()), cluster="c1")
    ended_job(config, tmp_path, 41)
    run_pass(config, usual_makers(config))
    postgres.stop()
    try:
        for number in (42, 43, 44):
            ended_job(config, tmp_path, number)
        assert run_pass(config, usual_makers(config)) == 0
        (config.store_dir / "43" / "0.json").unlink()
        (config.store_dir / "44" / "0.json").write_text("{}")
        run_pass(config, usual_makers(config))
        assert sum("cannot be used now" in one for one in caplog.messages) < 6, "said once a pass"
    finally:
        postgres.start()
    assert stored(config) == [41]
    run_pass(config, usual_makers(config))
    assert stored(config) == [41, 42], "one was removed meanwhile, and one cannot be read"
    assert "1 report entered into the index later" in caplog.text
    caplog.clear()
    run_pass(config, usual_makers(config))
    assert "later" not in caplog.text


@pytest.mark.long
def test_a_report_that_the_database_refuses_delays_no_other(
    config: Config, tmp_path: Path, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    database = postgres.new_database()
    config = replace(config, store_url=postgres.url(database), cluster="c1")
    ended_job(config, tmp_path, 41)
    run_pass(config, usual_makers(config))
    postgres.stop()
    try:
        for number in (42, 43, 44):
            ended_job(config, tmp_path, number)
        run_pass(config, usual_makers(config))
    finally:
        postgres.start()
    postgres.run_sql(database, "ALTER TABLE jobs ADD CONSTRAINT odd CHECK (job_id <> 43)")
    for _ in range(2):
        run_pass(config, usual_makers(config))
        assert stored(config) == [41, 42, 44]
        assert set(noted(config.controller_dir)) == {(43, 0)}, "for the doctor"
    assert "the index refuses the rows of 1 job: 43" in caplog.text
    assert rebuild(config) == (3, 1), "nor does it keep an index from being made anew"
    postgres.run_sql(database, "ALTER TABLE jobs DROP CONSTRAINT odd")
    run_pass(config, usual_makers(config))
    assert stored(config) == [41, 42, 43, 44]


def test_what_cannot_be_looked_at_of_one_job_holds_no_other(config: Config, tmp_path: Path) -> None:
    for number in (41, 42):
        ended_job(config, tmp_path, number)
    (config.store_dir / "41").mkdir()
    (config.store_dir / "41" / "0.json").symlink_to("gone")
    (config.store_dir / "42").mkdir()
    (config.store_dir / "42" / "\u00b2.json").write_text("{}")
    assert run_pass(config, usual_makers(config)) == 1
    assert stored(config) == [42]


def test_a_broken_index_keeps_no_report_from_being_stored(config: Config, tmp_path: Path) -> None:
    ended_job(config, tmp_path, 42)
    (config.store_dir / INDEX).write_bytes(b"this is no index" * 100)
    assert run_pass(config, usual_makers(config)) == 0
    assert (config.store_dir / "42" / "0.json").exists()


def test_a_service_that_is_killed_at_work_does_the_job_when_it_is_back(
    config: Config, tmp_path: Path
) -> None:
    ended_job(config, tmp_path, 42)
    at_work = tmp_path / "at-work"

    def wait() -> None:
        at_work.touch()
        signal.pause()

    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        run_pass(config, bad_only(config, 42, wait))
        os._exit(0)
    wait_until(at_work.exists, 10, "the child is at work")
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    (name,) = left(config)
    assert name.endswith(".try1")
    assert run_pass(config, usual_makers(config)) == 0
    assert stored(config) == [42]


def test_a_torn_file_is_set_aside_once_nobody_writes_it_any_more(config: Config) -> None:
    path = config.controller_dir / "queue" / "42.1000000000"
    path.write_text("format=1\njob_id=42\n")
    assert run_pass(config, usual_makers(config)) == 0
    assert left(config) == ["42.1000000000"]
    os.utime(path, (time.time() - TORN_S - 1,) * 2)
    run_pass(config, usual_makers(config))
    assert left(config) == []
    assert left(config, "failed") == ["42.1000000000", "42.1000000000.why"]


@pytest.mark.parametrize("attempt", [0, 3])
def test_an_end_of_which_only_the_name_had_room_is_reported(
    config: Config, tmp_path: Path, attempt: int
) -> None:
    summarize(config, tmp_path / "42", 42, restart=attempt)
    path = config.controller_dir / "queue" / "42.1000000000000000000.u1000"
    path.touch()
    run_pass(config, usual_makers(config))
    assert left(config) == [path.name], "the epilog may be writing it"
    os.utime(path, (time.time() - TORN_S - 1,) * 2)
    assert run_pass(config, usual_makers(config)) == 0
    assert (left(config), left(config, "failed")) == ([], [])
    assert (config.store_dir / "42" / f"{attempt}.json").exists()


def test_what_is_no_file_of_the_queue_is_set_aside(config: Config, tmp_path: Path) -> None:
    queue = config.controller_dir / "queue"
    os.mkfifo(queue / "43.1000000000")
    (queue / "44.1000000000").symlink_to("/etc/passwd")
    (queue / "hello").touch()
    for name in ("43.1000000000", "44.1000000000", "hello"):
        os.utime(queue / name, (1, 1), follow_symlinks=False)
    ended_job(config, tmp_path, 42)
    assert run_pass(config, usual_makers(config)) == 0
    assert stored(config) == [42]
    assert left(config) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="we are not root")
def test_root_does_not_serve(config: Config) -> None:
    with pytest.raises(InspectorError, match="root does not read"), alone(config):
        pass


def test_a_child_that_says_nothing_has_failed() -> None:
    def silent() -> Outcome:
        os._exit(0)

    outcome = Children().run(silent, "says nothing")
    assert (outcome.word, "child process failed" in outcome.detail) == ("failed", True)


def test_an_end_of_the_future_waits_from_when_it_was_seen(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_job(config, tmp_path, 42)
    queue = Queue(config.controller_dir)
    controller = Controller(
        config, queue, lambda one: make_report(one, config, usual_makers(config))
    )
    monkeypatch.setattr(passes, "PASS_S", 0.0)
    back_s = time.time() - 3600  # the clock was set back after the job's end
    begin_s, monotonic = time.monotonic(), time.monotonic
    monkeypatch.setattr(time, "time", lambda: back_s + monotonic() - begin_s)
    assert controller.one_pass() == 1
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + SETTLE_S)
    assert controller.one_pass() == 0
    queue.close()
    assert stored(config) == [42]


def test_a_pass_by_a_timer_does_not_wait_for_the_future(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_job(config, tmp_path, 42)
    back_s = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: back_s)
    assert run_pass(config, usual_makers(config)) == 0
    assert stored(config) == [42]
