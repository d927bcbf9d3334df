# SPDX-License-Identifier: Apache-2.0
"""A real object store on loopback: OpenStack Swift of Debian, which speaks S3 (s3api).

One device, one replica. tempauth knows two logins: `writer`, who administers the account, and
`reader`, who may do what the container's access list says.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from nccl_inspector.controller.children import Children
from nccl_inspector.settings.config import Config
from nccl_inspector.system.object_store import ObjectStore
from tests.sandbox.lifetime import wait_until

_ACCOUNT = "swift"  # of Debian's package
_SECRET = "secret"  # noqa: S105 - of a server on loopback
_PIPELINE = (
    "catch_errors proxy-logging cache listing_formats s3api tempauth proxy-logging proxy-server"
)
_STORAGE = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
log_name = {kind}
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
# The limit: the proxy would leave a storage server alone for a minute that it asked too early.
_PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
[pipeline:main]
pipeline = {pipeline}
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:proxy-logging]
use = egg:swift#proxy_logging
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memory}
connect_timeout = 10
io_timeout = 30
pool_timeout = 30
error_suppression_limit = 1000000
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:s3api]
use = egg:swift#s3api
allow_no_owner = true
[filter:tempauth]
use = egg:swift#tempauth
user_site_writer = {secret} .admin
user_site_reader = {secret}
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
error_suppression_limit = 1000000
conn_timeout = 10
node_timeout = 30
recoverable_node_timeout = 30
allow_account_management = true
"""


@dataclass(frozen=True)
class ObjectServer:
    """The server, from outside."""

    endpoint: str

    def login(self, name: str = "writer") -> dict[str, str]:
        """What the environment of somebody has who may log in."""
        return {"AWS_ACCESS_KEY_ID": f"site:{name}", "AWS_SECRET_ACCESS_KEY": _SECRET}

    def make_bucket(self, name: str, readers: str = "") -> None:
        """Make a bucket; `readers`: logins that may list and read it."""
        self.ask("PUT", name, {"X-Container-Read": readers} if readers else {})

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, data: bytes = b""
    ) -> bytes:
        """Ask the server by Swift's own protocol, as `writer`."""
        begin = urllib.request.Request(  # noqa: S310 - loopback
            f"{self.endpoint}/auth/v1.0",
            headers={"X-Auth-User": "site:writer", "X-Auth-Key": _SECRET},
        )
        with urllib.request.urlopen(begin, timeout=30) as answer:  # noqa: S310
            token = answer.headers["X-Auth-Token"]
        asked = urllib.request.Request(  # noqa: S310
            f"{self.endpoint}/v1/AUTH_site/{path}", method=method, data=data or None,
            headers={**(headers or {}), "X-Auth-Token": token},
        )  # fmt: skip
        with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310
            return bytes(answer.read())

    @property
    def is_ready(self) -> bool:
        try:
            self.make_bucket("first")
        except (urllib.error.URLError, OSError):
            return False
        return True


_numbers = count(1)
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class ObjectSite:
    """A bucket, and the file with the keys of who may write into it."""

    server: ObjectServer
    bucket: str
    keys: Path

    @property
    def url(self) -> str:
        """The setting object_url."""
        return f"s3://{self.bucket}/site?endpoint={self.server.endpoint}"

    @property
    def lines(self) -> str:
        """Lines of nccl-inspector.conf."""
        return f"object_url = {self.url}\nobject_keys = {self.keys}\n"

    def settings(self, config: Config) -> Config:
        return replace(config, object_url=self.url, object_keys=self.keys)

    def put(self, key: str, data: bytes) -> None:
        """Write an object by Swift's own protocol."""
        self.server.ask("PUT", f"{self.bucket}/site/{key}", data=data)

    def names(self, folder: str) -> list[str]:
        """All keys below a folder, by Swift's own protocol."""
        said = self.server.ask("GET", f"{self.bucket}?prefix=site/{folder}/").decode()
        return [line.removeprefix("site/") for line in said.splitlines()]

    def use(self, work: Callable[[ObjectStore], Answer]) -> Answer:
        """What `work` answers in a child: the library works once in a process and its children."""
        return Children().ask(lambda: work(ObjectStore(self.url, self.keys)), "uses the store")


def make_site(server: ObjectServer, folder: Path) -> ObjectSite:
    """Make an empty bucket that `reader` may list and read; the keys are for `writer`."""
    bucket, keys = f"bucket-{next(_numbers)}", folder / "object-store.env"
    server.make_bucket(bucket, "site:reader")
    keys.write_text("".join(f"{name}={word}\n" for name, word in server.login().items()))
    keys.chmod(0o400)
    return ObjectSite(server, bucket, keys)


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _make_ring(folder: Path, kind: str, port: int) -> None:
    builder = str(folder / f"{kind}.builder")
    for words in (
        ("create", "4", "1", "0"),
        ("add", f"r1z1-127.0.0.1:{port}/d1", "1"),
        ("rebalance",),
    ):
        subprocess.run(["swift-ring-builder", builder, *words], check=True, capture_output=True)


@contextmanager
def object_server() -> Iterator[ObjectServer]:
    """Give a running server without buckets; only root can start it."""
    kinds = ("account", "container", "object", "proxy")
    # Swift keeps what it knows of an object in extended attributes, which a tmpfs may not have.
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-swift-", dir="/var/tmp") as name:
        folder = Path(name)
        (folder / "devices/d1").mkdir(parents=True)
        shutil.copy("/etc/swift/swift.conf", folder)
        memory, *ports = _free_ports(1 + len(kinds))
        for kind, port in zip(kinds, ports, strict=True):
            words = {"port": port, "user": _ACCOUNT, "folder": folder, "kind": kind}
            if kind == "proxy":
                made = _PROXY.format(**words, pipeline=_PIPELINE, secret=_SECRET, memory=memory)
            else:
                made = _STORAGE.format(**words)
                _make_ring(folder, kind, port)
            (folder / f"{kind}.conf").write_text(made)
        for path in (folder, *folder.rglob("*")):
            shutil.chown(path, _ACCOUNT, _ACCOUNT)
        folder.chmod(0o755)
        commands = [[f"swift-{kind}-server", str(folder / f"{kind}.conf")] for kind in kinds]
        # memcached keeps the tokens of logins.
        commands.append(["memcached", "-u", _ACCOUNT, "-l", "127.0.0.1", "-p", str(memory)])
        servers = [
            subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": ""},
            )
            for words in commands
        ]  # fmt: skip
        try:
            found = ObjectServer(f"http://127.0.0.1:{ports[-1]}")
            wait_until(lambda: found.is_ready, 60, "Swift answers")
            yield found
        finally:
            for one in servers:
                one.terminate()
            for one in servers:
                one.wait(30)
