# SPDX-License-Identifier: Apache-2.0
"""The controller service without a Slurm: what is due when, and what failures cost."""

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.card.model import Card
from nccl_inspector.card.schema import card_from_json
from nccl_inspector.config import Config, parse_config
from nccl_inspector.controller import making, service
from nccl_inspector.controller.due import SETTLE_S, Due, Look, find_due
from nccl_inspector.controller.making import Makers, Outcome, make_report
from nccl_inspector.controller.queue import TORN_S, Entry, Queue
from nccl_inspector.controller.service import TRIES_MAX, Controller, alone, run_in_child
from nccl_inspector.controller.wiring import usual_makers
from nccl_inspector.errors import InspectorError
from nccl_inspector.report import Loaded
from nccl_inspector.reportdir import SummaryFile
from nccl_inspector.store.index import INDEX, reading
from nccl_inspector.store.queries import Wish, find_jobs
from nccl_inspector.summary import encode, encode_process
from tests.boxes import MS, BoxOf, CommOf, KeyOf, write_box
from tests.cluster import wait_until
from tests.publish.vendor import UUID, bucket, record_of
from tests.test_collect import HEAD, read_process

NOW_S = 1_700_000_000.0
WAIT_S = 900.0
Deed = Callable[[], object]


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
) -> Look:
    by_job: dict[int, dict[SummaryFile, int]] = {one.job_id: {} for one in entries}
    for file, at_ns in found.items():
        by_job[file.job_id][file] = at_ns
    return find_due(entries, by_job, stored_ns or {}, NOW_S, WAIT_S)


def test_a_report_is_due_when_all_nodes_have_told() -> None:
    one = entry()
    assert due([one], files(["n1"])) == Look()
    assert due([one], files(["n1", "n2"])) == Look(Due(42, 0, (one,), True))


def test_after_the_wait_it_is_made_of_what_there_is() -> None:
    one = entry(age_s=WAIT_S + 1)
    assert due([one], files(["n1"])) == Look(Due(42, 0, (one,), False))
    assert due([one], {}) == Look(empty=(one,))


def test_right_after_the_end_nothing_is_due() -> None:
    assert due([entry(age_s=SETTLE_S / 2)], files(["n1", "n2"])) == Look()


def test_of_a_requeued_job_the_attempt_that_ended_is_meant() -> None:
    # slurmctld counts the restarts up before the epilog of the attempt that is over.
    first, last = entry(restart=1, age_s=100), entry(restart=1, age_s=50)
    zero, one = files(["n1", "n2"]), files(["n1", "n2"], 1, at_ns=5)
    assert due([first], zero) == Look(Due(42, 0, (first,), True))
    assert due([last], zero | one, {0: 2}) == Look(Due(42, 1, (last,), True))
    assert due([last], zero, {0: 2}) == Look()


def test_the_report_of_an_older_job_of_that_number_is_made_anew() -> None:
    one = entry()
    assert due([one], files(["n1", "n2"], at_ns=5), {0: 9}) == Look()
    assert due([one], files(["n1", "n2"], at_ns=10), {0: 9}) == Look(Due(42, 0, (one,), True))


def test_a_node_that_told_late_takes_no_report_from_the_next_attempt() -> None:
    # Attempt 0 was reported without n2, which told afterwards; then attempt 1 ends.
    told = files(["n1"]) | files(["n2"], at_ns=3)
    last, waited = entry(restart=1), entry(restart=1, age_s=WAIT_S + 1)
    assert due([last], told, {0: 2}) == Look(), "attempt 1 is waited for"
    assert due([last], told | files(["n1", "n2"], 1, at_ns=5), {0: 2}).due == Due(
        42, 1, (last,), True
    )
    assert due([waited], told | files(["n1"], 1, at_ns=5), {0: 2}).due == Due(
        42, 1, (waited,), False
    )


def test_a_het_job_is_one_report_when_all_components_have_told() -> None:
    parts = [entry("n1", job_id=42, het=42), entry("n2", job_id=43, het=42)]
    first, second = files(["n1"], job_id=42), files(["n2"], job_id=43)
    assert due(parts, first) == Look()
    assert due(parts, first | second) == Look(Due(42, 0, tuple(parts), True))


