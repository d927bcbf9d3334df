# SPDX-License-Identifier: Apache-2.0
"""Which service works is decided by the database's clock, also if that is set."""

from sqlalchemy import text

from nccl_inspector.store.lease_row import give_lease, take_lease
from tests.sandbox.lifetime import wait_until
from tests.support.postgres import SERVICE, Postgres

LEASE_S = 0.5


def move_clock(postgres: Postgres, database: str, seconds: int) -> None:
    """Set the database's clock ahead, by setting what it has noted back."""
    with postgres.connect(database, SERVICE) as index, index.begin():
        words = "UPDATE leases SET until_at = until_at - make_interval(secs => :seconds)"
        index.execute(text(words), {"seconds": seconds})


def test_a_holder_that_died_before_the_clock_was_set_back_is_followed(postgres: Postgres) -> None:
    database = postgres.new_database()
    url = postgres.url(database)
    assert take_lease(url, "a", "first", LEASE_S) == "first"
    move_clock(postgres, database, -3600)
    assert take_lease(url, "a", "second", LEASE_S) == "first", "it may live, and has a whole lease"
    wait_until(lambda: take_lease(url, "a", "second", LEASE_S) == "second", 30, "it is followed")


def test_a_holder_that_lives_keeps_the_lease_when_the_clock_is_set_back(
    postgres: Postgres,
) -> None:
    database = postgres.new_database()
    url = postgres.url(database)
    take_lease(url, "a", "first", 60)
    move_clock(postgres, database, -3600)
    assert take_lease(url, "a", "second", 60) == "first"
    assert take_lease(url, "a", "first", 60) == "first"
    assert take_lease(url, "a", "second", 60) == "first"
    give_lease(url, "a", "first")
    assert take_lease(url, "a", "second", 60) == "second"


def test_when_the_clock_is_set_ahead_the_holder_sees_at_its_next_renewal_who_follows(
    postgres: Postgres,
) -> None:
    database = postgres.new_database()
    url = postgres.url(database)
    take_lease(url, "a", "first", 60)
    move_clock(postgres, database, 3600)
    assert take_lease(url, "a", "second", 60) == "second"
    assert take_lease(url, "a", "first", 60) == "second"
