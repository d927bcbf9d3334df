"""The cluster's accounting: a MariaDB without a port, and slurmdbd on it."""

import shutil
from pathlib import Path

from tests.sandbox.errors import ClusterError
from tests.sandbox.layout import HEAD, Layout
from tests.sandbox.machine import Machine


def start_mariadb(layout: Layout) -> None:
    """Start MariaDB, with a new database where there is none.

    Raises:
        ClusterError: the database cannot be made.
    """
    data, head = layout.root / "mariadb", Machine(layout, HEAD)
    # One that starts clears its directory of temporary files, also of those of others.
    own = ["--no-defaults", "--user=root", f"--datadir={data}", f"--tmpdir={layout.root}/run"]
    if not data.exists():
        done = head.run(["mariadb-install-db", *own, "--skip-test-db", "--skip-name-resolve"])
        if done.returncode != 0:
            raise ClusterError(f"mariadb-install-db: {done.stderr.strip() or done.stdout.strip()}")
    head.start(
        "mariadb",
        # What a crash of the machine would lose is lost with the cluster anyway.
        ["mariadbd", *own, "--skip-networking", f"--socket={_socket(layout)}",
         f"--pid-file={layout.root}/run/mariadb.pid", "--innodb-flush-log-at-trx-commit=0",
         "--skip-innodb-doublewrite", "--innodb-buffer-pool-size=32M",
         "--innodb-log-file-size=16M"],
    )  # fmt: skip


def start_slurmdbd(layout: Layout) -> None:
    """Start slurmdbd on a MariaDB that answers."""
    argv = ["env", f"MYSQL_UNIX_PORT={_socket(layout)}", *_client_library(layout), "slurmdbd", "-D"]
    Machine(layout, HEAD).start("slurmdbd", argv)


def _client_library(layout: Layout) -> list[str]:
    """With a newer libmariadb3 than the host's, slurmdbd ends at its first query."""
    own = next(Path("/usr/lib").glob("*-linux-gnu/libmariadb.so.3"), None)
    if layout.tree is None or own is None:
        return []
    place = layout.root / "lib"
    place.mkdir(exist_ok=True)
    shutil.copy(own, place)
    return [f"LD_LIBRARY_PATH={place}"]


def mariadb_answers(layout: Layout) -> bool:
    """Whether its socket is there: it is made when all else is ready."""
    return _socket(layout).exists()


def _socket(layout: Layout) -> Path:
    return layout.root / "run" / "mariadb.sock"