def test_an_end_of_the_future_waits_from_when_it_was_seen(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_job(config, tmp_path, 42)
    queue = Queue(config.controller_dir)
    controller = Controller(
        config, queue, lambda one: make_report(one, config, usual_makers(config))
    )
    monkeypatch.setattr(service, "PASS_S", 0.0)
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


def test_an_unreadable_node_list_is_waited_for_to_the_end() -> None:
    assert due([entry("n[1-")], files(["n1"])) == Look()
    assert due([entry("n[1-", age_s=WAIT_S + 1)], files(["n1"])).due


# The service itself, on directories of its own.


@pytest.fixture
def config(open_path: Path) -> Config:
    """A controller's directories, with a wait that is over at once."""
    for name in ("ctl/queue", "reports", "store"):
        (open_path / name).mkdir(parents=True)
    return replace(
        parse_config("", "none"), controller_dir=open_path / "ctl",
        report_dir=open_path / "reports", store_dir=open_path / "store", controller_wait_s=0.0,
    )  # fmt: skip


def enqueue(config: Config, job_id: int, more: str = "") -> Path:
    path = config.controller_dir / "queue" / f"{job_id}.{int(time.time() - 60)}000000000"
    path.write_text(f"format=1\njob_id={job_id}\nrestart=0\nname=train\nnodelist=n1\n{more}end\n")
    return path


def summarize(config: Config, folder: Path, job_id: int) -> None:
    """A node's summary, as its agent hands it over."""
    folder.mkdir()
    boxes = [BoxOf([CommOf(7, rank, 2)], [KeyOf(0, [5 * MS] * 20)], procid=rank) for rank in (0, 1)]
    processes = [read_process(write_box(folder, f"0_{n}", box)) for n, box in enumerate(boxes)]
    head = replace(HEAD, job_id=job_id, node="n1", nodelist="n1", num_nodes=1, restart=0)
    place = config.report_dir / str(job_id)
    place.mkdir()
    (place / "n1.0.nodesummary").write_bytes(encode(head, [encode_process(p) for p in processes]))


def ended_job(config: Config, folder: Path, job_id: int) -> None:
    enqueue(config, job_id)
    summarize(config, folder / str(job_id), job_id)


def run_pass(config: Config, makers: Makers) -> int:
    queue = Queue(config.controller_dir)
    try:
        controller = Controller(config, queue, lambda one: make_report(one, config, makers))
        return controller.one_pass(at_once=True)
    finally:
        queue.close()


def left(config: Config, folder: str = "queue") -> list[str]:
    return sorted(path.name for path in (config.controller_dir / folder).iterdir())


def stored(config: Config) -> list[int]:
    with reading(config.store_dir) as (index, _):
        return sorted(job.job_id for job in find_jobs(index, Wish()))


def test_an_ended_job_becomes_a_stored_report(config: Config, tmp_path: Path) -> None:
    ended_job(config, tmp_path, 42)
    assert run_pass(config, usual_makers(config)) == 0
    card = card_from_json((config.store_dir / "42" / "0.json").read_bytes())
    assert (card.job.job_id, card.job.name, card.job.user) == (42, "train", HEAD.user)
    assert card.communicators[0].nranks == 2
    assert stored(config) == [42]
    assert left(config) == left(config, "failed") == []


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
    bytearray(service.CHILD_BYTES)


def raise_error() -> None:
    raise KeyError("something nobody thought of")


@pytest.mark.parametrize(
    ("deed", "why"),
    [(crash, "ended by SIGSEGV"), (eat_memory, "more memory"), (raise_error, "broke off")],
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


def test_a_job_that_takes_for_ever_is_ended(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CHILD_S", 1)
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


def test_an_index_that_is_locked_gets_its_rows_when_it_is_free(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nccl_inspector.store.index._WRITER_WAITS_S", 0)
    ended_job(config, tmp_path, 41)
    assert run_pass(config, usual_makers(config)) == 0
    ended_job(config, tmp_path, 42)
    with closing(sqlite3.connect(config.store_dir / INDEX)) as reader:
        reader.execute("BEGIN EXCLUSIVE")
        assert run_pass(config, usual_makers(config)) == 1
    assert run_pass(config, usual_makers(config)) == 0
    assert stored(config) == [41, 42]


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

    outcome = run_in_child(silent)
    assert (outcome.word, "broke off" in outcome.detail) == ("failed", True)


SCONTROL = """#!/bin/sh
echo "$*" >>{log}
case $1 in
--oneliner) {show} ;; update) {update} ;; --noheader) {sacct} ;; -i) {modify} ;; esac
"""


def comment(
    config: Config, folder: Path, show: str = "echo JobId=42", update: str = ":", modify: str = ":",
    *, sacct: str = ":", more: str = "", ended: bool = True,
) -> str:  # fmt: skip
    """One pass with a scontrol and a sacctmgr that say this; what they were asked."""
    log = folder / "log"
    for name in ("scontrol", "sacct", "sacctmgr"):
        text = SCONTROL.format(log=log, show=show, update=update, modify=modify, sacct=sacct)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if ended:
        enqueue(config, 42, more)
        summarize(config, folder / "42", 42)
    changed = replace(config, scontrol=folder / "scontrol", admin_comment=True)
    run_pass(changed, usual_makers(config))
    return log.read_text()


def test_the_verdict_goes_into_the_admin_comment(config: Config, tmp_path: Path) -> None:
    asked = comment(config, tmp_path)
    assert "update JobId=42 AdminComment=NCCL HEALTHY ranks=2/2" in asked
    assert left(config) == []


def test_a_comment_that_could_not_be_written_comes_with_the_next_try(
    config: Config, tmp_path: Path
) -> None:
    asked = comment(config, tmp_path, update="echo Unable to contact slurm controller >&2; exit 1")
    assert asked.count("update") == 1
    again = comment(config, tmp_path, ended=False)
    assert again.count("update") == 2
    assert left(config) == []


def test_a_comment_is_not_tried_for_ever(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "COMMENT_WAIT_S", 10)  # the job ended a minute ago
    comment(config, tmp_path, update=FINISHED, modify="echo ' Nothing modified'; exit 1")
    assert left(config) == []
    assert stored(config) == [42]


def test_somebody_elses_comment_stays(config: Config, tmp_path: Path) -> None:
    asked = comment(config, tmp_path, "echo JobId=42 AdminComment=JS1:abc Comment=x")
    assert "update" not in asked
    assert left(config) == []


FINISHED = "echo Job has already finished for job 42 >&2; exit 1"
NO_ACCOUNTING = "echo You are not running a supported accounting_storage plugin >&2; exit 1"


def test_where_slurmctld_changes_no_ended_job_the_database_is_asked(
    config: Config, tmp_path: Path
) -> None:
    asked = comment(config, tmp_path, update=FINISHED)
    assert "-i modify job where jobid=42 set AdminComment=NCCL HEALTHY" in asked
    assert left(config) == []


def test_a_comment_in_the_database_that_is_somebody_elses_stays(
    config: Config, tmp_path: Path
) -> None:
    forgotten = "echo Invalid job id specified >&2; exit 1"
    asked = comment(config, tmp_path, show=forgotten, sacct="echo JS1:abc")
    assert "modify" not in asked


def test_a_comment_of_our_own_in_the_database_is_renewed(config: Config, tmp_path: Path) -> None:
    asked = comment(config, tmp_path, update=FINISHED, sacct="echo nccl healthy")
    assert "-i modify job where jobid=42 set AdminComment=NCCL HEALTHY" in asked


def test_the_comment_of_an_arrays_last_task_is_on_no_other_task(
    config: Config, tmp_path: Path
) -> None:
    """It has the array's own number, by which scontrol and sacctmgr mean all tasks."""
    task = "array_job_id=42\narray_task_id=3\n"
    asked = comment(config, tmp_path, update=FINISHED, more=task)
    for words in ("show job 42_3\n", "update JobId=42_3 ", "--jobs=42_3 ", "where jobid=42_3 "):
        assert words in asked


@pytest.mark.parametrize(
    ("show", "update", "modify", "is_left"),
    [
        ("echo Unable to contact slurm controller >&2; exit 1", ":", ":", True),
        ("echo Invalid job id specified >&2; exit 1", ":", ":", False),
        ("echo JobId=42", "echo Access/permission denied >&2; exit 1", ":", False),
        ("echo JobId=42", FINISHED, NO_ACCOUNTING, False),
        ("echo JobId=42", FINISHED, "echo Connection refused >&2; exit 1", True),
    ],
)
def test_only_what_another_try_can_mend_is_tried_again(
    config: Config, tmp_path: Path, show: str, update: str, modify: str, is_left: bool
) -> None:
    comment(config, tmp_path, show, update, modify)
    assert bool(left(config)) is is_left
    assert stored(config) == [42]
