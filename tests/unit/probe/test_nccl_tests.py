# SPDX-License-Identifier: Apache-2.0
"""`nccl-inspector probe --read`: outputs of several nccl-tests, whole, cut and hostile."""

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from nccl_inspector.commands.probe import probe
from nccl_inspector.errors import InspectorError
from nccl_inspector.probe.nccl_tests import PerfRun, function_of, read_output
from tests.support.nccl_tests_output import (
    ALG_GBS,
    BEST_GBS,
    FACTOR,
    NEW,
    OLD,
    PER_ITERATION,
    RANKS,
    RCCL,
    SIZES,
    V13,
    VERSIONS,
    json_output,
    json_text,
    output,
)

BROKEN_ROWS = (
    "1048576 262144 float sum -1 nan 1 1 0 1 1 1 0",
    "1048576 262144 float",
    "1" * 60 + " 1 float sum -1 1 1 1 0 1 1 1 0",
    "1 ² float sum -1 1 1 1 0",
    "9 9 float sum -1 1 inf 1 0 1 1 1 0",
    "9 9 float sum -1 1 -5 1 0 1 1 1 0",
)


def read(folder: Path, text: str) -> PerfRun:
    (folder / "out.txt").write_text(text)
    (run,) = read_output(folder / "out.txt")
    return run


def judged(folder: Path, text: str, *words: str) -> Result:
    (folder / "out.txt").write_text(text)
    return CliRunner().invoke(probe, ["--read", str(folder / "out.txt"), *words])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("prefix", ["", "0: ", "12: ", "[1,0]<stdout>:"])
def test_every_release_is_read_whatever_is_in_front_of_its_lines(
    tmp_path: Path, version: str, prefix: str
) -> None:
    run = read(tmp_path, "".join(prefix + line + "\n" for line in output(version).splitlines()))
    assert run.problems == []
    assert run.is_whole
    assert run.ranks == RANKS
    assert run.nodes == {"n1", "n2"}
    assert run.function == ("AllReduce" if version in (NEW, PER_ITERATION) else "")
    assert [row.size_bytes for row in run.rows] == list(SIZES)
    for row, alg_gbs in zip(run.rows, ALG_GBS, strict=True):
        outside, inside = row.figures
        assert (outside.place, inside.place) == ("out-of-place", "in-place")
        assert outside.alg_gbs == pytest.approx(alg_gbs * 0.9, abs=0.01)
        assert inside.bus_gbs == pytest.approx(alg_gbs * FACTOR, abs=0.01)
        assert inside.time_us == pytest.approx(row.size_bytes / alg_gbs / 1e3, rel=0.01)
        assert inside.wrong == 0
    best = run.best()
    assert best
    assert (best[0].size_bytes, best[1].bus_gbs) == (SIZES[-1], BEST_GBS)


def test_rows_have_the_number_of_their_line(tmp_path: Path) -> None:
    text = output(V13)
    lines = text.splitlines()
    for row in read(tmp_path, text).rows:
        assert lines[row.line - 1].split()[0] == str(row.size_bytes)


@pytest.mark.parametrize("version", [V13, PER_ITERATION])
def test_timestamps_behind_the_rows_are_no_figures(tmp_path: Path, version: str) -> None:
    text = output(version, timestamps=True).replace("#wrong\n", "#wrong             timestamp\n")
    run = read(tmp_path, text)
    assert run.problems == []
    assert len(run.rows) == len(SIZES)


def test_programs_without_redop_and_root_are_read(tmp_path: Path) -> None:
    """all_gather_perf up to 2.11 has neither column; up to 2.16 it prints nothing for redop."""
    old = output(OLD).replace("    redop", "").replace("     sum", "")
    assert len(read(tmp_path, old).rows) == len(SIZES)
    blank = output(V13).replace("   sum", "      ")
    assert len(read(tmp_path, blank).rows) == len(SIZES)


def test_a_replayed_trace_has_only_figures_in_place(tmp_path: Path) -> None:
    lines = output(NEW).splitlines()
    at = next(at for at, line in enumerate(lines) if line.lstrip().startswith(str(SIZES[-1])))
    words = lines[at].split()
    lines[at] = "  ".join([*words[:5], " " * 32, *words[9:]])
    last = read(tmp_path, "\n".join(lines) + "\n").rows[-1]
    assert [one.place for one in last.figures] == ["in-place"]
    assert last.figures[0].bus_gbs == BEST_GBS


