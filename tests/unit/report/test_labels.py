# SPDX-License-Identifier: Apache-2.0
"""The section LABELS: operations by the application's tag, symmetric kernel and root."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from nccl_inspector.box.reader import read_box
from nccl_inspector.box.sample_reader import add_samples
from nccl_inspector.model.card import Card
from nccl_inspector.model.card_labels import Labels
from nccl_inspector.model.operation_label import ALL_COMMS, OTHERS, Label
from nccl_inspector.model.process import Process
from nccl_inspector.render.html import render_html
from nccl_inspector.render.json import card_from_json, to_json
from nccl_inspector.render.labels import LABELS_MAX, describe_labels
from nccl_inspector.render.text import render_text
from nccl_inspector.report.assemble import build_card
from nccl_inspector.summary.attempts import Loaded
from nccl_inspector.summary.codec import decode, encode, encode_process
from tests.support.boxes import MS, NOW_NS, TICK0, BoxOf, CommOf, KeyOf, box_bytes, fixed_chance
from tests.support.synthetic.jobs import HEAD, US, Job, through_summaries

NOON = datetime(2026, 8, 2, 12, tzinfo=UTC)
TAG, KERNEL, ROOT = range(3)
BROADCAST = 4  # plugin/box/box.h
MOST = (1 << 64) - 1


def label(
    kind: int, value: int, ops: int, busy_ms: int = 0, **words: int | str
) -> dict[str, int | str]:
    own = {"kind": kind, "value": value, "ops": ops, "bytes": 100 * ops, "timed_ops": ops}
    return {**own, "busy_ns": busy_ms * MS, "last_tick": TICK0 + 90_000 * MS, **words}


def read(*labels: dict[str, int | str]) -> Process:
    """Return what collection reads from a box with these labels."""
    comms = [CommOf(7, 0, 4, name="world"), CommOf(8, 1, 2)]
    data = box_bytes(BoxOf(comms, [KeyOf(0, [5 * MS] * 20)], labels=labels))
    fd = os.memfd_create("box")
    try:
        os.write(fd, data)
        return add_samples(fd, len(data), read_box(fd, len(data), "0_1", False), 4)
    finally:
        os.close(fd)


def card_of(labels: Sequence[tuple[Label, ...]]) -> Card:
    job = Job(fixed_chance(1), len(labels), 1)
    group = job.group("world", range(len(labels)))
    for _ in range(20):
        job.compute(20 * MS, {}, 20 * US)
        job.collective(group, "AllReduce", 1 << 24, 4 * MS)
    processes = [replace(one, labels=own) for one, own in zip(job.processes(), labels, strict=True)]
    return build_card(Loaded(tuple(through_summaries(processes)), (0,), ()))


def labels_of(card: Card) -> Labels:
    assert card.labels is not None
    assert card_from_json(to_json(card, NOON)).labels == card.labels
    return card.labels


def test_a_box_tells_operations_by_tag_kernel_and_root() -> None:
    process = read(
        label(TAG, 42, 10, 50),
        label(KERNEL, 0, 5, 7, text="LDMC"),
        label(ROOT, 3, 2, 4, comm=0, func=BROADCAST),
        label(TAG, MOST, 8),
    )
    tag, kernel, root, others = process.labels
    assert not process.flags
    assert tag == Label(
        TAG, ALL_COMMS, 0, 42, "", 10, 1000, 10, 50 * MS, NOW_NS, NOW_NS + 90_000 * MS
    )
    assert (kernel.text, kernel.busy_ns) == ("LDMC", 7 * MS)
    assert (root.comm, root.func, root.value) == (0, BROADCAST, 3)
    assert others.value == OTHERS


def test_where_nccl_tells_of_calls_only_these_are_the_operations() -> None:
    alone, told = read(
        label(ROOT, 0, 0, comm=0, func=BROADCAST, called_ops=9, called_bytes=900),
        label(ROOT, 1, 5, comm=0, func=BROADCAST, called_ops=9, called_bytes=900),
    ).labels
    assert (alone.ops, alone.bytes) == (9, 900)
    assert (told.ops, told.bytes) == (5, 500)


def test_two_entries_of_one_label_are_one() -> None:
    (tag,) = read(label(TAG, 42, 10, 50), label(TAG, 42, 5, 10)).labels
    assert (tag.ops, tag.bytes, tag.timed_ops, tag.busy_ns) == (15, 1500, 15, 60 * MS)


@pytest.mark.parametrize(
    "odd",
    [
        label(3, 42, 10),
        label(TAG, 42, 10, comm=0),
        label(TAG, 42, 10, func=BROADCAST),
        label(TAG, 42, 10, text="text"),
        label(ROOT, 3, 2, comm=99, func=BROADCAST),
        label(ROOT, 3, 2, comm=0, func=200),
        label(ROOT, 3, 2, comm=0),
    ],
)
def test_what_cannot_be_true_is_left_out_and_said(odd: dict[str, int | str]) -> None:
    process = read(label(TAG, 7, 1), odd)
    assert [one.value for one in process.labels] == [7]
    assert process.flags == ("invalid operations of a tag, kernel or root are left out",)


def test_sums_beyond_what_a_summary_takes_are_left_out() -> None:
    most = label(TAG, 7, MOST, bytes=1)
    process = read(most, label(TAG, 7, 1), label(KERNEL, 0, 1, text="LDMC"))
    assert [one.ops for one in process.labels] == [MOST, 1]
    summary = decode(encode(HEAD, [encode_process(process)]))
    assert summary.processes[0].labels == process.labels


def test_the_report_has_a_row_for_each_phase_that_the_application_has_named() -> None:
    second = NOW_NS + 10**9
    own = (
        Label(TAG, ALL_COMMS, 0, 42, "", 1000, 10**9, 1000, 5 * 10**9, NOW_NS, second),
        Label(TAG, ALL_COMMS, 0, 7, "", 10, 10**6, 10, 6 * 10**9, NOW_NS, second),
        Label(KERNEL, ALL_COMMS, 0, 0, "LDMC", 10, 10**6, 0, 0, NOW_NS, second),
        Label(ROOT, 0, BROADCAST, 3, "", 4, 4000, 4, 10**6, NOW_NS, second),
        Label(TAG, ALL_COMMS, 0, OTHERS, "", 1, 1, 0, 0, 0, 0),
    )
    card = card_of([own, own[:2]])
    rows = labels_of(card).rows
    assert [(one.kind, one.value) for one in rows] == [
        ("user_tag", "7"), ("user_tag", "42"), ("user_tag", ""), ("kernel", "LDMC"), ("root", "3"),
    ]  # fmt: skip
    assert (rows[1].processes, rows[1].operations, rows[1].busy_s) == (2, 2000, 10.0)
    text = " ".join(render_text(card).split())
    assert "tag 42 2 2000 2.00 GB 5.00 ms 5.00 s 11-14 22:13 11-14 22:13" in text
    assert "other tags 1 1 1 B - - - -" in text
    assert "kernel LDMC 1 10 1.00 MB - -" in text
    assert "root 3 of Broadcast, world 1 4 4.00 KB 250 us 1.00 ms" in text
    assert "LDMC" in render_html(card, NOON).partition("LABELS")[2]
    assert json.loads(to_json(card, NOON))["labels"]["rows"][0]["start"] == "2023-11-14T22:13:20Z"


def test_a_job_without_labels_has_no_such_section() -> None:
    card = card_of([(), ()])
    assert card.labels is None
    assert "LABELS" not in render_text(card)


def test_however_many_labels_processes_claim_the_report_is_bounded() -> None:
    def claimed(first: int) -> tuple[Label, ...]:
        return tuple(Label(TAG, ALL_COMMS, 0, first + n, "", 1, 1, 1, n, 1, 1) for n in range(64))

    card = card_of([claimed(1000 * place) for place in range(8)])
    found = labels_of(card)
    assert (len(found.rows), found.count) == (LABELS_MAX, 8 * 64)
    assert "and 504 labels more" in " ".join(render_text(card).split())
    assert describe_labels([]) is None
