# SPDX-License-Identifier: Apache-2.0
"""A real server of PostgreSQL on a socket of its own, with a new database whenever one is wanted.

Anybody on the socket may log in under any name: who somebody is, the database's administrator
decides; what a name may see is what the tests look at.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

SERVICE = "nccl_inspector"
_ACCOUNT = "postgres"  # of Debian's package; the server refuses root
_SETTINGS = ("listen_addresses=", "max_connections=40", "shared_buffers=64MB")


def binaries() -> Path:
    """The folder of initdb and postgres, of the newest release that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[4]))
    if not found:
        raise FileNotFoundError("no PostgreSQL: make setup")
    return found[-1]


class Postgres:
    """The server, from outside."""

    def __init__(self, folder: Path, user: str | int, fsync: bool) -> None:
        self.folder, self._user, self._numbers = folder, user, count(1)
        self._settings = (*_SETTINGS, f"fsync={'on' if fsync else 'off'}")
        self._owners: set[str] = set()

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [binaries() / program, *words], check=True, capture_output=True, timeout=120,
            cwd="/", user=self._user,
        )  # fmt: skip

    def make(self) -> None:
        """Make the files of a server."""
        usual = "-A", "trust", "-U", "root", "--no-sync", "--no-locale"
        self._run("initdb", "-D", f"{self.folder}/data", "--encoding=UTF8", *usual)

    def start(self) -> None:
        """Start it, and return when it answers. It is no child of ours."""
        words = " ".join(f"-c {one}" for one in self._settings)
        self._control("start", "-l", f"{self.folder}/log", "-o", f"-k {self.folder} {words}")

    def stop(self) -> None:
        """End it and all sessions at once; a later `start` goes on."""
        self._control("stop", "-m", "immediate")

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", "-w", "-s", "-D", f"{self.folder}/data", *words)

    def url(self, database: str, user: str = SERVICE) -> str:
        """The setting store_url."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def connect(self, database: str, user: str, **words: Any) -> Connection:
        """Log in by a way of the test's own."""
        url = self.url(database, user).replace("postgresql:", "postgresql+psycopg:")
        return create_engine(url, poolclass=NullPool, **words).connect()

    def run_sql(self, database: str, *statements: str) -> None:
        """Run statements as the database's administrator."""
        with self.connect(database, "root", isolation_level="AUTOCOMMIT") as connection:
            for one in statements:
                connection.execute(text(one))

    def new_database(
        self, owner: str = SERVICE, tablespace: str = "pg_default", encoding: str = "UTF8"
    ) -> str:
        """Make an empty database that the service's account owns; return its name."""
        name = f"d{next(self._numbers)}"
        if owner not in self._owners:
            self.run_sql("postgres", f'CREATE ROLE "{owner}" LOGIN CREATEROLE')
            self._owners.add(owner)
        words = (
            f"""OWNER "{owner}" TABLESPACE {tablespace} TEMPLATE template0 ENCODING '{encoding}'"""
        )
        self.run_sql("postgres", f"CREATE DATABASE {name} {words}")
        return name


@contextmanager
def server(*, fsync: bool = False) -> Iterator[Postgres]:
    """Give a running server. `fsync`: it keeps what it has committed even if the power is cut."""
    with tempfile.TemporaryDirectory(
        prefix="nccl-inspector-pg-", dir="/var/tmp" if fsync else "/tmp"
    ) as name:
        folder = Path(name)
        folder.chmod(0o755)
        user: str | int = os.geteuid()
        if not user:
            shutil.chown(folder, user := _ACCOUNT)
        found = Postgres(folder, user, fsync)
        found.make()
        found.start()
        try:
            yield found
        finally:
            found.stop()
