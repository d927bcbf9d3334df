"""The stand-in is an application whose figures can be trusted, and whose faults are the planted."""

import os
import signal
from collections import defaultdict
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import median, mode

import pytest

from tests.support.standin import RECORDER, STANDIN, Run, collect, finished, started, until

NODES, PER_NODE = 4, 2
RANKS = NODES * PER_NODE
FAULT_MS = 40  # the default
SLOW = 5
RATE_MBS = 40  # the default
CALM = 0.15  # share of the processors that others may have, where times are judged
# They judge times, so they run with the long tests, one after the other.
pytestmark = pytest.mark.long

QUICK = ("--sizes", "32K", "--rate", "400", "--compute-ms", "0", "--steps", "1")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight ranks with the default pace, sizes and operations; calm, if it can be had."""
    for _ in range(3):
        run = finished(tmp_path_factory.mktemp("healthy"), "--seconds", "4", ranks=RANKS)
        assert run.codes == [0] * RANKS, run.stderr
        if run.foreign < CALM:
            break
    return run


@pytest.fixture
def calm(healthy: Run) -> Run:
    """The healthy run, where its times say something about the stand-in."""
    if healthy.foreign >= CALM:
        pytest.skip(f"others had {healthy.foreign:.0%} of the processors, three times over")
    return healthy


@dataclass(frozen=True)
class Slow:
    """A run with a planted slow rank."""

    fault_ms: int
    by_function: dict[str, list[dict[int, float]]]  # where the slow rank takes part
    others: list[dict[int, float]]


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory, healthy: Run) -> Slow:
    """The fault is ten times the spread that was measured without it: busy machines spread more."""
    fault_ms = max(FAULT_MS, ceil(10 * healthy.median_spread_ms()))
    args = ("--seconds", "4", "--sizes", "512K", "--ops", "allreduce,allgather,reducescatter")
    planted = ("--slow-rank", f"{SLOW}:{fault_ms}")
    run = finished(tmp_path_factory.mktemp("slow"), *args, *planted, ranks=RANKS)
    assert run.codes == [0] * RANKS, run.stderr
    slow = Slow(fault_ms, {}, [])
    for (_, func, _, _), ranks in run.durations_ms().items():
        (slow.by_function.setdefault(func, []) if SLOW in ranks else slow.others).append(ranks)
    return slow


def spread(ranks: dict[int, float]) -> float:
    return max(ranks.values()) - min(ranks.values())


def test_every_rank_has_every_operation(healthy: Run) -> None:
    operations = [len(healthy.log(rank)) for rank in range(RANKS)]
    assert min(operations) == max(operations) >= 3 * 2 * 5
    comms = {"standin_world", "standin_cross1", "standin_node2"}
    assert {op["comm_name"] for op in healthy.log(5)} == comms


def test_eight_ranks_leave_the_processors_mostly_idle(healthy: Run) -> None:
    # Measured: 0.33 and 0.34 on a slow processor. One rank that waited in a loop would take 0.5.
    assert healthy.cpu_s / (2 * healthy.wall_s) < 0.45


def pace_ratios(run: Run, func: str) -> list[float]:
    """Time of the fastest rank by the time that the pace allows, per operation of all ranks."""
    n = RANKS
    factor = {"AllReduce": 2 * (n - 1) / n, "AllGather": n - 1, "ReduceScatter": n - 1, "Send": 1}
    return [
        min(ranks.values()) / (size * factor[func] / RATE_MBS / 1e3)
        for (comm, name, size, _), ranks in run.durations_ms().items()
        if (comm, name) == ("standin_world", func)
    ]


@pytest.mark.parametrize("func", ["AllReduce", "AllGather", "ReduceScatter", "Send"])
def test_no_operation_is_faster_than_the_pace(healthy: Run, func: str) -> None:
    assert min(pace_ratios(healthy, func)) > 0.99


@pytest.mark.parametrize("func", ["AllReduce", "AllGather", "ReduceScatter", "Send"])
def test_the_fastest_rank_takes_what_the_pace_says(calm: Run, func: str) -> None:
    assert median(pace_ratios(calm, func)) < 1.05


def test_the_default_fault_is_ten_times_the_healthy_spread(calm: Run) -> None:
    assert calm.median_spread_ms() < FAULT_MS / 10


@pytest.mark.parametrize("func", ["AllReduce", "AllGather", "ReduceScatter"])
def test_the_slow_rank_has_the_shortest_time_and_the_others_wait(slow: Slow, func: str) -> None:
    struck = slow.by_function[func]
    waited = [min(t for r, t in ranks.items() if r != SLOW) - ranks[SLOW] for ranks in struck]
    assert len(struck) >= 6
    assert median(waited) > slow.fault_ms / 2


def test_the_others_wait_as_long_as_the_fault(slow: Slow) -> None:
    struck = [ranks for operations in slow.by_function.values() for ranks in operations]
    assert slow.fault_ms * 0.8 < median(map(spread, struck)) < slow.fault_ms * 1.4


def test_communicators_without_the_slow_rank_do_not_wait(slow: Slow) -> None:
    assert median(map(spread, slow.others)) < slow.fault_ms / 4


def test_without_barriers_lateness_travels_to_the_node_mate(tmp_path: Path) -> None:
    args = ("--slow-rank", f"{SLOW}:150", "--no-barrier", "--steps", "3", "--ops", "allreduce")
    run = finished(tmp_path, *args, "--sizes", "64K", ranks=RANKS)
    cross = [r for key, r in run.durations_ms().items() if key[0] == "standin_cross0"]
    assert median(map(spread, cross)) > 75
    assert mode(min(ranks, key=lambda rank: ranks[rank]) for ranks in cross) == SLOW - 1


def test_operations_can_overlap_with_the_application(tmp_path: Path) -> None:
    run = finished(tmp_path, *QUICK, "--overlap", "--comms", "world", ranks=4)
    assert run.codes == [0] * 4
    assert len(run.log(3)) == 5


@pytest.mark.parametrize("size", ["4", "20", "1000", "4100"])
def test_sizes_that_do_not_divide_are_right_too(tmp_path: Path, size: str) -> None:
    args = ("--sizes", size, "--channels", "3", "--compute-ms", "0", "--steps", "2")
    run = finished(tmp_path, *args, ranks=6, per_node=3)
    assert run.codes == [0] * 6, run.stderr


@pytest.mark.parametrize("op", ["allreduce", "allgather", "reducescatter", "sendrecv"])
def test_a_wrong_number_ends_the_run(tmp_path: Path, op: str) -> None:
    run = finished(tmp_path, *QUICK, "--comms", "world", "--ops", op, "--corrupt", "1")
    assert 1 in run.codes
    assert "wrong result in elements" in run.stderr[0] + run.stderr[1]


def test_ranks_wait_in_nccl_for_one_that_hangs_until_sigterm(tmp_path: Path) -> None:
    args = ["--hang", "1:1", "--steps", "9", "--sizes", "32K", "--comms", "world"]
    with started(tmp_path, args, ranks=2) as run:
        until(lambda: call_is_open(run), "rank 0 is inside an operation")
        for process in run.processes:
            assert process.poll() is None
            process.terminate()
        collect(run)
    assert run.codes == [-signal.SIGTERM] * 2
    assert "rank 1 hangs in step 1" in run.stdout[1]
    assert [op["seq"] for op in run.log(0)] == [0] * 5


def test_all_ranks_may_stop_between_two_operations(tmp_path: Path) -> None:
    args = ["--hang", "all:1", "--steps", "9", "--sizes", "32K", "--comms", "world"]
    with started(tmp_path, args, ranks=2) as run:
        for process in run.processes:
            assert process.stdout is not None
            assert process.stdout.readline().endswith("hangs in step 1\n")
        assert not call_is_open(run)
        for process in run.processes:
            process.terminate()
        collect(run)
    assert [op["seq"] for op in run.log(0)] == [0] * 5


def call_is_open(run: Run) -> bool:
    """The sixth operation of rank 0 has been told, and no end of it."""
    try:
        calls = run.calls(0)
    except (FileNotFoundError, ValueError):  # not there yet, or half a line
        return False
    kernels = [c for c in calls if c.type == "KernelCh"]
    return len([c for c in calls if c.words == "Coll stop"]) == 4 and kernels[-1].kind == "start"


def test_a_hang_with_a_time_limit_is_an_error_that_names_the_operation(tmp_path: Path) -> None:
    args = ["--hang", "1:0", "--steps", "2", "--sizes", "32K", "--timeout", "1"]
    with started(tmp_path, [*args, "--comms", "world"], ranks=2) as run:
        _, stderr = run.processes[0].communicate(timeout=10)
    assert run.processes[0].returncode == 1
    assert "rank 0: standin_world: AllReduce 0: Connection timed out" in stderr


def test_a_rank_that_calls_something_else_stops_all_in_what_they_called(tmp_path: Path) -> None:
    args = ["--mismatch", "1:1", "--steps", "9", "--sizes", "32K", "--comms", "world"]
    with started(tmp_path, [*args, "--ops", "allreduce"], ranks=2) as run:
        until(lambda: stuck_in(run) == [("AllReduce", "start"), ("AllGather", "start")], "stuck")
        for process in run.processes:
            process.terminate()
        collect(run)
    assert "rank 1 calls something else in step 1" in run.stdout[1]
    assert [len(run.log(rank)) for rank in (0, 1)] == [1, 1]


def stuck_in(run: Run) -> list[tuple[str, str]]:
    """Of each rank what it called last, and the last that is known of a kernel."""
    found = []
    for rank in range(len(run.processes)):
        try:
            calls = run.calls(rank)
        except (FileNotFoundError, ValueError):
            return []
        funcs = [call["func"] for call in calls if call.words == "Coll start"]
        kernels = [call.kind for call in calls if call.type == "KernelCh"]
        found.append((funcs[-1] if funcs else "", kernels[-1] if kernels else ""))
    return found


def test_communicators_can_leave_some_nodes_out(tmp_path: Path) -> None:
    run = finished(tmp_path, *QUICK, "--comms", "half,parity", ranks=4, per_node=1)
    names = [sorted({op["comm_name"] for op in run.log(rank)}) for rank in range(4)]
    assert run.codes == [0] * 4, run.stderr
    assert names == [
        ["standin_half0", "standin_parity0"], ["standin_half0", "standin_parity1"],
        ["standin_half1", "standin_parity0"], ["standin_half1", "standin_parity1"],
    ]  # fmt: skip


@pytest.mark.parametrize("present", [0, 1])
def test_a_task_that_never_comes_is_an_error_in_time(tmp_path: Path, present: int) -> None:
    run = finished(tmp_path, *QUICK, "--timeout", "1", only=[present])
    assert run.codes == [1]
    assert "did not come" in run.stderr[0]
    assert not list(tmp_path.glob(".nccl-standin-*"))


def test_an_old_address_of_rank_0_does_not_matter(tmp_path: Path) -> None:
    stale = tmp_path / ".nccl-standin-4711.0"
    stale.mkdir()
    (stale / "0").write_text("127.0.0.1:1\n")
    run = finished(tmp_path, *QUICK, ranks=4)
    assert run.codes == [0] * 4, run.stderr
    assert not stale.exists()


def test_no_finalize_exits_in_order_without_a_word_to_the_profiler(tmp_path: Path) -> None:
    run = finished(tmp_path, *QUICK, "--no-finalize")
    assert run.codes == [0, 0]
    assert "finalize" not in [c.kind for c in run.calls(0)]


def loaded(run: Run) -> list[str]:
    return [line.split("NCCL INFO ")[1] for line in run.stderr[0].splitlines() if "Loaded" in line]


@pytest.mark.parametrize(("api", "code"), [("4", 22707), ("5", 22809), ("6", 23007), ("7", 23203)])
def test_the_highest_offered_version_is_taken(tmp_path: Path, api: str, code: int) -> None:
    run = finished(tmp_path, *QUICK, "--api", api, env={"NCCL_DEBUG": "INFO"})
    assert loaded(run) == [f"PROFILER/Plugin: Loaded recorder (v{api})"]
    assert run.calls(0)[0]["nccl"] == code


@pytest.mark.parametrize(
    ("word", "file"),
    [
        ("recorder", "libnccl-profiler-recorder.so"),
        ("libother.so", "libother.so"),
        ("", "libnccl-profiler.so"),
    ],
)
def test_a_plugin_is_found_by_the_names_of_nccl(tmp_path: Path, word: str, file: str) -> None:
    (tmp_path / file).symlink_to(RECORDER)
    env = {"NCCL_PROFILER_PLUGIN": word, "LD_LIBRARY_PATH": str(tmp_path), "NCCL_DEBUG": "INFO"}
    assert loaded(finished(tmp_path, *QUICK, env=env))


@pytest.mark.parametrize("word", ["none", "NoNe", "STATIC_PLUGIN", "/nowhere.so", "x" * 400])
def test_without_a_plugin_it_runs_all_the_same(tmp_path: Path, word: str) -> None:
    run = finished(tmp_path, *QUICK, env={"NCCL_PROFILER_PLUGIN": word, "NCCL_DEBUG": "INFO"})
    assert run.codes == [0, 0]
    assert not loaded(run)
    assert len(run.log(0)) == 2 * 5


THROTTLED = ("--sizes", "256K", "--compute-ms", "0", "--steps", "1000", "--seconds", "3")


def test_a_throttle_slows_the_links_between_nodes_and_only_for_its_while(tmp_path: Path) -> None:
    args = (*THROTTLED, "--comms", "node,world", "--ops", "allreduce", "--throttle", "all:4:1:2")
    run = finished(tmp_path, *args, ranks=4)
    assert run.codes == [0] * 4, run.stderr
    log = run.log(0)
    begin_ns = min(op["start_ns"] for op in log)
    times: dict[tuple[str, int], list[float]] = defaultdict(list)  # communicator, second
    for op in log:
        second, within = divmod(op["start_ns"] - begin_ns, 1_000_000_000)
        if 200_000_000 < within < 800_000_000:
            times[op["comm_name"], second].append(op["stop_ns"] - op["start_ns"])
    world = [median(times["standin_world", second]) for second in range(3)]
    node = [median(times["standin_node0", second]) for second in range(3)]
    assert world[1] > 5 * max(world[0], world[2])
    assert max(node) < 3 * min(node)


def test_a_throttled_pair_is_slow_for_its_two_nodes_alone(tmp_path: Path) -> None:
    args = (*THROTTLED[:-4], "--steps", "10", "--comms", "world", "--ops", "sendrecv")
    run = finished(tmp_path, *args, "--throttle", "n2+n1:4", ranks=3, per_node=1)
    assert run.codes == [0] * 3, run.stderr
    times = {
        rank: median(op["stop_ns"] - op["start_ns"] for op in run.log(rank)) for rank in range(3)
    }
    assert times[0] > 5 * times[2]
    assert times[1] > 5 * times[2]


def test_a_link_that_is_cut_keeps_all_in_the_operation(tmp_path: Path) -> None:
    args = ["--throttle", "all:0:1", "--no-barrier", "--steps", "100000", "--timeout", "3"]
    run = finished(tmp_path, *args, "--sizes", "32K", "--comms", "world", ranks=2, per_node=1)
    assert run.codes == [1, 1]
    last = [run.log(rank)[-1]["stop_ns"] - run.log(rank)[0]["start_ns"] for rank in range(2)]
    assert max(last) < 1_500_000_000
    assert all("standin_world" in text for text in run.stderr.values()), run.stderr


def test_the_steps_are_told_on_the_output_of_rank_0(tmp_path: Path) -> None:
    run = finished(tmp_path, *QUICK)
    assert run.stdout[0].startswith("done: 1 steps in ")
    assert run.stdout[1] == ""


@pytest.mark.parametrize(
    "args",
    [
        *("--sizes 1X", "--sizes 3", "--rate 0", "--api 8", "--steps -1", "--ops all"),
        *("--comms node,node", "--slow-rank x", "--channels 99", "more", "--unknown"),
        *(
            "--throttle all",
            "--throttle n1+:4",
            "--throttle n9:4",
            "--throttle all:4:3:2",
            "--throttle all:0:1:2",
        ),
    ],
)
def test_a_bad_option_is_one_line_and_status_1(tmp_path: Path, args: str) -> None:
    run = finished(tmp_path, *args.split(), ranks=1)
    assert run.codes == [1]
    assert len(run.stderr[0].splitlines()) == 1


def test_help_names_every_option(tmp_path: Path) -> None:
    run = finished(tmp_path, "--help", ranks=1)
    assert run.codes == [0]
    source = Path(__file__).with_name("options.c").read_text()
    options = [line.split('"')[1] for line in source.splitlines() if "_argument, NULL" in line]
    assert len(options) > 15
    assert all(f"--{option}" in run.stdout[0] for option in options)


def test_the_program_is_there() -> None:
    assert os.access(STANDIN, os.X_OK)
