# SPDX-License-Identifier: Apache-2.0
"""A large file in parts: each line is in exactly one, and what is read of it is the same."""

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from nccl_inspector.capture.capture_files import CaptureFile, find_files
from nccl_inspector.capture.file_parts import Part, bytes_of, parts_of, piped
from nccl_inspector.capture.reader import Notes, Reader, connect, parquet
from tests.support.json_lines import coll, marker, ours, p2p, text, traces, whole

BARE = [marker(3, 40, 10, "v4.3"), *({"coll_perf": coll(at)} for at in range(40)),
        *({"p2p_perf": p2p(at)} for at in range(10))]  # fmt: skip
CONTENTS = {
    "ours": text(ours(at, 0, 5_000, 1_000_000 + at) for at in range(200)),
    "with Sends": text(
        whole(0, p2p_perf=p2p(at)) if at % 3 else whole(0, coll_perf=coll(at)) for at in range(200)
    ),
    "verbose": text(
        whole(1, coll_perf=coll(at, event_trace_ts=traces("coll"))) for at in range(60)
    ),
    "lines without a header": text(BARE),
    "torn": text(whole(0, coll_perf=coll(at)) for at in range(50))[:-20],
    "empty lines": b"\n\n" + b"\n\n".join(text([whole(0, coll_perf=coll(at))]) for at in range(40)),
    "a line that is too long": text([whole(0, coll_perf=coll(0))]) + b"x" * (600 << 10) + b"\n"
    + text(whole(0, coll_perf=coll(at)) for at in range(1, 40)),
    "no record at all": b"hello\n" * 500,
    "no line end": b"x" * 3000,
}  # fmt: skip


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def _all_of(pipe: int) -> bytes:
    return b"".join(iter(lambda: os.read(pipe, 1 << 16), b""))


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_every_byte_is_in_one_part_and_every_part_begins_with_a_line(
    tmp_path: Path, content: bytes
) -> None:
    path, chance = tmp_path / "file", random.Random(3)  # noqa: S311
    path.write_bytes(content)
    size = len(content)
    starts = {0, size, *(at + 1 for at, one in enumerate(content) if one == ord("\n"))}
    with opened(path) as fd:
        for _ in range(50):
            at = 0
            for part in parts_of(size, chance.randrange(max(1, size // 40), size + 2)):
                begin, end = bytes_of(fd, part, size)
                assert begin in starts
                if begin < end:
                    assert begin == at
                    at = end
                    with piped(fd, begin, end) as pipe:
                        assert _all_of(pipe) == content[begin:end]
            assert at == size


def test_a_reader_that_takes_no_more_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4 << 20))
    with opened(path) as fd, piped(fd, 0, 4 << 20) as pipe:
        assert os.read(pipe, 10) == bytes(10)


@pytest.mark.parametrize("fault", [OSError(errno.EIO, "broken"), 0])
def test_bytes_that_cannot_be_read_are_an_error_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: object
) -> None:
    def splice(*_words: object, **_more: object) -> object:
        if isinstance(fault, OSError):
            raise fault
        return fault

    path = tmp_path / "a.log"
    path.write_bytes(CONTENTS["ours"])
    files = find_files(tmp_path, Notes().refused)
    monkeypatch.setattr(os, "splice", splice)
    with pytest.raises(OSError, match=r"broken|shorter"), opened(path) as fd, piped(fd, 0, 9):
        pass
    parts = parts_of(len(CONTENTS["ours"]), 20_000)
    rows, refused, *_ = read(tmp_path, files, parts)
    assert (rows, refused) == ([], {"file_unreadable": 1})


def read(
    folder: Path, files: Sequence[CaptureFile], parts: Sequence[Part] = ()
) -> tuple[object, ...]:
    """All rows in their order, and all notes."""
    work = folder / f"work{len(parts)}"
    work.mkdir(exist_ok=True)
    with closing(connect(work)) as sql:
        reader = Reader(sql, folder, work, everything=False)
        for part in parts:
            reader.read_part(files[0], 0, part)
        if not parts:
            reader.read(files, [0])
        notes: Notes = reader.notes
        refused = dict(+notes.refused + Counter(file_unreadable=len(notes.unreadable)))
        found = sql.sql(f"from {parquet(notes.parts[0])}") if notes.parts else None
        rows = found.order("all").fetchall() if found is not None else []
    return rows, refused, dict(notes.unknown), notes.metadata


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("count", [2, 7])
def test_parts_say_what_the_whole_file_says(tmp_path: Path, content: bytes, count: int) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(content)
    files = find_files(tmp_path, Notes().refused)
    parts = parts_of(len(content), -(-len(content) // count))
    assert len(parts) == count
    assert read(tmp_path, files, parts) == read(tmp_path, files)
