# SPDX-License-Identifier: Apache-2.0
"""What a log says of a failure: who is behind, what failed first, and that something failed."""

import pytest

from nccl_inspector.nccl_log.judge import LogReport
from nccl_inspector.render.log_text import exit_code, log_json, render_log
from tests.unit.nccl_log.made_logs import findings, judged

_E = "E1125 10:11:12.123456789 ProcessGroupNCCL.cpp:1709"
NEW, OLD = "[PG ID 3 PG GUID {}({}) Rank {}]", "[PG {} ({}) Rank {}]"


def counts(rank: int, group: str, enqueued: int, completed: int, file: str = _E) -> str:
    return (
        f"[rank{rank}]:[{file}] {group} Timeout at NCCL work: {completed + 1}, last enqueued NCCL "
        f"work: {enqueued}, last completed NCCL work: {completed}.\n"
    )


def answer(rank: int, count: int, done: int) -> str:
    """What a rank writes that is asked for a dump: it need not wait for anything itself."""
    return (
        f"[rank{rank}]:[{_E}] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Received a dump signal "
        f"due to a collective timeout from  rank 0 and we will try our best to dump the debug "
        f"info. Last enqueued NCCL work: {count}, last completed NCCL work: {done}.This is\n"
    )


def behind(text: str) -> list[str]:
    return [one.who for one in judged(text).findings if one.rule.id == "rank-behind"]


@pytest.mark.parametrize("form", [NEW, OLD])
def test_groups_of_one_name_are_compared_each_for_itself(form: str) -> None:
    text = "".join(
        counts(4 * group + at, form.format(20 + group, "TENSOR", at), *pair)
        for group, pairs in enumerate([[(9, 8)] * 4, [(5, 4)] * 3 + [(4, 4)]])
        for at, pair in enumerate(pairs)
    )
    assert behind(text) == ["rank 7"]


def test_a_group_in_which_a_rank_is_there_twice_is_several_and_accuses_nobody() -> None:
    group = OLD.format(5, "TENSOR", 0)
    assert behind(counts(8, group, 90, 89) + counts(10, group, 40, 39)) == []


def test_counts_without_a_group_are_compared_with_nothing() -> None:
    text = "".join(counts(at, f"[Rank {at}]", 9 - (at == 3), 8) for at in range(4))
    assert behind(text) == []


def test_a_host_that_ran_less_far_ahead_is_not_behind() -> None:
    group = "[PG ID 0 PG GUID 0(default_pg) Rank {}]"
    ahead = "".join(counts(at, group.format(at), 90 + 7 * at, 11) for at in range(4))
    assert behind(ahead) == []


def test_a_rank_that_waits_itself_for_another_one_is_not_behind() -> None:
    group = "[PG ID 0 PG GUID 0(default_pg) Rank {}]"
    text = "".join(counts(at, group.format(at), 20, 15) for at in range(3))
    text += counts(3, group.format(3), 14, 10) + answer(4, 10, 10)
    assert behind(text) == ["rank 4"]


@pytest.mark.parametrize(("count", "done"), [(17, 17), (0, 0), (-1, -1), (2**64 - 1, 2**64 - 1)])
def test_the_rank_that_answers_a_dump_signal_is_behind(count: int, done: int) -> None:
    group = "[PG ID 0 PG GUID 0(default_pg) Rank {}]"
    text = "".join(counts(at, group.format(at), 19, 17) for at in range(3))
    assert behind(text + answer(3, count, done)) == ["rank 3"]


def test_if_nobody_has_enqueued_anything_nobody_is_behind() -> None:
    assert behind("".join(answer(at, -1, -1) for at in range(4))) == []


def test_if_most_are_behind_the_others_may_have_called_one_too_many() -> None:
    group = "[PG ID 0 PG GUID 0(default_pg) Rank {}]"
    text = counts(0, group.format(0), 18, 17) + "".join(answer(at, 17, 17) for at in (1, 2, 3))
    assert behind(text) == []


@pytest.mark.parametrize("backend", ["NCCL", "XCCL", "HCCL", "MCCL"])
def test_other_backends_write_their_name_where_nccls_is(backend: str) -> None:
    group = "[PG ID 0 PG GUID 0(default_pg) Rank {}]"
    file = f"E909 09:55:46.996672294 ProcessGroup{backend}.cpp:2300"
    text = "".join(
        counts(at, group.format(at), 9 - (at == 2), 8 - (at == 2), file) for at in range(4)
    )
    assert behind(text.replace("NCCL work", f"{backend} work")) == ["rank 2"]


def test_a_rank_of_a_smaller_group_is_called_so_if_no_launcher_says_its_rank() -> None:
    group = NEW.format(37, "TENSOR", 1)
    text = "".join(
        counts(at, NEW.format(37, "TENSOR", at), 9 - (at == 1), 8 - (at == 1)) for at in range(3)
    )
    bare = "\n".join(line.partition(":")[2] for line in text.splitlines())
    assert group in bare
    assert behind(bare) == ["rank 1 of TENSOR (37)"]


# Desync reports.


