"""The site's kill switch, denied versions, the budget, and metrics that come at the end."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.box.layout import HEADER, MAGIC
from nccl_inspector.model.process import EXITED, FINALIZED, FUNCS, Process
from tests.support import application_log, standin
from tests.support.boxes import read_dead_box
from tests.support.repository import BUILD
from tests.support.scripted_nccl import OURS, Facts, Stage, step
from tests.support.standin import Run, collect, finished, started, until

DISABLED, DENIED = 1, 2
INTERVAL = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"
COMM = step("comm", name="world", ranks=4)
OPS = step("coll", func="AllReduce", bytes=1 << 20, times=8)
PAUSE, FINALIZE, LOOK = step("pause"), step("finalize"), step("look")
LATER = (
    step("comm", id=2, name="later", ranks=4),
    step("coll", comm=1, func="AllReduce", bytes=1 << 20, times=8),
)
FINALIZE_BOTH = FINALIZE, step("finalize", comm=1)
OPERATIONS = "nccl_collective_operations_total"

Record = application_log.Record
Sums = dict[tuple[str, int], tuple[int, int, int]]


class Node:
    """A job's directories as on a node, with the site's kill switch."""

    def __init__(self, root: Path) -> None:
        self.raw = root / "jobs" / "4711" / "raw"
        self.control = root / "control"
        self.switch = self.control / "disabled"
        self.raw.mkdir(parents=True)
        self.control.mkdir()
        self.stage = Stage(OURS, self.raw)

    def disable(self) -> None:
        self.switch.write_text("1790000000 why\n")

    def enable(self) -> None:
        self.switch.unlink()

    def headers(self, word: str) -> list[int]:
        """That word of all processes that have a box by now, dead or alive."""
        texts = [path.read_bytes() for path in sorted(self.raw.glob("*.box"))]
        return [HEADER.number(text, word) for text in texts if text.startswith(MAGIC)]

    def wait_silent(self, silent: int, ranks: int = 1) -> None:
        """Wait until all processes say so, and their metrics with them."""
        until(lambda: self.headers("silent") == [silent] * ranks, f"silent is {silent}", 5)
        count = 0 if silent else ranks
        until(lambda: len(list(self.raw.glob("*.prom"))) == count, f"{count} .prom files", 5)


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Node(Path(path))


def facts_of(facts: list[Facts], verb: str) -> list[Facts]:
    return [one for one in facts if one["step"] == verb]


def test_a_running_process_falls_silent_within_an_interval_and_comes_back(node: Node) -> None:
    script = (COMM, OPS, PAUSE, OPS, LOOK, PAUSE, OPS, *LATER, LOOK, PAUSE, *FINALIZE_BOTH)
    with node.stage.playing(*script) as playing:
        playing.until_pause()
        node.wait_silent(0)
        node.disable()
        begin = time.monotonic()
        node.wait_silent(DISABLED)
        assert time.monotonic() - begin < 2.5
        playing.go_on()
        assert playing.until_pause()["mask"] == 0
        assert not list(node.raw.glob("*.prom"))
        until(lambda: node.headers("silent_ns")[0] > 1_000_000_000, "a second is counted")
        node.enable()
        node.wait_silent(0)
        playing.go_on()
        assert playing.until_pause()["mask"] != 0
        node.stage.wait(lambda: node.stage.find(OPERATIONS) == [8, 8], "what was measured is back")
        playing.finish()
    (box,) = node.stage.boxes()
    # NCCL may have counted other works meanwhile than its kernels: those have no times any more.
    assert [(key.comm, key.ops, key.untimed_ops) for key in box.keys] == [(0, 8, 8), (1, 8, 0)]
    assert [comm.enqueued for comm in box.comms] == [16, 8]
    assert [comm.mixed_since for comm in box.comms] == [9, 0]
    assert box.dropped == (0,) * len(box.dropped)
    assert box.facts.state == FINALIZED


def test_a_process_that_starts_while_disabled_is_measured_afterwards(node: Node) -> None:
    node.disable()
    script = (COMM, OPS, PAUSE, OPS, *LATER, PAUSE, *FINALIZE_BOTH)
    with node.stage.playing(*script) as playing:
        first = playing.until_pause()
        assert first["step"] == "coll"
        assert playing.facts[0] == playing.facts[0] | {"context": True, "mask": 0}
        assert node.headers("silent") == [DISABLED]
        node.enable()
        node.wait_silent(0)
        playing.go_on()
        playing.until_pause()
        playing.finish()
    (box,) = node.stage.boxes()
    assert [(key.comm, key.ops, key.untimed_ops) for key in box.keys] == [(0, 0, 8), (1, 8, 0)]


def test_a_new_communicator_does_not_end_the_silence(node: Node) -> None:
    second = step("comm", id=2, ranks=4)
    script = (COMM, OPS, PAUSE, second, LOOK, PAUSE, FINALIZE, step("finalize", comm=1))
    with node.stage.playing(*script) as playing:
        playing.until_pause()
        node.disable()
        playing.go_on()  # whether the thread has looked or not
        assert playing.until_pause()["mask"] == 0
        assert facts_of(playing.facts, "comm")[1]["context"]
        playing.finish()
    assert len(node.stage.boxes()[0].comms) == 2


def test_what_was_in_flight_ends_in_order(node: Node) -> None:
    begun = step("coll", func="AllReduce", bytes=1 << 20, channels=1, kernel="starts")
    with node.stage.playing(COMM, begun, PAUSE, step("late"), PAUSE, FINALIZE) as playing:
        playing.until_pause()
        node.disable()
        node.wait_silent(DISABLED)
        playing.go_on()
        playing.until_pause()
        playing.finish()
    (box,) = node.stage.boxes()
    assert [key.ops for key in box.keys] == [1]


def test_the_switch_is_found_where_a_container_has_it(node: Node) -> None:
    elsewhere = node.raw.parent / "elsewhere"
    elsewhere.mkdir()
    env = {"NCCL_INSPECTOR_CONTROL_DIR": str(elsewhere)}
    with node.stage.playing(COMM, OPS, PAUSE, env=env) as playing:
        playing.until_pause()
        (elsewhere / "disabled").touch()
        node.wait_silent(DISABLED)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A directory on a file system that might block, which /tmp need not be."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        kind = subprocess.run(
            ["stat", "-f", "-c", "%T", name], capture_output=True, text=True, check=True
        )
        if kind.stdout.strip() in ("tmpfs", "ramfs"):
            pytest.skip("/var/tmp is in memory")
        yield Path(name)


def test_a_switch_that_might_block_is_looked_at_once(node: Node, on_disk: Path) -> None:
    env = {"NCCL_INSPECTOR_CONTROL_DIR": str(on_disk)}
    (on_disk / "disabled").touch()
    with node.stage.playing(COMM, OPS, PAUSE, OPS, LOOK, env=env) as playing:
        playing.until_pause()
        (on_disk / "disabled").unlink()
        until(lambda: node.headers("silent_ns")[0] > 1_500_000_000, "two looks")
        assert facts_of(playing.finish(), "look")[0]["mask"] == 0
    assert node.headers("silent") == [DISABLED]


def test_an_exit_in_silence_is_in_order(node: Node) -> None:
    with node.stage.playing(COMM, OPS, PAUSE, step("exit")) as playing:
        playing.until_pause()
        node.disable()
        node.wait_silent(DISABLED)
        playing.finish()
    assert node.stage.boxes()[0].facts.state == EXITED
    assert not list(node.raw.glob("*.prom"))


@pytest.mark.parametrize("silent", [False, True])
def test_destroying_takes_no_longer_than_100_ms_with_output_that_blocks(
    node: Node, silent: bool
) -> None:
    blocked, stuck = step("set", write_ms=-1), step("await", stuck=0 if silent else 1)
    env = {"NCCL_INSPECTOR_BUDGET_PERCENT": "0.0001"}
    script = (COMM, OPS, PAUSE, blocked, OPS, stuck, FINALIZE, PAUSE)
    with node.stage.playing(*script, env=env) as playing:
        playing.until_pause()
        if silent:
            node.disable()
            node.wait_silent(DISABLED)
        playing.go_on()
        assert playing.until_pause()["ms"] < 150


def log_of(run: Run, rank: int) -> dict[str, list[Record]]:
    """The application's own records by communicator, in the order in which they were called."""
    by_comm: dict[str, list[Record]] = {}
    for op in run.log(rank):
        by_comm.setdefault(op["comm_name"], []).append(op)
    return by_comm