def test_lines_of_nccl_and_of_the_job_between_the_rows_are_left_alone(tmp_path: Path) -> None:
    lines = output(NEW).splitlines()
    noise = ["n1:17:17 [0] NCCL INFO Using network IB", "", "epoch 3: loss 1.25"]
    text = "\n".join(line for one in lines for line in (*noise, one)) + "\n"
    run = read(tmp_path, text)
    assert run.problems == []
    assert len(run.rows) == len(SIZES)


@pytest.mark.parametrize(
    ("said", "version", "count"), [("7", V13, 7), ("1e+06", RCCL, 1_000_000), ("N/A", NEW, 0)]
)
def test_wrong_values_are_counted(tmp_path: Path, said: str, version: str, count: int) -> None:
    run = read(tmp_path, output(version, wrong=said))
    assert run.wrong == count
    assert run.rows[-1].figures[-1].wrong == (None if said == "N/A" else count)
    done = judged(tmp_path, output(version, wrong=said), "--expect", "340")
    assert done.exit_code == (1 if count else 0)
    assert ("probe-wrong" in done.output) == bool(count)


def test_a_deviation_of_old_releases_is_no_count(tmp_path: Path) -> None:
    run = read(tmp_path, output(OLD, wrong="2e-07"))
    assert run.rows[-1].figures[-1].wrong is None
    for text in ("1e+00", "3.5e+05"):
        assert read(tmp_path, output(OLD, wrong=text)).rows[-1].figures[-1].wrong is None
    assert read(tmp_path, output(NEW, wrong="1e+06")).rows[-1].figures[-1].wrong == 1_000_000
    assert run.wrong == 0


@pytest.mark.parametrize(
    ("expect", "code", "verdict"),
    [("350", 0, "AS EXPECTED"), ("388", 0, "AS EXPECTED"), ("390", 1, "BELOW")],
)
def test_the_best_bandwidth_is_compared_with_the_threshold(
    tmp_path: Path, expect: str, code: int, verdict: str
) -> None:
    done = judged(tmp_path, output(NEW), "--expect", expect)
    assert done.exit_code == code
    assert f"\n{verdict}  350 GB/s at 1 GiB, in-place is " in done.output


def test_without_an_expectation_nothing_is_called_well(tmp_path: Path) -> None:
    done = judged(tmp_path, output(NEW))
    assert done.exit_code == 0
    assert "NO EXPECTATION  350 GB/s at 1 GiB" in done.output


def test_a_cut_output_has_no_verdict(tmp_path: Path) -> None:
    text = output(NEW, whole=False)
    done = judged(tmp_path, text, "--expect", "10")
    assert done.exit_code == 3
    assert "NO DATA  the output is cut" in done.output
    last = len(text.splitlines())
    told = "".join(done.output.split())  # a long path is cut where a line ends
    assert f"out.txt:{last}:thetableendswithoutitslastlines" in told


def test_an_output_that_is_cut_anywhere_is_told_and_never_a_traceback(tmp_path: Path) -> None:
    text = output(NEW)
    for at in range(0, len(text) - 60, 37):
        done = judged(tmp_path, text[:at], "--expect", "10")
        assert done.exit_code == 3, text[:at]
        assert not done.exception or isinstance(done.exception, SystemExit)


def test_two_tables_in_one_file_are_two_runs(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(output(NEW, whole=False) + output(NEW))
    first, second = read_output(tmp_path / "out.txt")
    assert (first.is_whole, second.is_whole) == (False, True)
    assert (first.ranks, second.ranks) == (RANKS, RANKS)
    assert "the table ends without its last lines" in first.problems[0]


def test_a_row_that_is_none_is_told_with_its_line(tmp_path: Path) -> None:
    lines = output(NEW).splitlines()
    at = next(at for at, line in enumerate(lines) if line.lstrip().startswith(str(SIZES[0])))
    for broken in BROKEN_ROWS:
        run = read(tmp_path, "\n".join([*lines[:at], broken, *lines[at + 1 :]]) + "\n")
        assert run.problems == [f"{tmp_path}/out.txt:{at + 1}: not a row of nccl-tests"]
        assert len(run.rows) == len(SIZES) - 1


def test_a_busbw_with_another_factor_is_told(tmp_path: Path) -> None:
    text = output(NEW).replace("350.00", "200.00")
    (problem,) = read(tmp_path, text).problems
    assert "busbw 200 does not follow from algbw 200 for AllReduce of 8 ranks (350)" in problem


def test_json_is_read(tmp_path: Path) -> None:
    run = read(tmp_path, json_text())
    assert (run.function, run.ranks, run.nodes) == ("AllReduce", RANKS, {"n1", "n2"})
    assert (run.is_whole, run.problems, run.out_of_bounds) == (True, [], 0)
    best = run.best()
    assert best
    assert (best[0].size_bytes, best[1].bus_gbs, best[1].place) == (SIZES[-1], 350, "out-of-place")
    done = judged(tmp_path, json_text(), "--json", "--expect", "500")
    assert done.exit_code == 1
    (said,) = json.loads(done.stdout)["runs"]
    assert said["verdict"] == "BELOW"
    assert "SECRET" not in done.output


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json_text()[:-30], "invalid JSON; it is cut in line 1"),
        ("{" * 100_000, "invalid JSON"),
        (json_text(results=[{"size": -1}]), "invalid number"),
        (json_text(results=[{"size": 1, "out_of_place": {"time": "nan"}}]), "invalid number"),
        (json_text(results=[1]), "invalid table"),
        ("{}", "it has no results"),
        (json_text(results=[json_output()["results"][0]] * 5000), "invalid list"),
        (json_text(out_of_bounds={"count": 1e300}), "invalid number"),
    ],
)
def test_json_that_is_cut_or_hostile_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    done = judged(tmp_path, text)
    assert done.exit_code == 3
    (line,) = done.output.splitlines()
    assert line.startswith(f"nccl-inspector: {tmp_path}/out.txt: ")
    assert why in line