def _desync(group: str, *lines: str) -> LogReport:
    head = f"[rank0]:[{_E}] {group} Timeout at collective: ALLREDUCE, #18\n"
    return judged(head + "".join(f"\t   {line}\n" for line in lines))


def test_the_ranks_of_a_desync_report_are_named_as_it_names_them() -> None:
    found = _desync(
        "[PG ID 0 PG GUID 0(default_pg) Rank 0]",
        "- To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:",
        "- [5, 6] joined but didn't finish collective #17 (count from 1)",
        "  [7] finished collective #17, but didn't join collective #18 (count from 1)",
    )
    assert findings(found)["desync-report"] == "rank 5, rank 6, rank 7"
    (detail,) = [one.detail for one in found.findings if one.rule.id == "desync-report"]
    assert detail == "ranks 5, 6 did not finish collective 17; rank 7 did not join collective 18"


def test_ranks_of_a_smaller_group_are_not_ranks_of_the_job() -> None:
    words = "- To our best knowledge, ranks [1] are the lagging ranks that caused this timeout. "
    found = _desync(NEW.format(37, "TENSOR", 0), words)
    (one,) = [one for one in found.findings if one.rule.id == "desync-report"]
    assert one.names == ()
    assert one.detail.startswith("ranks in TENSOR (37): rank 1 joined no collective")


def test_a_report_of_another_line_s_is_not_taken_twice() -> None:
    line = f"[rank0]:[{_E}] [PG ID 0 PG GUID 0(default_pg) Rank 0] \n"
    words = "\t - To our best knowledge, ranks [3] are the lagging ranks that caused this timeout\n"
    found = judged(line + line + words + line)
    assert [one.who for one in found.findings if one.rule.id == "desync-report"] == ["rank 3"]


# What NCCL says itself.


def _lines(*texts: str, thread: int = 2) -> str:
    return "".join(f"n1:1:{thread} [0] {text}\n" for text in texts)


UNKNOWN = "a.cc:1 NCCL WARN nobody knows this"


def test_an_unknown_warning_after_which_calls_fail_is_the_first_error() -> None:
    found = judged(
        _lines(UNKNOWN, "NCCL INFO init.cc:930 -> 2", "NCCL INFO group.cc:73 -> 2 [Async]")
    )
    assert found.first is not None
    assert (found.first.rule.id, found.first.who, exit_code(found)) == (
        "nccl-failed",
        "pid 1 (n1)",
        2,
    )
    assert "system error (2)" in found.findings[0].detail


@pytest.mark.parametrize(
    "after",
    [
        _lines("NCCL INFO init.cc:930 -> 2", thread=3),
        _lines("NCCL INFO Using network IB", "NCCL INFO init.cc:930 -> 2"),
        _lines("NCCL INFO init.cc:930 -> 7"),
        _lines("NCCL INFO init.cc:930 -> 0"),
    ],
    ids=["of another thread", "later", "in progress", "success"],
)
def test_calls_that_do_not_follow_from_an_unknown_warning_make_it_no_error(after: str) -> None:
    found = judged(_lines(UNKNOWN) + after)
    assert "nccl-failed" not in findings(found)
    assert found.first is None


def test_a_known_warning_is_critical_if_nccl_fails_by_it() -> None:
    bind = "t.cc:1 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory"
    assert exit_code(judged(_lines(bind))) == 1
    assert exit_code(judged(_lines(bind, "NCCL INFO transport/nvls.cc:409 -> 1"))) == 2


def test_cuda_s_failure_of_another_file_is_not_nvlink_sharp_s() -> None:
    text = "{} NCCL WARN Cuda failure 401 'the operation cannot be performed'"
    assert set(findings(judged(_lines(text.format("transport/nvls.cc:5"))))) == {"nvls-bind"}
    assert set(findings(judged(_lines(text.format("transport/p2p.cc:5"))))) == {"cuda-failure"}


def test_unknown_warnings_are_told_apart_by_their_words_and_not_by_their_numbers() -> None:
    texts = [f"Buffer {at} of host n{at} is odd" for at in range(5)] + ["Ring 3 is odd", "no ring"]
    found = judged(_lines(*(f"a.cc:{at} NCCL WARN {text}" for at, text in enumerate(texts))))
    groups = {one.quote.record.message: one.lines for one in found.findings if one.quote}
    assert groups == {b"Buffer 0 of host n0 is odd": 5, b"Ring 3 is odd": 1, b"no ring": 1}
    assert all(text in log_json(found) for text in ("Buffer 0", "Ring 3", "no ring"))


