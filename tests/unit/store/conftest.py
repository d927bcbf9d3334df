# SPDX-License-Identifier: Apache-2.0
"""An index in each engine: the same tests for both."""

from pathlib import Path

import pytest

from nccl_inspector.store.place import IndexPlace
from tests.support.postgres import Postgres
from tests.support.stored_cards import store_in


@pytest.fixture(params=["sqlite", "postgresql"])
def index_place(request: pytest.FixtureRequest, open_path: Path) -> IndexPlace:
    """A place for an index that does not exist yet."""
    if request.param == "sqlite":
        return store_in(open_path)
    postgres: Postgres = request.getfixturevalue("postgres")
    return store_in(open_path, postgres.url(postgres.new_database()))
