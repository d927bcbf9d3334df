# SPDX-License-Identifier: Apache-2.0
"""The index in PostgreSQL on a real Slurm: who sees what, and what happens while it is down."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nccl_inspector.settings.config import read_config
from nccl_inspector.store.place import index_of
from nccl_inspector.store.postgresql import ADMINS
from nccl_inspector.store.queries import JobFilter
from tests.sandbox import JOB_USER, wait_until
from tests.sandbox.config import product_conf
from tests.sandbox.layout import OTHER_USER, REPORT_USER
from tests.support.postgres import Postgres
from tests.support.sandbox.controller_site import Service, controlled
from tests.support.sandbox.small_jobs import ONE_NODE, run
from tests.support.stored_cards import ids

pytestmark = pytest.mark.long


@pytest.fixture
def service(cluster_dir: Path, postgres: Postgres) -> Iterator[Service]:
    """A cluster whose service keeps its index in a database in which everybody has a login."""
    database = postgres.new_database(owner=REPORT_USER)
    for name in (JOB_USER, OTHER_USER):
        postgres.run_sql(database, f'CREATE ROLE "{name}" LOGIN')
    with controlled(cluster_dir.parent) as found:
        found.settings |= {
            "store_url": f"postgresql:///{database}?host={postgres.folder}", "cluster": "west",
        }  # fmt: skip
        found.conf.write_text(product_conf(found.cluster.layout, found.settings))
        found.start()
        yield found
        if found.process:
            found.stop()


def history(service: Service, user: str) -> list[int]:
    done = service.command(user, "history", "--json")
    assert not done.stderr, done.stderr
    jobs = json.loads(done.stdout)["jobs"]
    assert {job["cluster"] for job in jobs} <= {"west"}
    return [job["job_id"] for job in jobs]


def test_reports_are_found_by_their_user_and_admins_and_wait_for_no_database(
    service: Service, postgres: Postgres
) -> None:
    first, _ = run(service.cluster, *ONE_NODE)
    service.wait_stored(first)
    place = index_of(read_config(service.conf))  # root may log in, too, and sees all
    wait_until(lambda: ids(place, JobFilter()) == [first], 20, "the first is in the index")
    assert history(service, JOB_USER) == [first]
    assert history(service, OTHER_USER) == []
    postgres.stop()
    try:
        second, _ = run(service.cluster, *ONE_NODE)
        service.wait_stored(second)
        service.wait_empty()
        done = service.command(JOB_USER, "history")
        assert done.returncode == 1
        assert "cannot be used now: connection to server" in done.stderr
        assert done.stderr.count("\n") == 1
    finally:
        postgres.start()
    wait_until(lambda: ids(place, JobFilter()) == [second, first], 90, "the second follows")
    postgres.run_sql("postgres", f'GRANT {ADMINS} TO "{OTHER_USER}"')
    assert history(service, OTHER_USER) == [second, first]
    assert "entered into the index later" in service.stop()