def test_json_without_an_end_of_the_table_has_no_verdict(tmp_path: Path) -> None:
    value = json_output()
    del value["average_bus_bandwidth"]
    assert judged(tmp_path, json.dumps(value), "--expect", "1").exit_code == 3


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 100_000, os.urandom(50_000), b"# size count type", b"\x1b[2J\xff\xfe",
     b"x" * (1 << 17)],
    ids=["empty", "zeros", "random", "heading", "escapes", "one long line"],
)  # fmt: skip
def test_what_is_no_output_is_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "out.txt"
    path.write_bytes(data)
    done = CliRunner().invoke(probe, ["--read", str(path)])
    assert done.exit_code == 3
    (line,) = done.output.splitlines()
    assert line.startswith(f"nccl-inspector: {path}:")
    assert line.isprintable()


def test_what_is_no_file_is_one_line_and_waits_for_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "good").write_text(output(NEW))
    paths = [tmp_path / name for name in ("fifo", ".", "absent", "good")]
    done = CliRunner().invoke(probe, ["--read", *map(str, paths), "--expect", "1"])
    assert done.exit_code == 3  # the good one is as expected, the others could not be judged
    told = [line for line in done.output.splitlines() if line.startswith("nccl-inspector:")]
    assert [line.rpartition(": ")[2] for line in told] == [
        "not a regular file", "not a regular file", "No such file or directory",
    ]  # fmt: skip
    assert "AS EXPECTED" in done.output


def test_a_hostile_name_of_a_host_moves_no_cursor(tmp_path: Path) -> None:
    done = judged(tmp_path, output(NEW, hosts=("n1\x1b[2J", "n2")), "--json")
    assert "\x1b" not in done.output
    assert "\\u001b" not in done.output


def test_many_rows_are_read_in_little_time(tmp_path: Path) -> None:
    lines = output(NEW).splitlines()
    row = next(line for line in lines if line.lstrip().startswith(str(SIZES[0])))
    at = lines.index(row)
    begin_s = time.process_time()
    run = read(tmp_path, "\n".join([*lines[:at], *[row] * 50_000, *lines[at:]]) + "\n")
    assert time.process_time() - begin_s < 10
    assert len(run.rows) <= 4096
    assert "more than 4096 rows" in run.problems[0]


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InspectorError, match=r"out.txt:1: a line of more than"):
        read_output(path)
    path.write_bytes(b"{")
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(InspectorError, match="larger than 64 MiB"):
        read_output(path)


@pytest.mark.parametrize(
    ("program", "function"),
    [
        ("all_reduce_perf", "AllReduce"), ("/opt/x/reduce_scatter_perf_mpi", "ReduceScatter"),
        ("/opt/alltoall_perf", "AlltoAll"), ("sendrecv_perf", "SendRecv"), ("rm", ""), ("", ""),
    ],
)  # fmt: skip
def test_the_operation_is_known_by_the_program(program: str, function: str) -> None:
    assert function_of(program) == function


def test_a_file_needs_read() -> None:
    assert CliRunner().invoke(probe, ["out.txt"]).exit_code == 2