def sums(ops: list[Record]) -> Sums:
    """Operations, bytes and busy ns by function and size class."""
    return {
        (func, class_): (len(some), sum(op["bytes"] for op in some), application_log.busy_ns(some))
        for (_, func, class_), some in application_log.by_kind(ops).items()
    }


def measured(box: Process, comm: str) -> Sums:
    index = {c.name: c.index for c in box.comms}[comm]
    return {
        (FUNCS[key.func], key.size_class): (key.ops, key.bytes, key.busy_ns)
        for key in box.keys
        if key.comm == index and key.ops
    }


def standin_environment(node: Node, **more: str) -> dict[str, str]:
    return {
        "NCCL_PROFILER_PLUGIN": str(OURS),
        "NCCL_STANDIN_CUDA": str(BUILD / "fakecuda" / "libcuda.so.1"),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_RUN_DIR": str(node.raw),
        "NCCL_INSPECTOR_PROM_DUMP": "1",
        INTERVAL: "200000",
        "NCCL_DEBUG": "INFO",
    } | more


def read_boxes(node: Node, run: Run) -> list[Process]:
    return [
        read_dead_box(node.raw / f"nccl_inspector_0_{process.pid}.box") for process in run.processes
    ]


@pytest.mark.long
def test_up_to_the_silence_the_sums_are_the_applications_own(node: Node, tmp_path: Path) -> None:
    args = ["--seconds", "10", "--sizes", "64K", "--comms", "node,world", "--no-barrier"]
    args += ["--ops", "allreduce,allgather,reducescatter"]
    with started(tmp_path, args, ranks=2, env=standin_environment(node)) as run:
        node.wait_silent(0, ranks=2)
        node.disable()
        node.wait_silent(DISABLED, ranks=2)
        until(lambda: min(node.headers("silent_ns")) > 1_000_000_000, "a second of silence")
        node.enable()
        node.wait_silent(0, ranks=2)
        collect(run)
        assert run.codes == [0, 0], run.stderr
        silent_ns = node.headers("silent_ns")
        for rank, box in enumerate(read_boxes(node, run)):
            assert 1_000_000_000 < silent_ns[rank] < 9_000_000_000
            for comm, ops in log_of(run, rank).items():
                found = measured(box, comm)
                count = sum(number for number, _, _ in found.values())
                assert 0 < count < len(ops), "some were not measured"
                assert found == sums(ops[:count]), "to the nanosecond"
                (record,) = (one for one in box.comms if one.name == comm)
                assert (record.completed, record.mixed_since) == (count, count + 1)
                assert 0 < record.untimed < len(ops) - count, "those afterwards are counted"