def test_very_many_kinds_of_unknown_warnings_are_bounded() -> None:
    words = ("".join(chr(97 + at // 26**place % 26) for place in range(3)) for at in range(500))
    found = judged(_lines(*(f"a.cc:1 NCCL WARN {word}" for word in words)))
    assert len(found.findings) <= 65
    assert sum(one.lines for one in found.findings) == 500


# The end of a job.

TRACE = 'Traceback (most recent call last):\n{0}  File "train.py", line {1}, in step\n{0}    f()\n'


def _raised(line: int, text: str, prefix: str = "") -> str:
    return f"{prefix}{TRACE.format(prefix, line)}{prefix}{text}\n"


def test_the_exception_of_the_rank_that_raised_first_is_the_first_error() -> None:
    follow = "[rank{}]: torch.distributed.DistBackendError: NCCL error in: a.cpp:3, remote process "
    text = _raised(7, "ValueError: no data", "[rank3]: ")
    text += "".join(follow.format(at) + "exited or there was a network error\n" for at in (0, 1, 2))
    found = judged(text)
    assert found.first is not None
    assert (found.first.rule.id, found.first.who, found.first.followers) == (
        "python-exception", "rank 3", 3,
    )  # fmt: skip
    assert "at train.py:7 in step" in render_log(found, 100, everything=False, colour=False)


def test_of_several_tracebacks_of_a_rank_the_last_counts() -> None:
    text = _raised(7, "KeyError: 'a'", "[rank3]: ") + _raised(9, "ValueError: b", "[rank3]: ")
    found = judged(text)
    assert found.findings[0].quote is not None
    assert found.findings[0].quote.record.message == b"ValueError: b"


def test_of_a_burst_without_names_the_first_counts() -> None:
    found = judged(_raised(7, "ValueError: a") + _raised(9, "RuntimeError: b"))
    assert found.findings[0].quote is not None
    assert found.findings[0].quote.record.message == b"ValueError: a"


def test_an_exception_after_which_the_program_went_on_is_a_warning() -> None:
    assert exit_code(judged(_raised(7, "ValueError: a") + "step 1 loss 2.5\n" * 9000)) == 1
    assert exit_code(judged(_raised(7, "ValueError: a") + "step 1 loss 2.5\n" * 9)) == 2


def test_what_is_no_traceback_is_no_exception() -> None:
    text = _lines("NCCL INFO Using network IB")
    for line in ("test error: 0.25", "INFO ValueError: a", "error rate 1", "Error: none", "rror"):
        assert exit_code(judged(f"{text}{line}\n")) == 0, line


def test_lines_of_other_tasks_in_a_traceback_do_not_hide_it() -> None:
    lines = _raised(7, "ValueError: a", "3: ").splitlines()
    mixed = "".join(f"{line}\n5: step 1 loss 2.5\n" for line in lines)
    assert findings(judged(mixed)) == {"python-exception": "task 3"}


@pytest.mark.parametrize(
    ("line", "rule", "status"),
    [
        ("slurmstepd: error: Detected 3 oom_kill events in StepId=1.0. Some of the step tasks have "
         "been OOM Killed.", "oom-killed", 2),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-25T10:11:12 DUE TO TIME "
         "LIMIT ***",
         "time-limit", 2),
        ("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-25T10:11:12 DUE TO NODE "
         "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "slurm-node-failed", 2),
        ("srun: error: Node failure on n[2-3]", "slurm-node-failed", 2),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-25T10:11:12 DUE TO "
         "PREEMPTION ***",
         "job-preempted", 2),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-25T10:11:12 DUE TO JOB REQUEUE "
         "***",
         "job-requeued", 2),
        ("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-25T10:11:12 ***",
         "job-cancelled", 1),
        ("srun: error: n2: task 3: Bus error (core dumped)", "task-killed", 2),
        ("srun: error: n2: task 3: Exited with exit code 1", "task-failed", 2),
    ],
)  # fmt: skip
def test_slurm_s_own_lines_say_how_the_job_ended(line: str, rule: str, status: int) -> None:
    found = judged(f"step 1 loss 2.5\n{line}\n")
    assert list(findings(found)) == [rule]
    assert exit_code(found) == status


def test_what_peers_write_of_a_killed_process_follows_it() -> None:
    text = _lines("net.cc:1 NCCL WARN NET/IB: Got completion from peer 10.1.0.2<1> with status=12")
    text += "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks\n"
    found = judged(text)
    assert found.first is not None
    assert (found.first.rule.id, found.first.followers) == ("oom-killed", 1)


@pytest.mark.parametrize(
    "text",
    [
        _lines("s.cc:1 NCCL WARN socketProgress: Connection closed by remote peer n2<4>"),
        _lines("NCCL INFO init.cc:930 -> 6"),
        "[W1125 10:11:12.123456789 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=7)\n",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly\n",
    ],
)
def test_what_only_follows_from_an_error_is_not_all_well(text: str) -> None:
    found = judged(text)
    assert exit_code(found) == 1
    words = render_log(found, 100, everything=False, colour=False)
    assert "FINDINGS  none" not in words
    assert "CAUSE  not known: something failed" in words


def test_a_version_line_holds_for_those_that_wrote_before_it_unless_they_say_their_own() -> None:
    text = "n1:1:1 [0] NCCL INFO Using network IB\nn2:2:2 [0] NCCL INFO Using network IB\n"
    text += "n3:3:3 [0] NCCL INFO NCCL version 2.30.7+cuda13.0\nNCCL version 2.27.7+cuda12.9\n"
    (fact,) = [one for one in judged(text).facts if one.name == "library"]
    assert fact.values == (("NCCL 2.27.7+cuda12.9", 2), ("NCCL 2.30.7+cuda13.0", 1))
