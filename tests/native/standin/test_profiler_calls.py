"""The stand-in behaves towards a profiler plugin as NCCL does."""

from itertools import groupby
from pathlib import Path

import pytest

from tests.support.standin import COLL, EVERYTHING, KERNEL_PHASE, P2P, Call, Run, finished

QUICK = ("--sizes", "32K", "--rate", "400", "--compute-ms", "0")
COLLECTIVE_AFTER_API = [
    "GroupApi start",
    "GroupApi 23",
    "CollApi start",
    "CollApi stop",
    "GroupApi 24",
    "KernelLaunch start",
    "KernelLaunch stop",
    "Group start",
    "Coll start",
    "Coll stop",
    "Group stop",
    "GroupApi stop",
]
KERNEL_START = "KernelCh start"
APIS = pytest.mark.parametrize("api", ["5", "6", "7"])
ALL_APIS = pytest.mark.parametrize("api", ["4", "5", "6", "7"])


def quick(tmp_path: Path, *args: str, mask: int = EVERYTHING, **env: str) -> Run:
    """Two ranks of one communicator, a few small operations."""
    run = finished(
        tmp_path, *QUICK, "--comms", "world", *args, env={"RECORDER_MASK": str(mask)} | env
    )
    assert run.codes == [0, 0], run.stderr
    return run


def told_by_application(calls: list[Call]) -> list[str]:
    """The words of the thread that called init."""
    return [c.words for c in calls if c["tid"] == calls[0]["tid"]]


def starts(calls: list[Call], *types: str) -> list[Call]:
    return [c for c in calls if c.kind == "start" and c.type in types]


@APIS
def test_a_lone_collective_is_told_in_the_order_of_nccl(tmp_path: Path, api: str) -> None:
    run = quick(tmp_path, "--api", api, "--steps", "1", "--ops", "allreduce")
    assert told_by_application(run.calls(0)) == ["init", *COLLECTIVE_AFTER_API, "finalize"]


def test_before_2_28_there_are_groups_and_tasks_only(tmp_path: Path) -> None:
    run = quick(tmp_path, "--api", "4", "--steps", "1", "--ops", "allreduce")
    words = ["Group start", "Coll start", "Coll stop", "Group stop"]
    assert told_by_application(run.calls(0)) == ["init", *words, "finalize"]
    group, task = starts(run.calls(0), "Group", "Coll")
    assert task["parent"] == group["handle"]


@APIS
def test_send_and_receive_are_two_tasks_of_one_user_group(tmp_path: Path, api: str) -> None:
    run = quick(tmp_path, "--api", api, "--steps", "1", "--ops", "sendrecv", mask=P2P)
    words = told_by_application(run.calls(0))
    assert words[1:3] == ["GroupApi start", "GroupApi 23"]
    assert words[3:7] == ["P2pApi start", "P2pApi stop"] * 2
    assert words[7:-1] == [
        "GroupApi 24",
        "Group start",
        *["P2p start"] * 2,
        *["P2p stop"] * 2,
        "Group stop",
        "GroupApi stop",
    ]
    (api_group,) = starts(run.calls(0), "GroupApi")
    assert api_group["depth"] == 2


@APIS
def test_parents_are_the_api_call_and_the_group_is_offered_beside(tmp_path: Path, api: str) -> None:
    calls = quick(tmp_path, "--api", api, "--steps", "1", "--ops", "allreduce").calls(1)
    (group_api,), (coll_api,) = starts(calls, "GroupApi"), starts(calls, "CollApi")
    (launch,), (group,) = starts(calls, "KernelLaunch"), starts(calls, "Group")
    (task,) = starts(calls, "Coll")
    assert [group_api["parent"], coll_api["parent"]] == [0, group_api["handle"]]
    assert [launch["parent"], group["parent"]] == [group_api["handle"], 0]
    assert [task["parent"], task["group"]] == [coll_api["handle"], group["handle"]]
    assert [c["parent"] for c in starts(calls, "KernelCh")] == [task["handle"]] * 2
    assert [task["rank"], group_api["rank"], coll_api["rank"], group["rank"]] == [1, 0, 0, 0]


@ALL_APIS
def test_kernels_are_told_by_one_other_thread_for_each_communicator(
    tmp_path: Path, api: str
) -> None:
    run = finished(tmp_path, *QUICK, "--steps", "2", "--api", api, ranks=4)
    assert run.codes == [0] * 4
    calls = run.calls(0)
    inits = [c for c in calls if c.kind == "init"]
    kernels = [c for c in calls if c.type == "KernelCh" and c.kind == "start"]
    threads: dict[str, set[int]] = {init["name"]: set() for init in inits}
    names = {init["context"]: init["name"] for init in inits}
    for call in kernels:
        threads[names[call["context"]]].add(call["tid"])
    assert all(len(tids) == 1 for tids in threads.values())
    assert len(set.union(*threads.values(), {inits[0]["tid"]})) == 4


