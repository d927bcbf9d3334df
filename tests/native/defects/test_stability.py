"""S1 to S13: what a profiler can do to the job."""

import signal
from pathlib import Path

from tests.support.planted_defects import (
    Plant,
    defect,
    dies_of,
    hangs,
    observed,
    preceded,
    writes_no_file,
)
from tests.support.scripted_nccl import Facts, Stage, step

MIB = 1 << 20
OPS = "nccl_collective_operations_total"  # unlike a rate, it stays for more than an interval
COMM = step("comm", name="world", ranks=4)
ALL_REDUCE = step("coll", func="AllReduce", bytes=MIB, times=8)
PAUSE = step("pause")
FINALIZE = step("finalize")
LOOK = step("look")
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
JSON = {"NCCL_INSPECTOR_RUN_DIR": "", "NCCL_INSPECTOR_PROM_DUMP": "0"}
REPORT_ONLY = {"NCCL_INSPECTOR_PROM_DUMP": "0"}


def facts_of(facts: list[Facts], verb: str) -> list[Facts]:
    """What the steps of that kind have said."""
    return [one for one in facts if one["step"] == verb]


@defect("S1", "the application hangs", hangs("finalize"))
def test_destroying_a_communicator_does_not_wait_for_the_interval(stage: Stage) -> None:
    facts = stage.play(COMM, ALL_REDUCE, FINALIZE, env={INTERVAL: "30000000"})
    assert facts_of(facts, "finalize")[0]["ms"] < 1000


@defect("S1", "the application hangs", hangs("finalize"))
def test_destroying_a_communicator_does_not_wait_for_lines(stage: Stage) -> None:
    facts = stage.play(COMM, ALL_REDUCE, FINALIZE, env=JSON | {INTERVAL: "30000000"})
    assert facts_of(facts, "finalize")[0]["ms"] < 1000


def check_name(stage: Stage, name: bytes) -> None:
    """Lines of a communicator of that name are written, and it is destroyed."""
    comm = step("comm", name=name, ranks=4)
    with stage.playing(comm, ALL_REDUCE, PAUSE, FINALIZE, env=JSON) as playing:
        playing.until_pause()
        stage.wait(lambda: list(stage.out.glob("*.log")), "no file")
        playing.finish()
    assert len(stage.lines()) == 8


@defect("S2", "the application hangs", hangs("finalize"))
def test_a_name_cut_within_a_character_hangs_nobody(stage: Stage) -> None:
    check_name(stage, "é".encode() * 127 + b"\xc3")


@defect("S2", "the application hangs", hangs("finalize"))
def test_a_name_with_control_characters_hangs_nobody(stage: Stage) -> None:
    check_name(stage, b"a\x1b[31m\nb")


@defect("S3", "the application hangs", hangs("finalize"))
def test_output_that_blocks_does_not_block_nccl(stage: Stage) -> None:
    blocked = step("set", write_ms=-1)
    stuck = step("await", stuck=1)
    facts = stage.play(
        COMM, blocked, ALL_REDUCE, stuck, step("comm", id=2), FINALIZE, step("finalize", comm=1)
    )
    assert facts_of(facts, "await") == [{"step": "await", "seen": True}]
    assert sum(one["ms"] for one in facts_of(facts, "finalize")) < 1000


@defect("S4", "the application hangs", hangs("finalize"))
def test_a_handle_of_a_finished_operation_hangs_nobody(stage: Stage) -> None:
    twice = step("coll", func="AllReduce", bytes=MIB, kernel="twice", times=100)
    stage.play(COMM, twice, FINALIZE, env=REPORT_ONLY)
    (box,) = stage.boxes()
    assert sum(key.ops for key in box.keys) == 100


@defect("S5", "memory grows with operations that never end", observed("look", 1, rss_bytes=2 * MIB))
def test_operations_that_never_end_cost_no_memory(stage: Stage) -> None:
    warm = step("coll", func="AllReduce", bytes=MIB, kernel="none", times=5000)
    silent = step("coll", func="AllReduce", bytes=MIB, kernel="none", times=10_000)
    facts = stage.play(COMM, warm, LOOK, silent, LOOK, env=REPORT_ONLY)
    before, after = facts_of(facts, "look")
    grown = after["rss_bytes"] - before["rss_bytes"]
    assert grown < MIB, "memory grows with operations that never end"


@defect("S6", "the application died of SIGSEGV", dies_of(signal.SIGSEGV))
def test_a_type_that_is_missing_crashes_nobody(stage: Stage) -> None:
    stage.play(COMM, step("coll", null=1, bytes=MIB), step("p2p", null=1, bytes=MIB), FINALIZE)


@defect("S6", "the application died of", dies_of(signal.SIGBUS))
def test_more_channels_than_there_can_be_crash_nobody(stage: Stage) -> None:
    many = step("coll", func="AllReduce", bytes=MIB, channels=200, times=4)
    stage.play(COMM, many, FINALIZE)


@defect("S6", "the application died of SIGSEGV", dies_of(signal.SIGSEGV))
def test_a_kernel_event_after_the_end_crashes_nobody(stage: Stage) -> None:
    stage.play(COMM, ALL_REDUCE, FINALIZE, step("late"))


