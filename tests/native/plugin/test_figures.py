"""The built profiler plugin in a real application (the stand-in), against the latter's own log."""

import re
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from nccl_inspector.model.process import ALGOS, EXITED, FINALIZED, FUNCS, KILLED
from tests.support import application_log, exposition
from tests.support.plugin_runs import boxes, environment
from tests.support.repository import BUILD
from tests.support.standin import collect, finished, started, until

RANKS = 8
Key = tuple[str, str, str]  # communicator, function, size class
Values = dict[str, dict[Key, float]]


def keyed(text: str) -> Values:
    """Values by metric and key, of the families that have a key."""
    values: Values = defaultdict(dict)
    for one in exposition.read_prom(text):
        func = one.labels.get("collective") or one.labels.get("p2p_operation")
        if func:
            key = one.labels["comm_name"], func, one.labels["message_size"]
            values[one.name][key] = one.value
    return values


@pytest.mark.parametrize("api", [4, 5, 6, 7])
def test_every_interface_measures_every_operation_truly(
    raw: Path, tmp_path: Path, api: int
) -> None:
    args = ("--steps", "2", "--sizes", "256K,512K", "--compute-ms", "0", "--api", str(api))
    run = finished(tmp_path, *args, ranks=4, env=environment(raw))
    assert run.codes == [0] * 4, run.stderr
    for rank, box in boxes(raw, run).items():
        names = {comm.index: comm.name for comm in box.comms}
        groups = [key for key in box.keys if ALGOS[key.algo] == "GROUP"]
        keys = {
            (names[k.comm], FUNCS[k.func], k.size_class): k for k in box.keys if k not in groups
        }
        table = application_log.by_kind(run.log(rank))
        assert keys.keys() == table.keys()
        for where, ops in table.items():
            key = keys[where]
            assert (key.ops, key.bytes) == (len(ops), sum(op["bytes"] for op in ops))
            assert key.busy_ns == application_log.busy_ns(ops)
        assert {FUNCS[key.func] for key in groups} == {"AlltoAll", "SendRecv"}, "parts of one call"
        assert box.facts.api_version == api
        assert box.facts.state == FINALIZED
        assert box.dropped == (0,) * len(box.dropped)
        assert not box.flags
    assert not list(raw.glob("*.prom")), "the last destroy takes the metrics away"


@pytest.mark.parametrize("api", [4, 5, 7])
def test_the_hosts_time_in_nccl_is_taken_where_it_is_asked_for(
    raw: Path, tmp_path: Path, api: int
) -> None:
    args = ("--steps", "8", "--sizes", "64K", "--ops", "allreduce", "--api", str(api))
    run = finished(tmp_path, *args, ranks=2, env=environment(raw, NCCL_INSPECTOR_HOST_TIME="1"))
    for rank, box in boxes(raw, run).items():
        calls = [op for ops in application_log.by_kind(run.log(rank)).values() for op in ops]
        slow = sum(op["seq"] % 4 == 3 for op in calls)  # of the stand-in's: 1 ms longer
        facts = box.facts
        assert slow > 1
        # NCCL tells of its calls from v5 on.
        count = len(calls) if api >= 5 else 0
        assert (facts.calls, facts.launches) == (count, count)
        assert facts.call_ns >= facts.launch_ns + (slow * 1_000_000 if count else 0)
        assert facts.call_max_ns <= facts.call_ns


def test_bandwidth_is_within_2_percent_of_the_applications_own_log(
    raw: Path, tmp_path: Path
) -> None:
    args = ["--seconds", "5", "--sizes", "512K,1M"]
    with started(tmp_path, args, ranks=RANKS, env=environment(raw)) as run:
        proms = dict.fromkeys(range(RANKS), "")

        def written() -> bool:
            for rank, process in enumerate(run.processes):
                for path in raw.glob(f"*_0_{process.pid}.prom"):
                    proms[rank] = proms[rank] or path.read_text()
            return all(proms.values())

        until(written, "metrics of every rank", 10)
        collect(run)
        assert run.codes is not None
    checked = 0
    for rank in range(RANKS):
        series = keyed(proms[rank])
        for where, ops in application_log.by_kind(run.log(rank)).items():
            comm, func, class_ = where
            kind = "p2p" if func in application_log.P2P else "collective"
            key = comm, func, application_log.size_label(class_)
            count = int(series[f"nccl_{kind}_operations_total"][key])
            first = ops[:count]
            gauge = "nccl_p2p_bus_bandwidth_gbs" if kind == "p2p" else "nccl_bus_bandwidth_gbs"
            assert series[gauge][key] == pytest.approx(
                application_log.geometric_gbs(first), rel=0.02
            )
            busy_s = application_log.busy_ns(first) / 1e9
            assert series[f"nccl_{kind}_busy_seconds_total"][key] == pytest.approx(
                busy_s, abs=0.001
            )
            assert series[f"nccl_{kind}_bytes_total"][key] == sum(op["bytes"] for op in first)
            checked += 1
    assert checked >= RANKS * 3 * 2 * 5


def test_eight_ranks_on_ordinal_0_have_eight_distinct_sets_of_series(
    raw: Path, tmp_path: Path
) -> None:
    env = environment(raw, NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS="500000")
    with started(tmp_path, ["--seconds", "30"], ranks=8, per_node=8, env=env) as run:
        until(lambda: len(list(raw.glob("*.prom"))) == 8, "eight files")
        texts = [path.read_text() for path in raw.glob("*.prom")]
        assert all(text.endswith("# EOF\n") for text in texts)
        assert len(run.processes) == 8
    names = [
        (one.name, *one.labels.items())
        for text in texts
        for one in exposition.read_prom(text)
        # Eight say the same of one GPU and one build: the agent keeps one.
        if not one.name.endswith("_info")
    ]
    assert len(names) == len(set(names)) > 8 * 50


