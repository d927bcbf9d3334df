"""D1 to D14: data that are wrong or missing."""

import time

import pytest

from nccl_inspector.model.process import EXITED, KILLED
from tests.support.planted_defects import Plant, defect, leaves, told, untold, writes_nothing_of
from tests.support.scripted_nccl import FAKECUDA, LIMIT_S, Facts, Stage, Step, step

MIB = 1 << 20
TIME = "nccl_collective_exec_time_microseconds"
RATE = "nccl_bus_bandwidth_gbs"
OPS = "nccl_collective_operations_total"  # unlike a rate, it stays for more than an interval
P2P_TIME = "nccl_p2p_exec_time_microseconds"
COMM = step("comm", name="world", ranks=4)
PAUSE = step("pause")
FINALIZE = step("finalize")
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
UNTIMED = "nccl_collective_untimed_operations_total"
UNTIMED_BYTES = "nccl_collective_untimed_bytes_total"
REPORT_ONLY = {"NCCL_INSPECTOR_PROM_DUMP": "0"}
JSON = {"NCCL_INSPECTOR_RUN_DIR": "", "NCCL_INSPECTOR_PROM_DUMP": "0"}


@defect("D1", "no series of messages on channels 16 to 19", told("p2p", kernel="none"))
def test_messages_are_seen_whatever_channels_they_use(stage: Stage) -> None:
    message = step("p2p", func="Send", bytes=MIB, first=16, channels=4, times=64)
    with stage.playing(COMM, message, PAUSE) as playing:
        playing.until_pause()
        stage.wait_series(P2P_TIME, "no series of messages on channels 16 to 19")


@defect("D1", "no series of collectives on channels 8 to 15", told("coll", kernel="none"))
def test_collectives_are_seen_whatever_channels_they_use(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, first=8, channels=8, times=64)
    with stage.playing(COMM, all_reduce, PAUSE) as playing:
        playing.until_pause()
        stage.wait_series(RATE, "no series of collectives on channels 8 to 15")


@defect("D2", "not the time by the GPU's clock", told("p2p", ns=4_000_000))
def test_a_gpu_clock_that_came_is_used(stage: Stage) -> None:
    message = step("p2p", func="Recv", bytes=MIB, first=16, channels=4, ns=5_000_000, times=4)
    with stage.playing(
        COMM, message, PAUSE, env={"NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING": "0"}
    ) as playing:
        playing.until_pause()
        time_us = stage.wait_series(P2P_TIME, "no series")
        assert time_us == pytest.approx(5000, rel=0.01), "not the time by the GPU's clock"


@defect("D3", "what came first in the interval is lost", untold("coll", func="AllGather"))
def test_no_rate_of_operations_is_too_high_for_the_metrics(stage: Stage) -> None:
    first = step("coll", func="AllGather", bytes=MIB, times=500)
    then = step("coll", func="AllReduce", bytes=MIB, times=2000)
    with stage.playing(COMM, first, then, PAUSE) as playing:
        playing.until_pause()
        stage.wait_series(RATE, "no series", collective="AllReduce")
        assert stage.find(TIME, collective="AllGather"), "what came first in the interval is lost"
        assert stage.find(OPS, collective="AllGather") == [500]
        assert stage.find(OPS, collective="AllReduce") == [2000]


@defect("D3", "lines of operations are missing", told("coll", times=4999))
def test_no_rate_of_operations_is_too_high_for_the_lines(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=5000)
    with stage.playing(COMM, all_reduce, PAUSE, FINALIZE, env=JSON) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.lines(), "no lines")
        playing.finish()
    assert len(stage.lines()) == 5000, "lines of operations are missing"


@defect("D4", "operations since the last dump are lost", told("coll", times=639))
def test_a_destroyed_communicator_loses_nothing(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=640)
    stage.play(COMM, all_reduce, FINALIZE, env=REPORT_ONLY)
    assert stage.operations() == 640, "operations since the last dump are lost"


@defect("D4", "operations since the last dump are lost", told("coll", times=639))
def test_a_destroyed_communicator_leaves_all_its_lines(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=640)
    stage.play(COMM, all_reduce, FINALIZE, env=JSON)
    assert len(stage.lines()) == 640, "operations since the last dump are lost"


@defect("D5", "nothing is written without an interval", untold("coll"))
def test_without_an_interval_all_is_there_in_the_end(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=64)
    stage.play(
        COMM,
        all_reduce,
        FINALIZE,
        env=REPORT_ONLY | {INTERVAL: ""},
    )
    assert stage.operations() == 64, "nothing is written without an interval"


@defect("D5", "nothing is written without an interval", untold("coll"))
def test_without_an_interval_all_lines_are_there_in_the_end(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=64)
    stage.play(COMM, all_reduce, FINALIZE, env=JSON | {INTERVAL: "-1"})
    assert len(stage.lines()) == 64, "nothing is written without an interval"


