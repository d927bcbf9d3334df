"""P1 to P7: what makes Prometheus text hard to use on a node."""

import os
import re
import stat
from contextlib import ExitStack
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support import exposition
from tests.support.planted_defects import Plant, PlantedStage, Texts, defect, writes
from tests.support.scripted_nccl import Stage, step

MIB = 1 << 20
RATE = "nccl_bus_bandwidth_gbs"
OPS = "nccl_collective_operations_total"  # unlike a rate, it stays for more than an interval
COMM = step("comm", name="world", ranks=4)
ALL_REDUCE = step("coll", func="AllReduce", bytes=MIB, times=8)
PAUSE = step("pause")
FINALIZE = step("finalize")
ALONE = {"NCCL_INSPECTOR_RUN_DIR": ""}  # files that node_exporter reads as they are


MANY = "".join(f'size{{message_size="{n}-{n + 1}KB"}} 1\n' for n in range(64, 964))


def as_of_one(text: str) -> str:
    """Nothing of a file's labels says whose it is."""
    return re.sub(r'(gpu|rank|comm|gpu_uuid|pci_bus_id|process)="[^"]*"', r'\1=""', text)


def first_only(_stage: PlantedStage, texts: Texts) -> Texts:
    return dict(sorted(texts.items())[:1])


def gone_with_the_first(stage: PlantedStage, texts: Texts) -> Texts:
    """No file is left once a process has ended."""
    return {} if any(one.process.poll() is not None for one in stage.started) else texts


def identities(series: list[exposition.Series]) -> list[tuple[str, ...]]:
    """By what Prometheus tells series apart."""
    return [(one.name, *sorted(map(str, one.labels.items()))) for one in series]


def has_series_of_two(stage: Stage) -> bool:
    """Whether two processes have written: ours say when, each for itself."""
    times = stage.find("nccl_inspector_last_write_timestamp_seconds")
    return len(times or stage.find(RATE)) >= 2


def check_apart(stage: Stage, devices: list[str], words: str) -> None:
    """Two tasks at once on these devices have series of their own, and no two are the same."""
    with ExitStack() as stack:
        for rank, device in enumerate(devices):
            comm = step("comm", name="world", ranks=4, rank=rank)
            env = ALONE | {"CUDA_VISIBLE_DEVICES": device, "SLURM_PROCID": str(rank)}
            playing = stage.playing(comm, ALL_REDUCE, PAUSE, env=env)
            stack.enter_context(playing).until_pause()
        stage.wait(lambda: has_series_of_two(stage), words)
        found = identities(stage.series())
        assert len(found) == len(set(found)), words


@defect("P1", "two tasks have the same series", writes(as_of_one))
def test_tasks_that_see_one_gpu_each_have_series_of_their_own(stage: Stage) -> None:
    check_apart(stage, ["0", "1"], "two tasks have the same series")


@defect("P2", "one task's file is another's", Plant(read=first_only))
def test_tasks_that_share_a_gpu_have_files_of_their_own(stage: Stage) -> None:
    check_apart(stage, ["0", "0"], "one task's file is another's")


@defect("P2", "the first to end takes the file of both", Plant(read=gone_with_the_first))
def test_a_task_that_ends_leaves_the_file_of_its_neighbour(stage: Stage) -> None:
    with (
        stage.playing(COMM, ALL_REDUCE, PAUSE, FINALIZE) as first,
        stage.playing(COMM, ALL_REDUCE, PAUSE) as second,
    ):
        first.until_pause()
        second.until_pause()
        stage.wait(lambda: stage.find(OPS), "no series")
        first.finish()
        assert second.process.poll() is None
        stage.wait(lambda: stage.proms(), "the first to end takes the file of both")


@defect("P3", "half of a file was read", writes(lambda text: text[:-1]))
def test_a_reader_sees_whole_files_only(stage: Stage) -> None:
    comms = [step("comm", id=n, name=f"comm{n}", ranks=4) for n in range(1, 9)]
    ops = [step("coll", comm=n, func="AllReduce", bytes=MIB, times=4) for n in range(8)]
    again = [word for one in ops for word in one]
    slow = step("set", write_ms=5)
    with stage.playing(*comms, slow, *ops, PAUSE, again, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find(OPS), "no series")
        playing.go_on()
        playing.until_pause()
        stage.wait(lambda: is_rewritten(stage), "half of a file was read")