@pytest.mark.long
@pytest.mark.parametrize(
    ("build", "options"),
    [("san-address-undefined", "ASAN_OPTIONS"), ("san-thread", "TSAN_OPTIONS")],
)
def test_sanitizers_find_nothing_while_it_goes_off_and_on(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, options: str
) -> None:
    runtime = "detect_leaks=0:exitcode=66" if options == "ASAN_OPTIONS" else "exitcode=66"
    env = standin_environment(
        node,
        NCCL_PROFILER_PLUGIN=str(BUILD / build / "libnccl-profiler-inspector.so"),
        NCCL_INSPECTOR_BUDGET_PERCENT="0.0001",
        **{options: runtime},
    )
    monkeypatch.setattr(standin, "STANDIN", BUILD / build / "nccl-standin")
    with started(tmp_path, ["--seconds", "9", "--sizes", "64K"], ranks=2, env=env) as run:
        node.wait_silent(0, ranks=2)
        node.disable()
        node.wait_silent(DISABLED, ranks=2)
        node.enable()
        node.wait_silent(0, ranks=2)
        collect(run)
        assert run.codes == [0, 0], run.stderr


@pytest.mark.parametrize(
    ("denied", "silent"),
    [("2.28.0-2.28.5,2.32.3", DENIED), ("2.32.4,2.30.0-2.32.2", 0), ("2.32", 0)],
)
def test_a_version_on_the_list_is_not_measured(
    node: Node, tmp_path: Path, denied: str, silent: int
) -> None:
    node.raw = tmp_path  # on a disk a box is only what was written there
    env = standin_environment(node, NCCL_INSPECTOR_DENY_NCCL=denied)
    run = finished(tmp_path, "--steps", "1", "--sizes", "64K", ranks=2, env=env)
    assert run.codes == [0, 0], run.stderr
    said = [line for line in run.stderr[0].splitlines() if "NCCL_INSPECTOR_DENY_NCCL" in line]
    assert len(said) == (0 if "2.32.4" in denied else 1)
    assert node.headers("silent") == [silent] * 2
    for box in read_boxes(node, run):
        assert box.facts.nccl_version == 23203
        assert box.facts.state == FINALIZED
        assert bool(sum(comm.enqueued for comm in box.comms)) is not bool(silent)
    assert not silent or min(node.headers("silent_ns")) > 0


