# SPDX-License-Identifier: Apache-2.0
"""Objects in a real store, and what is refused before it is asked."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from nccl_inspector.errors import InspectorError
from nccl_inspector.system.object_store import ObjectStore, read_keys
from tests.support.object_store import ObjectSite
from tests.support.repository import REPO


def test_an_object_is_written_listed_read_and_removed(object_site: ObjectSite) -> None:
    object_site.use(_writes_lists_reads_and_removes)
    assert object_site.names("summaries") == ["summaries/412/amy/n1"]


def _writes_lists_reads_and_removes(objects: ObjectStore) -> None:
    data = b"figures" * 500_000
    objects.put("summaries/41/amy/n1", data)
    objects.put("summaries/412/amy/n1", b"of another job")
    (listed,) = objects.list("summaries/41")
    assert (listed.key, listed.size_bytes) == ("summaries/41/amy/n1", len(data))
    assert [one.key for one in objects.list("summaries", after=listed.key)] == [
        "summaries/412/amy/n1"
    ]
    file = BytesIO()
    objects.fetch(listed.key, file, 4 << 20)
    assert file.getvalue() == data
    objects.put(listed.key, b"figures of a second try")
    assert next(objects.list("summaries/41")).version != listed.version
    objects.remove([listed.key, "summaries/41/amy/never"])
    assert list(objects.list("summaries/41")) == []


def test_what_the_store_says_is_one_line(object_site: ObjectSite, tmp_path: Path) -> None:
    def say(objects: ObjectStore) -> None:
        nothing = ObjectStore(object_site.url.replace("bucket", "nothing"), object_site.keys)
        with pytest.raises(OSError, match=r"NoSuchBucket: .* does not exist"):
            list(nothing.list("a"))
        with pytest.raises(OSError, match="NoSuchBucket"):
            nothing.put("a", b"a")
        with pytest.raises(FileNotFoundError):
            objects.fetch("summaries/1", BytesIO(), 1)
        os.environ.update(object_site.server.login("reader"))
        reader = ObjectStore(object_site.url, tmp_path / "none")
        assert list(reader.list("summaries")) == []
        with pytest.raises(PermissionError) as refused:
            reader.put("summaries/1/amy/n1", b"mine")
        assert refused.value.filename == f"s3://{object_site.bucket}/site/summaries/1/amy/n1"
        assert "\n" not in str(refused.value)
        gone = ObjectStore("s3://bucket/site?endpoint=http://127.0.0.1:9", object_site.keys)
        with pytest.raises(OSError, match="error sending request"):
            gone.put("a", b"a")

    object_site.use(say)


def test_a_child_of_a_process_that_asked_does_not_hang(object_site: ObjectSite) -> None:
    def ask_and_fork(objects: ObjectStore) -> None:
        list(objects.list("summaries"))
        with pytest.raises(InspectorError, match="the child process failed"):
            object_site.use(lambda inherited: list(inherited.list("summaries")))

    object_site.use(ask_and_fork)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/bucket",
        "s3://",
        "s3://key:secret@bucket",
        "s3://bucket?secret=word",
        "s3://bucket?endpoint=host",
        "s3://bucket?endpoint=http://host:99999999",
        "s3://[bucket",
    ],
)
def test_an_url_that_is_none_or_has_a_secret_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(InspectorError, match="object_url") as refused:
        ObjectStore(url, tmp_path / "none")
    assert "word" not in str(refused.value)


def test_keys_that_everybody_may_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert read_keys(path) == {}
    path.write_text('# of the site\nAWS_ACCESS_KEY_ID=key\nAWS_SECRET_ACCESS_KEY="a=b"\n\n')
    path.chmod(0o640)
    assert read_keys(path) == {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "a=b"}
    path.chmod(0o644)
    with pytest.raises(InspectorError, match="everybody may read these keys"):
        read_keys(path)
    path.chmod(0o600)
    path.write_text("the secret word\n")
    with pytest.raises(InspectorError, match=":1: not a line NAME=VALUE") as refused:
        read_keys(path)
    assert "secret" not in str(refused.value)


# A store that is not what it should be.


_PAGE = """<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><KeyCount>1</KeyCount>
<IsTruncated>true</IsTruncated><NextContinuationToken>t{at}</NextContinuationToken>
<Contents><Key>site/{folder}/{at:09}</Key><LastModified>2026-11-01T10:00:00.000Z</LastModified>
<ETag>"a"</ETag><Size>1</Size></Contents></ListBucketResult>"""


class _Lying(BaseHTTPRequestHandler):
    """Answers with an object of 64 GiB, with less than it says, or with a list without end."""

    def _list(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        at = int(asked.get("continuation-token", ["t0"])[0][1:]) + 1
        folder = asked["prefix"][0].strip("/").removeprefix("site/")
        page = _PAGE.format(at=1 + at % 2 if folder == "again" else at, folder=folder).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_GET(self) -> None:
        if "list-type" in self.path:
            self._list()
            return
        self.send_response(200)
        self.send_header("ETag", '"a"')
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 10:00:00 GMT")
        self.send_header("Content-Length", str(64 << 30))
        self.end_headers()
        with suppress(OSError):
            while not self.path.endswith("short"):
                self.wfile.write(b"x" * (1 << 20))
            self.wfile.write(b"x")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def lying_store() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Lying)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"s3://bucket/site?endpoint=http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _alone(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own: the library's threads would be those of all later tests."""
    return subprocess.run(
        ["prlimit", f"--as={8 << 30}", sys.executable, "-c", code, *words],
        env={"PYTHONPATH": str(REPO / "python"), "AWS_ACCESS_KEY_ID": "k",
             "AWS_SECRET_ACCESS_KEY": "s"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


_FETCH = """
import io, resource, sys
from pathlib import Path
from nccl_inspector.system.object_store import ObjectStore
objects, file = ObjectStore(sys.argv[1], Path("/none")), io.BytesIO()
try:
    objects.fetch(sys.argv[2], file, 8 << 20)
except OSError as err:
    print(f"{err.strerror}: {err.filename}")
print(len(file.getvalue()) <= 8 << 20)
"""


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("summaries/41/amy/n1", "larger than 8 MiB: s3://bucket/site/summaries/41/amy/n1"),
        ("summaries/41/amy/short", "s3://bucket/site/summaries/41/amy/short"),
    ],
)
def test_an_object_is_not_fetched_beyond_what_is_read_of_it(
    lying_store: str, key: str, words: str
) -> None:
    pytest.importorskip("obstore")
    done = _alone(_FETCH, lying_store, key)
    assert done.returncode == 0, done.stderr
    said, is_within = done.stdout.splitlines()
    assert words in said
    assert is_within == "True"


_LIST = """
import sys
from pathlib import Path
from nccl_inspector.system import object_store
object_store.LISTED_MAX = 1000
listed = 0
try:
    store = object_store.ObjectStore(sys.argv[1], Path("/none"))
    for listed, _ in enumerate(store.list(sys.argv[2]), 1):
        pass
except OSError as err:
    print(f"{err.strerror}: {err.filename}", listed)
"""


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("again", "list of objects: not in order of keys: s3://bucket/site/again 1"),
        ("more", "list of objects: too many objects: s3://bucket/site/more 1000"),
    ],
)
def test_a_list_of_objects_without_an_end_is_not_read_for_ever(
    lying_store: str, folder: str, words: str
) -> None:
    pytest.importorskip("obstore")
    done = _alone(_LIST, lying_store, folder)
    assert done.stdout.strip() == words, done.stderr
