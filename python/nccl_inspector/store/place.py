# SPDX-License-Identifier: Apache-2.0
"""Where an index is; this needs no database, so it is there on every host."""

import os
from dataclasses import dataclass
from pathlib import Path

from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import Config

INDEX = "index.db"
USERS = "users"


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where the index is. `cluster`: whose jobs are ours in a database; a file has no others."""

    store_dir: Path
    url: str = ""
    cluster: str = ""

    @property
    def file(self) -> Path:
        """The index of all jobs, if it is a file."""
        return self.store_dir / INDEX

    @property
    def is_there(self) -> bool:
        """Whether there is something to open; a database is always asked."""
        return bool(self.url) or self.file.exists()

    @property
    def is_ours_to_read(self) -> bool:
        """Whether the caller has something to read; a database is asked."""
        own = user_index(self.store_dir, os.getuid())
        return bool(self.url) or os.access(self.file, os.R_OK) or os.access(own, os.R_OK)

    def check_readable(self) -> None:
        """Raise an InspectorError if there is nothing that the caller may read.

        It needs no database, so what can do without an index need not load one for this answer.
        """
        self.check()
        if not self.is_ours_to_read:
            word = "none of your jobs is in the index yet" if self.file.exists() else "no index"
            raise InspectorError(f"{word}: {self.store_dir}")

    def check(self) -> None:
        """Raise an InspectorError if a database would not know which jobs are ours."""
        if self.url and not self.cluster:
            raise InspectorError(
                "store_url needs the setting cluster: the name that this cluster's jobs have there"
            )


def index_of(config: Config) -> IndexPlace:
    """Return the place of a site's index."""
    return IndexPlace(
        config.store_dir, config.store_url, config.cluster if config.store_url else ""
    )


def user_index(store_dir: Path, uid: int) -> Path:
    """Return the path of a user's own index, where the index is a file."""
    return store_dir / USERS / f"{uid}.db"