MID_ROW = {
    "hydra": ("[0]", "[0]"),
    "mpirun": ("[1,0]<stdout>:", "[1,0]<stdout>:"),
    "Open MPI 5": ("[prterun-n1-4711@1,0]<stdout>: ", "[prterun-n1-4711@1,0]<stdout>: "),
    "Ray": ("(Worker pid=73, ip=10.1.0.2) ", ""),
    "torchrun": ("[rank0]: ", ""),
    "kubectl": ("[pod/launcher-abc12/launcher] ", ""),
    "CRI": ("2026-11-27T10:00:01.123456789Z stdout F ", ""),
    "journal": ("Nov 27 10:00:01 n1 perf[73]: ", ""),
    "pdsh": ("n1: ", ""),
    "CloudWatch": ("  | 2026-11-27T10:00:39.282-07:00 | ", ""),
    "quoted": ("> ", ""),
    "colours": ("\x1b[36m(Worker pid=73)\x1b[0m ", ""),
    "box": ("│ ", ""),
}


@pytest.mark.parametrize("name", MID_ROW)
@pytest.mark.parametrize("version", [OLD, NEW])
def test_a_table_is_the_same_through_every_launcher_also_if_it_marks_parts_of_rows(
    tmp_path: Path, name: str, version: str
) -> None:
    begin, middle = MID_ROW[name]
    lines = []
    for line in output(version).splitlines():
        parts = line.split("  -1 ", 1) if middle and not line.startswith("#") else [line]
        lines.append(begin + f"  -1{middle} ".join(parts))
    plain, marked = read(tmp_path, output(version)), read(tmp_path, "\n".join([*lines, ""]))
    assert [one.figures for one in marked.rows] == [one.figures for one in plain.rows]
    assert (marked.ranks, marked.problems, marked.is_whole) == (plain.ranks, [], True)


def _alone(hosts: int, ranks_said: bool = True) -> str:
    rank = "#  Rank  0 Group  0 Pid   5068 on         n{} device  0 [0x21] GPU"
    heading = (
        "#  size  count  type  redop  root  time  algbw  busbw  #wrong  time  algbw  busbw  #wrong"
    )
    row = "  67108864  16777216  float  sum  -1  81.21  826.34  0.00  0  0.10  {}  0.00  0"
    lines = ["# Using devices", *(rank.format(at) for at in range(hosts) if ranks_said)]
    lines += [heading] * hosts + [row.format("1777718.25"), row.format("1e+06")] * hosts
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 0 ", ""])


def test_one_rank_alone_has_measured_nothing_and_is_told_how_to_go_on(tmp_path: Path) -> None:
    for text in (_alone(1), _alone(1, ranks_said=False)):
        found = judged(tmp_path, text, "--expect", "45")
        assert found.exit_code == 3
        assert "one rank, alone" in found.output
        assert "not a row" not in found.output
        assert "MPI=1" in found.output


def test_several_that_ran_side_by_side_are_told_from_one(tmp_path: Path) -> None:
    found = judged(tmp_path, _alone(3), "--expect", "45")
    assert "3 processes ran side by side" in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("n1: Test NCCL failure common.cu:392 'unhandled cuda error / '", "nccl-exception"),
        ("n1: Test CUDA failure common.cu:303 'an illegal memory access'", "program-cuda-error"),
        ("Test CUDA failure common.cu:730 'unknown error'", "program-cuda-error"),
        ("NCCL failure all_reduce.cu:95 'unhandled cuda error'", "nccl-exception"),
        ("n1: Test NCCL failure a.cu:1 'unhandled system error / Call to socket failed: Too many "
         "open files'", "too-many-files"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["before", "in a row", "alone"])
def test_what_the_program_wrote_of_its_failure_is_said_and_explained(
    tmp_path: Path, line: str, words: str, where: str
) -> None:
    whole = output(NEW, whole=False)
    text = {"before": f"{line}\n{whole}", "in a row": whole.rstrip()[:-30] + line + "\n",
            "alone": f"step 1\n{line}\n"}[where]  # fmt: skip
    found = judged(tmp_path, text, "--expect", "45")
    said = " ".join(found.output.split())
    assert found.exit_code == 1
    assert f"nccl-tests failed: {line.split(' failure')[0]}" in said
    assert words in said


def test_names_of_nodes_that_are_padded_are_names(tmp_path: Path) -> None:
    text = output(NEW)
    run = read(tmp_path, text.replace(" device ", "    device "))
    assert run.ranks == RANKS
    assert run.nodes == read(tmp_path, text).nodes


def test_a_table_of_a_form_that_is_not_known_is_not_told_to_be_none(tmp_path: Path) -> None:
    old = "# bytes N type op time algbw busbw res\n 8 2 float sum 0.135 0.00 0.00 5e+00\n"
    (tmp_path / "out.txt").write_text(f"{old} Out of bounds values : 6 FAILED\n")
    with pytest.raises(InspectorError, match=r"that is known.*'Out of bounds values : 6 FAILED'"):
        read_output(tmp_path / "out.txt")
