# SPDX-License-Identifier: Apache-2.0
"""Objects in a store that speaks S3, or Google's or Azure's protocol, through the library obstore.

Only a site with `object_url` needs the library, so it is imported when a store is opened. An object
is written whole or not at all. A listing may lack what was written a moment ago.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlsplit

from nccl_inspector.errors import InspectorError

SCHEMES = ("s3", "gs", "az")
# What may follow the URL, by their names in obstore. Keys and secrets may not.
OPTIONS = ("endpoint", "region", "virtual_hosted_style_request")
KEYS_BYTES_MAX = 1 << 14
CHUNK_BYTES = 1 << 20
# Objects of one list: those of 100,000 jobs on 100 nodes.
LISTED_MAX = 10_000_000
# All tries together end before write_as_user.CHILD_S.
_CONNECT_S, _REQUEST_S, _RETRIES = 5, 25, 1
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?")
# The words of S3 and Azure if there is no such bucket; other things that are not found are objects.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_OF_KEYS = re.compile("(AWS|GOOGLE|AZURE)_.*(KEY|TOKEN|CREDENTIAL|ACCOUNT)")
_REFUSED = " 403 "  # HTTP's status in the text; not every kind of request has a class for it
_ANSWER = re.compile("<Code>([^<]{1,80})</Code>(?:<Message>([^<]{1,200})</Message>)?")
# The process that has the library's threads. They do not exist in its children, so a process that
# asks a store may not have children that do.
_used_by: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing. `version`: differs whenever the content does."""

    key: str
    size_bytes: int
    version: str
    written_s: float  # by the store's clock, Unix seconds


def _options(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without its options, and the options.

    Raises:
        InspectorError: it is no such URL, or it has a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise InspectorError("object_url must be like s3://bucket/prefix?endpoint=https://host")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown or "@" in parts.netloc:
        raise InspectorError(
            f"object_url may have the options {', '.join(OPTIONS)} and nothing else; "
            "keys belong into the file object_keys"
        )
    if "endpoint" in options and not _ENDPOINT.fullmatch(options["endpoint"]):
        raise InspectorError(
            "object_url: its endpoint must be like https://host or https://host:443"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", options


def read_keys(path: Path) -> dict[str, str]:
    """Return the lines `NAME=VALUE` of the file of keys; nothing if the caller may not read it.

    Raises:
        InspectorError: everybody may read it, or it has something else.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(KEYS_BYTES_MAX).decode("utf-8", "replace")
    except (FileNotFoundError, PermissionError):
        return {}
    except OSError as err:
        raise InspectorError(f"{path}: {err.strerror}") from err
    if mode & stat.S_IROTH:
        raise InspectorError(f"{path}: everybody may read these keys; give it the mode 0400")
    keys = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            name, equals, value = line.partition("=")
            if not equals or not re.fullmatch("[A-Z0-9_]+", name):
                raise InspectorError(f"{path}:{number}: not a line NAME=VALUE")
            keys[name] = value.strip().strip('"')
    return keys


def _plain(err: BaseException) -> str:
    """Return the store's own words from an error of obstore's, whose text has many lines."""
    text = str(err)
    if match := _ANSWER.search(text):
        return f"{match[1]}: {match[2]}" if match[2] else match[1]
    return text.partition("\n")[0].rpartition(" - ")[2][:200] or type(err).__name__


class ObjectStore:
    """An open store; no request is made before the first question."""

    def __init__(self, url: str, keys: Path) -> None:
        """Open the store at `url`, with the keys in a file and those in the environment.

        Raises:
            InspectorError: the URL or the file of keys is wrong, or the library is missing.
        """
        from obstore.store import from_url

        self.url, options = _options(url)
        config: Any = {**read_keys(keys), **options}
        client: Any = {
            "allow_http": options.get("endpoint", "").startswith("http://"),
            "connect_timeout": f"{_CONNECT_S}s", "timeout": f"{_REQUEST_S}s",
        }  # fmt: skip
        retry: Any = {"max_retries": _RETRIES}
        has_keys = any(map(_OF_KEYS.match, (*config, *os.environ)))
        self._hint = "" if has_keys else f" (no keys in the environment or in {keys})"
        try:
            self._store: Any = from_url(
                self.url, config=config, client_options=client, retry_config=retry
            )
        except Exception as err:  # obstore's own kinds, and also ValueError and TypeError
            raise InspectorError(f"object_url: {_plain(err)}") from err

    @contextmanager
    def _translated(self, where: str) -> Iterator[None]:
        """Turn obstore's errors into OSErrors that say where and why; 403 is a PermissionError."""
        from obstore.exceptions import BaseError

        if _used_by.setdefault("pid", os.getpid()) != os.getpid():
            raise RuntimeError("the library's threads are those of a process that forked this one")
        where = f"{self.url}/{where}"
        try:
            yield
        except FileNotFoundError as err:
            if any(word in str(err) for word in _NO_BUCKET):
                raise OSError(errno.EIO, _plain(err), where) from err
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from err
        except BaseException as err:
            if type(err).__name__ == "PanicException":  # no Exception: of a library in Rust
                raise OSError(errno.EIO, f"obstore: {_plain(err)}", where) from err
            if not isinstance(err, BaseError):
                raise
            why = errno.EACCES if _REFUSED in str(err) else errno.EIO
            raise OSError(why, _plain(err) + self._hint, where) from err

    def put(self, key: str, data: bytes) -> None:
        """Write an object. Raises OSError."""
        import obstore

        with self._translated(key):
            obstore.put(self._store, key, data, use_multipart=False)

    def list(self, folder: str, after: str | None = None) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with `folder/`, by key; `after`: from there on.

        Raises:
            OSError: the store does not answer, or refuses, or its list has no end: a key comes
                again, or there are more than LISTED_MAX.
        """
        import obstore

        with self._translated(folder):
            pages = obstore.list(self._store, prefix=folder, offset=after)
            last, where = after or "", f"{self.url}/{folder}"
            for listed, one in enumerate(chain.from_iterable(pages)):
                if listed == LISTED_MAX:
                    raise OSError(errno.EIO, "list of objects: too many objects", where)
                if one["path"] <= last:
                    raise OSError(errno.EIO, "list of objects: not in order of keys", where)
                last = one["path"]
                yield StoredObject(
                    one["path"], one["size"], one["e_tag"] or str(one["last_modified"]),
                    one["last_modified"].timestamp(),
                )  # fmt: skip

    def read_begin(self, one: StoredObject, most_bytes: int) -> bytes:
        """Return the first bytes of an object. Raises OSError."""
        import obstore

        length = min(one.size_bytes, most_bytes)
        with self._translated(one.key):
            return bytes(obstore.get_range(self._store, one.key, start=0, length=length))

    def fetch(self, key: str, file: BinaryIO, most_bytes: int) -> None:
        """Write the content of an object into a file.

        Raises:
            OSError: the store does not answer, or refuses, or sends more than this.
        """
        import obstore

        with self._translated(key):
            left = most_bytes
            for some in obstore.get(self._store, key).stream(min_chunk_size=CHUNK_BYTES):
                left -= len(some)
                if left < 0:
                    where = f"{self.url}/{key}"
                    raise OSError(errno.EFBIG, f"larger than {most_bytes >> 20} MiB", where)
                file.write(some)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is not there is no error. Raises OSError."""
        import obstore

        with self._translated(""):
            obstore.delete(self._store, keys)