def own(where: Path) -> dict[str, str]:
    """A directory that is the user's own, without Slurm's."""
    return {"NCCL_INSPECTOR_RUN_DIR": "", "NCCL_INSPECTOR_DUMP_DIR": str(where)}


@defect("S7", "no output where another rank was faster", writes_no_file())
def test_a_directory_that_another_rank_makes_is_used(stage: Stage) -> None:
    where = stage.out / "made"
    race = step("set", mkdir_race=1)
    with stage.playing(race, COMM, ALL_REDUCE, PAUSE, env=own(where)) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find(OPS), "no output where another rank was faster")


@defect("S7", "no output where a parent is missing", writes_no_file())
def test_a_directory_for_lines_is_made_with_its_parents(stage: Stage) -> None:
    where = own(stage.out / "a" / "b" / "c") | {"NCCL_INSPECTOR_PROM_DUMP": "0"}
    with stage.playing(COMM, ALL_REDUCE, PAUSE, env=where) as playing:
        playing.until_pause()
        stage.wait(stage.lines, "no output where a parent is missing")


@defect("S7", "no output where a parent is missing", writes_no_file())
def test_a_directory_for_metrics_is_made_with_its_parents(stage: Stage) -> None:
    where = stage.out / "a" / "b" / "c"
    with stage.playing(COMM, ALL_REDUCE, PAUSE, env=own(where)) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find(OPS), "no output where a parent is missing")


# A thread of the plugin that does not come back from a write.
STUCK = (step("set", write_ms=-1), ALL_REDUCE, step("await", stuck=1))
TWINS = (step("comm", id=7, ranks=4), step("comm", id=7, ranks=4))


@defect("S8", "a thread stays behind", preceded("finalize", *STUCK))
def test_two_communicators_of_one_id_end_like_any_other(stage: Stage) -> None:
    last = step("finalize", comm=1)
    with stage.playing(*TWINS, FINALIZE, last, PAUSE) as playing:
        playing.until_pause()
        tasks = Path(f"/proc/{playing.process.pid}/task")
        stage.wait(lambda: len(list(tasks.iterdir())) == 1, "a thread stays behind")


@defect("S9", "the handle is left as it was", observed("stray", unwritten=10))
def test_a_handle_is_written_for_no_communicator_too(stage: Stage) -> None:
    facts = stage.play(COMM, step("stray", times=10), FINALIZE)
    assert facts_of(facts, "stray")[0]["unwritten"] == 0, "the handle is left as it was"


@defect("S10", "locks", observed("coll", 1, locks=28))
def test_an_operation_takes_no_lock_and_reads_two_clocks(stage: Stage) -> None:
    ops = step("coll", func="AllReduce", bytes=MIB, channels=8, times=1000)
    facts = stage.play(COMM, ops, ops, FINALIZE, env=REPORT_ONLY)
    last = facts_of(facts, "coll")[1]
    assert last["locks"] == 0, "locks"
    assert last["clocks"] <= 2000


@defect("S11", "a core for nothing", observed("look", 1, cpu_ms=300))
def test_no_interval_is_not_a_busy_loop(stage: Stage) -> None:
    wait = step("await", ms=300)
    facts = stage.play(COMM, ALL_REDUCE, LOOK, wait, LOOK, env=JSON | {INTERVAL: "0"})
    before, after = facts_of(facts, "look")
    assert after["cpu_ms"] - before["cpu_ms"] < 15, "a core for nothing"


@defect("S11", "lines without bound", Plant(environment={"NCCL_INSPECTOR_JSON_MAX_BYTES": ""}))
def test_lines_take_no_more_room_than_they_may(stage: Stage) -> None:
    ops = step("coll", func="AllReduce", bytes=MIB, times=1000)
    written = step("await", writes=1)
    some = [word for _ in range(4) for word in (*ops, *written)]
    limits = {"NCCL_INSPECTOR_JSON_MAX_BYTES": "65536", "NCCL_INSPECTOR_JSON_FILES": "2"}
    stage.play(COMM, some, FINALIZE, env=JSON | limits)
    taken = sum(path.stat().st_size for path in stage.out.rglob("*.log"))
    assert 0 < taken <= 65536, "lines without bound"


@defect("S12", "a line for each event", observed("look", log_lines=1000))
def test_events_of_an_odd_communicator_fill_no_log(stage: Stage) -> None:
    events = step("stray", comm=1, times=500)
    facts = stage.play(*TWINS, events, step("stray", times=500), LOOK, FINALIZE)
    assert facts_of(facts, "look")[0]["log_lines"] <= 10, "a line for each event"


@defect("S13", "the application died of SIGABRT", dies_of(signal.SIGABRT))
def test_a_lack_of_memory_costs_only_metrics(stage: Stage) -> None:
    short, enough = step("set", short_of_memory=1), step("set", short_of_memory=0)
    written = step("await", writes=2)
    with stage.playing(
        COMM, short, ALL_REDUCE, written, enough, ALL_REDUCE, PAUSE, FINALIZE
    ) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find(OPS) == [16], "no metrics")
        playing.finish()