@ALL_APIS
def test_the_stop_of_a_channel_follows_its_clock_at_once(tmp_path: Path, api: str) -> None:
    calls = quick(tmp_path, "--api", api, "--steps", "4", "--channels", "3").calls(0)
    kernels = [c for c in calls if c.type == "KernelCh"]
    handles = [c["handle"] for c in starts(kernels, "KernelCh")]
    ends = [c for c in kernels if c.kind != "start"]
    assert [(c.words, n.words) for c, n in zip(ends[::2], ends[1::2], strict=True)] == [
        ("KernelCh 22", "KernelCh stop")
    ] * len(handles)
    assert [c["handle"] for c in ends[::2]] == [c["handle"] for c in ends[1::2]]
    assert sorted(c["handle"] for c in ends[::2]) == handles
    assert all(calls.index(s) < calls.index(e) for s, e in by_handle(kernels))


def by_handle(calls: list[Call]) -> list[tuple[Call, Call]]:
    """The start of each channel with its clock."""
    clocks = {c["handle"]: c for c in calls if c.words == "KernelCh 22"}
    return [(c, clocks[c["handle"]]) for c in starts(calls, "KernelCh")]


def test_channels_come_in_changing_orders_also_before_the_stop_of_the_task(tmp_path: Path) -> None:
    calls = quick(tmp_path, "--steps", "200", "--channels", "3", "--ops", "allreduce").calls(0)
    orders = groupby(starts(calls, "KernelCh"), key=lambda c: c["parent"])
    assert len({tuple(c["channel"] for c in op) for _, op in orders}) > 1
    first = {c["parent"]: i for i, c in reversed([*enumerate(calls)]) if c.words == KERNEL_START}
    early = [first[c["handle"]] < i for i, c in enumerate(calls) if c.words == "Coll stop"]
    assert any(early)
    assert not all(early)


def test_channel_numbers_are_absolute(tmp_path: Path) -> None:
    calls = quick(tmp_path, "--steps", "1", "--channels", "4").calls(0)
    tasks = {c["handle"]: c["func"] for c in starts(calls, "Coll", "P2p")}
    seen: dict[str, set[int]] = {name: set() for name in tasks.values()}
    for call in starts(calls, "KernelCh"):
        seen[tasks[call["parent"]]].add(call["channel"])
    assert seen["AllReduce"] == {4, 5, 6, 7}
    assert seen["Send"] == seen["Recv"] == {16, 17, 18, 19}


def test_the_gpu_clock_has_another_zero_in_each_process(tmp_path: Path) -> None:
    run = quick(tmp_path, "--steps", "2")
    offsets = []
    for rank in (0, 1):
        call = starts(run.calls(rank), "KernelCh")[0]
        offsets.append(call["timer_ns"] - call["host_ns"])
    assert min(offsets) > 1e13
    assert abs(offsets[0] - offsets[1]) > 1e10


def test_the_stand_ins_log_has_the_clocks_that_the_profiler_got(tmp_path: Path) -> None:
    run = quick(tmp_path, "--steps", "3")
    calls = run.calls(1)
    told = []
    for task in starts(calls, "Coll", "P2p"):
        pairs = [(s, e) for s, e in by_handle(calls) if s["parent"] == task["handle"]]
        first = min(s["timer_ns"] for s, _ in pairs)
        last = max(e["timer_ns"] for _, e in pairs)
        size = 1 if task["datatype"] == "ncclInt8" else 4
        told.append((task["func"], task["count"] * size, first, last))
    logged = [(r["func"], r["bytes"], r["start_ns"], r["stop_ns"]) for r in run.log(1)]
    assert sorted(told) == sorted(logged)


@ALL_APIS
def test_sequence_numbers_count_per_communicator_and_function(tmp_path: Path, api: str) -> None:
    run = finished(tmp_path, *QUICK, "--steps", "3", "--api", api, ranks=4)
    seen: dict[tuple[int, str], list[int]] = {}
    for call in starts(run.calls(2), "Coll"):
        seen.setdefault((call["context"], call["func"]), []).append(call["seq"])
    assert len(seen) == 9
    assert all(numbers == [0, 1, 2] for numbers in seen.values())