@defect("D6", "bytes of no known type have no true size", told("coll", count=4 * MIB))
def test_a_type_without_a_name_has_one_byte(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", type="Unknown", count=MIB, ns=100_000, times=4)
    with stage.playing(COMM, all_reduce, PAUSE) as playing:
        playing.until_pause()
        rate = stage.wait_series(RATE, "no series")
        sizes = {one.labels.get("message_size") for one in stage.series()} - {None}
        assert sizes == {"1-2MB"}, "bytes of no known type have no true size"
        assert rate == pytest.approx(1.5 * MIB / 100e3, rel=0.01)


@defect("D7", "more than a percent off", told("coll", ns=5_000))
def test_a_time_is_true_to_a_percent(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, ns=5_900, times=4)
    with stage.playing(COMM, all_reduce, PAUSE) as playing:
        playing.until_pause()
        time_us = stage.wait_series(TIME, "no series")
        assert time_us == pytest.approx(5.9, rel=0.01), "more than a percent off"


@defect("D7", "operations below a microsecond are not seen", told("coll", kernel="none"))
def test_a_time_below_a_microsecond_is_a_time(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=8192, ns=800, times=4)
    with stage.playing(COMM, all_reduce, PAUSE) as playing:
        playing.until_pause()
        time_us = stage.wait_series(TIME, "operations below a microsecond are not seen")
        assert time_us == pytest.approx(0.8, rel=0.01)


@defect("D8", "only means", writes_nothing_of("operations_total"))
def test_one_slow_operation_of_many_stands_out(stage: Stage) -> None:
    quick = step("coll", func="AllReduce", bytes=MIB, ns=100_000, times=99)
    slow = step("coll", func="AllReduce", bytes=MIB, ns=20_000_000)
    with stage.playing(COMM, quick, slow, PAUSE, FINALIZE) as playing:
        playing.until_pause()
        stage.wait_series(TIME, "no series")
        names = {one.name for one in stage.series()}
        assert OPS in names, "only means"
        assert stage.find(OPS) == [100]
        playing.finish()
    (key,) = [key for box in stage.boxes() for key in box.keys]
    assert (key.min_ns, key.max_ns) == (100_000, 20_000_000)
    assert key.histogram.counts == (99, 1)


@defect("D9", "numbers of an earlier interval stand", leaves(RATE))
def test_without_traffic_there_is_no_mean(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=8)
    with stage.playing(COMM, all_reduce, PAUSE) as playing:
        playing.until_pause()
        stage.wait_series(RATE, "no series")
        stage.wait(lambda: not stage.find(RATE), "numbers of an earlier interval stand")
        assert stage.find(OPS) == [8]


@defect("D9", "numbers of an ended process stand", leaves(RATE))
def test_an_exit_without_finalize_leaves_no_numbers(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=8)
    with stage.playing(COMM, all_reduce, PAUSE, step("exit")) as playing:
        playing.until_pause()
        stage.wait_series(RATE, "no series")
        playing.finish()
    assert not stage.proms(), "numbers of an ended process stand"
    assert [box.facts.state for box in stage.boxes()] == [EXITED]


@defect("D9", "nothing says that the process is dead", Plant(boxes=False))
def test_who_was_killed_is_known_to_be_dead(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, times=8)
    with stage.playing(COMM, all_reduce, PAUSE) as playing:
        playing.until_pause()
        stage.wait_series(OPS, "no series")
        playing.process.kill()
        playing.process.wait()
    states = [box.facts.state for box in stage.boxes()]
    assert states == [KILLED], "nothing says that the process is dead"
    assert stage.find("nccl_inspector_last_write_timestamp_seconds")


@defect("D10", "an operation that hangs is nowhere", writes_nothing_of("inflight"))
def test_an_operation_that_hangs_is_seen_to_grow_old(stage: Stage) -> None:
    well = step("coll", func="AllReduce", bytes=MIB, times=8)
    hung = step("coll", func="AllReduce", bytes=MIB, kernel="starts")
    age = "nccl_collective_inflight_seconds"
    with stage.playing(COMM, well, hung, PAUSE) as playing:
        playing.until_pause()
        stage.wait_series(OPS, "no series")
        first = stage.wait_series(age, "an operation that hangs is nowhere")
        stage.wait(lambda: stage.find(age) > [first + 0.2], "it does not grow old")
        assert stage.find("nccl_communicator_operations_enqueued_total") == [9]
        assert stage.find("nccl_communicator_operations_started_total") == [9]
        assert stage.find("nccl_communicator_operations_completed_total") == [8]


BROADCAST = step("call", func="Broadcast", bytes=MIB, times=3)
COPY_ENGINE = step("engine", func="AllGather", bytes=MIB, times=3)
SYMMETRIC = step("coll", func="AllReduce", bytes=MIB, channels=0, times=3)


def check_untimed(stage: Stage, operation: Step, func: str, api: int = 7) -> None:
    """Three operations of 1 MiB are there with their bytes, and nothing invents a time."""
    stage.play(COMM, operation, FINALIZE, api=api)
    assert stage.untimed(func) == (3, 3 * MIB), f"{func} is nowhere"
    assert stage.operations() == 0


@defect("D11", "Broadcast is nowhere", untold("call"))
def test_a_broadcast_without_kernel_events_is_counted(stage: Stage) -> None:
    with stage.playing(COMM, BROADCAST, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.untimed("Broadcast") == (3, 3 * MIB), "Broadcast is nowhere")


@defect("D11", "Broadcast is nowhere", untold("call"))
def test_a_broadcast_right_before_the_end_is_counted(stage: Stage) -> None:
    check_untimed(stage, BROADCAST, "Broadcast")


@defect("D11", "AllGather is nowhere", untold("engine"))
def test_a_copy_engine_collective_is_counted(stage: Stage) -> None:
    check_untimed(stage, COPY_ENGINE, "AllGather")


@defect("D11", "AllReduce is nowhere", untold("coll"))
def test_a_symmetric_kernel_without_events_is_counted(stage: Stage) -> None:
    check_untimed(stage, SYMMETRIC, "AllReduce")


@defect("D11", "not in the metrics", writes_nothing_of("untimed"))
def test_what_has_no_time_is_in_the_metrics(stage: Stage) -> None:
    funcs = ("Broadcast", "AllGather", "AllReduce")
    with stage.playing(COMM, BROADCAST, COPY_ENGINE, SYMMETRIC, PAUSE) as playing:
        playing.until_pause()
        for func in funcs:
            ops = stage.wait_series(UNTIMED, "not in the metrics", collective=func)
            assert ops == 3
            assert stage.find(UNTIMED_BYTES, collective=func) == [3 * MIB]
        assert not stage.find(TIME)


@defect("D12", "NCCL rejects the profiler", Plant(profiler=FAKECUDA))
def test_nccl_2_27_is_measured(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, ns=100_000, times=8)
    with stage.playing(COMM, all_reduce, PAUSE, api=4) as playing:
        playing.until_pause()
        assert stage.wait_series(TIME, "no series") == pytest.approx(100, rel=0.01)


@defect("D12", "NCCL rejects the profiler", Plant(profiler=FAKECUDA))
def test_nccl_2_26_is_measured_by_the_clock_of_the_host(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, real_us=20_000)
    with stage.playing(COMM, all_reduce, PAUSE, api=3) as playing:
        playing.until_pause()
        assert 20_000 <= stage.wait_series(TIME, "no series") < 200_000


COUNTED = step("coll", func="AllReduce", bytes=MIB, times=3)


@defect("D12", "NCCL rejects the profiler", Plant(profiler=FAKECUDA))
def test_nccl_2_24_is_counted(stage: Stage) -> None:
    check_untimed(stage, COUNTED, "AllReduce", api=2)


@defect("D12", "NCCL rejects the profiler", Plant(profiler=FAKECUDA))
def test_nccl_2_23_is_counted(stage: Stage) -> None:
    check_untimed(stage, COUNTED, "AllReduce", api=1)


@defect("D13", "not from the first start to the last end", told("coll", stagger=0))
def test_the_time_is_from_the_first_start_to_the_last_end(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, ns=1_000_000, stagger=1_000_000, times=4)
    with stage.playing(COMM, all_reduce, PAUSE) as playing:
        playing.until_pause()
        time_us = stage.wait_series(TIME, "no series")
        assert time_us == pytest.approx(8000, rel=0.01), "not from the first start to the last end"


def without_words(line: Facts) -> Facts:
    """A line that says of its operation how long it took, and no more."""
    return line | {"coll_perf": {"coll_exec_time_us": 123}}


@defect("D14", "a line lacks", Plant(read_line=without_words))
def test_a_line_tells_all_of_its_operation(stage: Stage) -> None:
    all_reduce = step("coll", func="AllReduce", bytes=MIB, ns=123_456, times=8)
    with stage.playing(COMM, all_reduce, PAUSE, env=JSON) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.lines(), "no lines")
    line = stage.lines()[0]
    words = line["metadata"] | line["coll_perf"]
    asked = {
        "coll_algo": "RING",
        "coll_proto": "SIMPLE",
        "coll_channels": 8,
        "coll_exec_time_ns": 123_456,
        "slurm_job_id": 4711,
    }
    for word, value in asked.items():
        assert words.get(word) == value, f"a line lacks {word}"
    assert words["gpu_uuid"].startswith("GPU-")
    assert abs(words["coll_start_us"] / 1e6 - time.time()) < LIMIT_S