def is_rewritten(stage: Stage) -> bool:
    """Whether all 16 operations of eight communicators are there; what is read must be whole."""
    for text in stage.proms().values():
        comms = {one.labels["comm_name"] for one in exposition.read_prom(text) if one.name == RATE}
        totals = [one.value for one in exposition.read_prom(text) if one.name == OPS]
        assert len(comms) in (0, 8), "half of a file was read"
        assert len(totals) == 8 or not totals, "half of a file was read"
        assert text.endswith("\n"), "half of a file was read"
        if totals == [8] * 8:
            return True
    return False


@defect("P4", "a name breaks the file", writes(lambda text: text.replace('\\"', '"')))
def test_a_name_with_any_character_breaks_no_file(stage: Stage) -> None:
    name = b'a "b" \\ c\nnccl_bus_bandwidth_gbs 1\n# EOF\n\x1b[31m \xff\xc3'
    with stage.playing(step("comm", name=name, ranks=4), ALL_REDUCE, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.proms(), "no file")
        (text,) = stage.proms().values()
        try:
            families = list(text_string_to_metric_families(text))
        except ValueError as error:
            raise AssertionError(f"a name breaks the file: {error}") from None
        samples = [sample for family in families for sample in family.samples]
        assert all(sample.labels for sample in samples), "a name breaks the file"
        names = {sample.labels.get("comm_name", "") for sample in samples} - {""}
        assert [name[:8] for name in names] == ['a "b" \\ ']


@defect("P5", "as many series as there are sizes", writes(lambda text: text + MANY))
def test_sizes_of_all_kinds_make_few_series(stage: Stage) -> None:
    sizes = step("coll", func="AllReduce", bytes=65536, grow=1024, times=900)
    with stage.playing(COMM, sizes, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find(OPS), "no series")
        assert len(stage.series()) <= 300, "as many series as there are sizes"
        assert sum(stage.find(OPS)) == 900


def open_to_all(out: Path) -> None:
    for path in out.iterdir():
        path.chmod(0o777)


@defect("P6", "others may write into it", Plant(touch=open_to_all))
def test_nobody_else_may_write_into_a_file(stage: Stage) -> None:
    before = os.umask(0)
    try:
        with stage.playing(COMM, ALL_REDUCE, PAUSE) as playing:
            playing.until_pause()
            stage.wait(lambda: stage.find(OPS), "no series")
            for path in stage.out.iterdir():
                mode = stat.S_IMODE(path.stat().st_mode)
                assert not mode & 0o133, f"others may write into it: {path.name} {mode:o}"
    finally:
        os.umask(before)


@defect("P6", "a family without a type", writes(lambda text: text.replace("# TYPE", "#")))
def test_every_family_has_its_help_and_its_type(stage: Stage) -> None:
    with stage.playing(COMM, ALL_REDUCE, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find(OPS), "no series")
        (text,) = stage.proms().values()
    for name in {one.name for one in exposition.read_prom(text)}:
        assert f"# TYPE {name} " in text, "a family without a type"
        assert f"# HELP {name} " in text


@defect("P7", "a clock that goes back writes series twice", writes(lambda text: text * 2))
def test_a_clock_that_goes_back_changes_nothing(stage: Stage) -> None:
    back = step("set", clock_step_s=-3600)
    with stage.playing(COMM, ALL_REDUCE, PAUSE, back, ALL_REDUCE, PAUSE) as playing:
        playing.until_pause()
        stage.wait(lambda: stage.find(OPS), "no series")
        playing.go_on()
        playing.until_pause()

        def is_new() -> bool:
            seen = identities(stage.series())
            assert len(seen) == len(set(seen)), "a clock that goes back writes series twice"
            return stage.find(OPS) == [16]

        stage.wait(is_new, "no more series")