def test_kill_9_leaves_every_operation_in_the_box(raw: Path, tmp_path: Path) -> None:
    with started(tmp_path, ["--seconds", "60"], ranks=4, env=environment(raw)) as run:
        logs = [tmp_path / "log" / f"{rank}.jsonl" for rank in range(4)]
        until(lambda: all(p.exists() and p.stat().st_size > 3000 for p in logs), "operations")
        for process in run.processes:
            process.send_signal(signal.SIGKILL)
        collect(run)
        for rank, box in boxes(raw, run).items():
            assert box.facts.state == KILLED
            done = sum(key.ops for key in box.keys)
            written = len(run.log(rank))
            # The profiler hears of an operation before the application logs it: one for each
            # communicator at most.
            assert written <= done <= written + 3


def test_an_exit_without_destroy_is_in_order(raw: Path, tmp_path: Path) -> None:
    run = finished(tmp_path, "--steps", "1", "--no-finalize", ranks=2, env=environment(raw))
    assert run.codes == [0, 0]
    assert {box.facts.state for box in boxes(raw, run).values()} == {EXITED}
    assert not list(raw.glob("*.prom"))


def test_a_hang_shows_as_a_growing_age(raw: Path, tmp_path: Path) -> None:
    env = environment(raw, NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS="200000")
    args = ["--hang", "1:2", "--timeout", "0", "--seconds", "60", "--comms", "world"]
    with started(tmp_path, args, ranks=2, env=env) as run:
        pid = run.processes[0].pid

        def age() -> float:
            for path in raw.glob(f"*_0_{pid}.prom"):
                if found := re.search(
                    r"nccl_collective_inflight_seconds\{.*\} (\S+)", path.read_text()
                ):
                    return float(found[1])
            return 0.0

        until(lambda: age() > 1.5, "an age above 1.5 s")
        first = age()
        until(lambda: age() > first, "a higher age")


@pytest.mark.long
def test_only_who_calls_nothing_for_ten_seconds_tells_how_much_it_reads_and_writes(
    raw: Path, tmp_path: Path
) -> None:
    env = environment(raw, NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS="1000000")
    args = ["--hang", "1:2", "--timeout", "0", "--seconds", "60", "--comms", "world"]
    with started(tmp_path, args, ranks=2, env=env) as run:

        def rates(process: int) -> list[float]:
            pid = run.processes[process].pid
            texts = [path.read_text() for path in raw.glob(f"*_{pid}.prom")]
            series = re.compile(r"^nccl_inspector_quiet_io_bytes_per_second\{.*\} (\S+)$", re.M)
            return [float(one) for text in texts for one in series.findall(text)]

        until(lambda: rates(1) != [], "a rate of the absent process", 40)
        assert 0 <= rates(1)[0] < 100_000, "it reads and writes nothing but its metrics"
        assert rates(0) == [], "who waits in an operation has none"


@pytest.mark.parametrize("place", ["absent", "file", "full"])
def test_a_place_that_cannot_be_written_is_no_harm(tmp_path: Path, place: str) -> None:
    target = {"absent": tmp_path / "no", "file": tmp_path / "f", "full": Path("/proc/self")}[place]
    if place == "file":
        target.write_text("")
    run = finished(tmp_path / "run", "--steps", "1", ranks=2, env=environment(target))
    assert run.codes == [0, 0]
    said = [line for line in run.stderr[0].splitlines() if "nccl-inspector: " in line]
    assert said, "one line says why"
    assert len(said) <= 2


def test_wrong_values_are_named_in_one_line_and_the_defaults_hold(
    raw: Path, tmp_path: Path
) -> None:
    wrong = {
        "NCCL_INSPECTOR_ENABLE_P2P": "maybe",
        "NCCL_INSPECTOR_NET": "\x1b[2J",
        "NCCL_INSPECTOR_DENY_NCCL": "2.28.0," * 200,
    }
    run = finished(tmp_path, "--steps", "1", ranks=1, env=environment(raw, **wrong))
    assert run.codes == [0]
    said = [line for line in run.stderr[0].splitlines() if "wrong value" in line]
    told = said[0].partition("wrong value, the default is used: ")[2].split(", ")
    assert len(said) == 1
    assert set(told) == wrong.keys()
    assert boxes(raw, run)


@pytest.mark.parametrize(
    ("build", "options"),
    [("san-address-undefined", "ASAN_OPTIONS"), ("san-thread", "TSAN_OPTIONS")],
)
def test_sanitizers_find_nothing(raw: Path, tmp_path: Path, build: str, options: str) -> None:
    runtime = "detect_leaks=0:exitcode=66" if options == "ASAN_OPTIONS" else "exitcode=66"
    env = environment(
        raw,
        NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS="200000",
        NCCL_PROFILER_PLUGIN=str(BUILD / build / "libnccl-profiler-inspector.so"),
        **{options: runtime},
    )
    from tests.support import standin

    plain = standin.STANDIN
    standin.STANDIN = BUILD / build / "nccl-standin"
    try:
        run = finished(tmp_path, "--seconds", "2", ranks=4, env=env)
    finally:
        standin.STANDIN = plain
    assert run.codes == [0] * 4, run.stderr