def test_allgather_is_told_in_bytes_and_its_api_call_in_elements(tmp_path: Path) -> None:
    calls = quick(tmp_path, "--steps", "1", "--ops", "allgather,reducescatter").calls(0)
    told = [
        (c.type, c["func"], c["count"], c["datatype"]) for c in starts(calls, "Coll", "CollApi")
    ]
    assert told == [
        ("CollApi", "AllGather", 4096, "ncclFloat32"),
        ("Coll", "AllGather", 16384, "ncclInt8"),
        ("CollApi", "ReduceScatter", 4096, "ncclFloat32"),
        ("Coll", "ReduceScatter", 4096, "ncclFloat32"),
    ]


def test_communicators_have_one_id_on_all_ranks_and_another_in_the_next_run(tmp_path: Path) -> None:
    ids: list[dict[str, set[int]]] = []
    for attempt in ("a", "b"):
        run = finished(tmp_path / attempt, *QUICK, "--steps", "1", ranks=6, per_node=2)
        seen: dict[str, set[int]] = {}
        for rank in range(6):
            for init in (c for c in run.calls(rank) if c.kind == "init"):
                seen.setdefault(init["name"], set()).add(init["id"])
                shape = {"node": (2, 1), "cross": (3, 3), "world": (6, 3)}
                kind = init["name"].removeprefix("standin_").rstrip("0123456789")
                assert (init["n_ranks"], init["n_nodes"]) == shape[kind]
        ids.append(seen)
    assert sorted(ids[0]) == [
        *("standin_cross0", "standin_cross1"),
        *("standin_node0", "standin_node1", "standin_node2"),
        "standin_world",
    ]
    everywhere = [number for run_ids in ids for numbers in run_ids.values() for number in numbers]
    assert len(everywhere) == len(set(everywhere)) == 12


def test_a_communicator_of_one_rank_has_no_events(tmp_path: Path) -> None:
    run = finished(tmp_path, *QUICK, "--steps", "1", "--comms", "node,world", per_node=1)
    calls = run.calls(0)
    alone = next(c for c in calls if c.kind == "init" and c["n_ranks"] == 1)
    assert [c.kind for c in calls if c.data.get("context") == alone["context"]] == [
        "init",
        "finalize",
    ]


@ALL_APIS
def test_with_mask_0_there_are_no_event_calls(tmp_path: Path, api: str) -> None:
    calls = quick(tmp_path, "--api", api, "--steps", "1", mask=0).calls(0)
    assert [c.kind for c in calls] == ["init", "finalize"]


def test_asking_for_a_task_starts_its_ancestors_and_nothing_else(tmp_path: Path) -> None:
    calls = quick(tmp_path, "--steps", "1", mask=COLL).calls(0)
    api_calls = [c["func"] for c in starts(calls, "CollApi", "P2pApi")]
    assert {c.type for c in calls if c.kind == "start"} == {"Group", "Coll", "GroupApi", "CollApi"}
    assert api_calls == ["AllReduce", "AllGather", "ReduceScatter"]


@ALL_APIS
def test_a_mask_changed_at_run_time_holds_from_the_next_group_on(tmp_path: Path, api: str) -> None:
    run = quick(
        tmp_path, "--api", api, "--steps", "3", "--ops", "allreduce", RECORDER_MASK_AT="2:0"
    )
    calls = run.calls(0)
    assert len(starts(calls, "Coll")) == 2
    assert len(starts(calls, "KernelCh")) == 4
    assert len(run.log(0)) == 3


def test_kernel_phases_bring_the_kernel_channels_with_them(tmp_path: Path) -> None:
    run = quick(tmp_path, "--steps", "1", "--ops", "allreduce", mask=KERNEL_PHASE)
    channels = [c["handle"] for c in starts(run.calls(0), "KernelCh")]
    phases = starts(run.calls(0), "KernelPhase")
    assert [c["name"] for c in phases] == ["initial_sync", "compute", "final_sync"] * 2
    assert sorted(c["parent"] for c in phases) == sorted(channels * 3)


@ALL_APIS
def test_only_before_2_28_a_group_without_a_handle_hides_its_tasks(
    tmp_path: Path, api: str
) -> None:
    calls = quick(tmp_path, "--api", api, "--steps", "1", RECORDER_NULL="1").calls(0)
    assert len(starts(calls, "Coll", "P2p")) == (0 if api == "4" else 5)
    parents = {c["parent"] for c in starts(calls, "KernelCh")}
    assert (parents == {0}) == (api == "4")


@ALL_APIS
def test_an_event_without_a_handle_gets_no_more_calls(tmp_path: Path, api: str) -> None:
    everything = str(EVERYTHING)
    calls = quick(tmp_path, "--api", api, "--steps", "1", RECORDER_NULL=everything).calls(0)
    assert {c.kind for c in calls} == {"init", "start", "finalize"}