def test_a_denied_version_has_no_thread(node: Node, tmp_path: Path) -> None:
    env = standin_environment(node, NCCL_INSPECTOR_DENY_NCCL="0.0.0-999.0.0")
    args = ["--seconds", "20", "--sizes", "64K", "--comms", "world"]
    with started(tmp_path / "denied", args, ranks=2, env=env) as denied:
        until(lambda: node.headers("silent") == [DENIED] * 2, "denied")
        until(lambda: len(denied.log(0)) > 3, "operations")
        tasks = len(list(Path(f"/proc/{denied.processes[0].pid}/task").iterdir()))
    env = standin_environment(node)
    with started(tmp_path / "measured", args, ranks=2, env=env) as run:
        until(lambda: len(list(node.raw.glob("*.prom"))) == 2, "metrics")
        assert len(list(Path(f"/proc/{run.processes[0].pid}/task").iterdir())) == tasks + 1


AT_THE_END = {"NCCL_INSPECTOR_RUN_DIR": "", INTERVAL: ""}


@pytest.mark.parametrize(
    "env", [{INTERVAL: "-1"}, {INTERVAL: ""}, {"NCCL_INSPECTOR_DUMP_THREAD_ENABLE": "0"}]
)
@pytest.mark.parametrize("last", [FINALIZE, step("exit")])
def test_without_slurm_and_interval_metrics_are_written_at_the_end_and_stay(
    tmp_path: Path, env: dict[str, str], last: list[str | bytes]
) -> None:
    stage = Stage(OURS, tmp_path)
    with stage.playing(COMM, OPS, PAUSE, last, env=AT_THE_END | env) as playing:
        playing.until_pause()
        assert not list(tmp_path.iterdir())
        playing.finish()
    (text,) = stage.proms().values()
    assert text.endswith("# EOF\n")
    assert stage.find(OPERATIONS) == [8]
    assert stage.find("nccl_collective_bytes_total") == [8 << 20]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_second_life_writes_the_same_file_anew(tmp_path: Path) -> None:
    stage = Stage(OURS, tmp_path)
    again = (step("comm", id=2, name="again", ranks=4), step("coll", comm=1, times=3))
    with stage.playing(
        COMM, OPS, FINALIZE, PAUSE, *again, step("finalize", comm=1), env=AT_THE_END
    ) as playing:
        playing.until_pause()
        names = set(stage.proms())
        playing.finish()
    assert set(stage.proms()) == names
    assert sorted(stage.find(OPERATIONS)) == [3, 8]


def test_the_library_stays_when_nccl_lets_go_of_it() -> None:
    code = (
        "import _ctypes, ctypes, sys; library = ctypes.CDLL(sys.argv[1]);"
        "_ctypes.dlclose(library._handle); print(sys.argv[1] in open('/proc/self/maps').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, OURS], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n", "a thread that is stuck on a dead file system would crash"


@pytest.mark.long
def test_a_budget_that_is_exceeded_costs_times_and_no_counts(node: Node) -> None:
    some = step("coll", func="AllReduce", bytes=1 << 20, channels=1, times=2000, real_us=50)
    batches = [word for _ in range(200) for word in (*some, *PAUSE)]
    env = {"NCCL_INSPECTOR_BUDGET_PERCENT": "0.001"}
    with node.stage.playing(COMM, PAUSE, batches, env=env) as playing:
        playing.until_pause()
        ran = 0
        until(lambda: node.headers("sampling") == [1], "everything is timed at first")
        end = time.monotonic() + 30
        while node.headers("sampling") == [1]:
            assert time.monotonic() < end, "nothing is done about the budget"
            playing.go_on()
            playing.until_pause()
            ran += 1
        playing.go_on()
        playing.until_pause()
        until(lambda: node.headers("sampling") == [1], "recovery", 75)
        until(lambda: node.headers("sampled_ns")[0] > 30_000_000_000, "its time")
        playing.go_on()
        playing.until_pause()
        called = 2000 * (ran + 2)
        until(lambda: node.stage.boxes()[0].comms[0].enqueued == called, "the last round's count")
    (box,) = node.stage.boxes()
    (key,) = box.keys
    untimed, _ = node.stage.untimed("AllReduce")
    assert key.ops + untimed == box.comms[0].enqueued == called
    assert 0 < untimed <= 2000 * 3
    assert box.dropped == (0,) * len(box.dropped)
