# SPDX-License-Identifier: Apache-2.0
"""A real Slurm whose hosts share an object store: the nodes write there, users read there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox import JOB_USER
from tests.sandbox.config import product_conf
from tests.sandbox.layout import NODES, OTHER_USER, REPORT_USER
from tests.sandbox.machine import as_user
from tests.support.command_line import COMMAND
from tests.support.object_store import ObjectSite
from tests.support.sandbox.controller_site import ENV, Service, controlled
from tests.support.sandbox.small_jobs import TWO_NODES, run

pytestmark = pytest.mark.long


@pytest.fixture
def service(cluster_dir: Path, object_site: ObjectSite) -> Iterator[Service]:
    """A cluster whose agents and service have the keys to a bucket."""
    shutil.chown(object_site.keys, REPORT_USER)
    settings = {"object_url": object_site.url, "object_keys": str(object_site.keys)}
    with controlled(cluster_dir.parent) as found:
        found.settings |= settings
        found.conf.write_text(product_conf(found.cluster.layout, found.settings))
        found.cluster.set_conf(**settings)
        for name in NODES:
            found.cluster.node(name).restart_agent()
        found.start()
        yield found
        if found.process:
            found.stop()


def test_summaries_and_reports_are_in_the_store_and_its_users_read_them(
    service: Service, object_site: ObjectSite
) -> None:
    job_id, _ = run(service.cluster, *TWO_NODES)
    card = service.wait_stored(job_id)
    assert card.job.num_nodes == 2
    assert object_site.names("summaries") == [
        f"summaries/{job_id}/{JOB_USER}/{node}.0.nodesummary" for node in ("n1", "n2")
    ]
    assert object_site.names("reports") == [
        f"reports/{job_id}/{JOB_USER}/0.{kind}" for kind in ("html", "json")
    ]

    def said(user: str, **login: str) -> tuple[int, str]:
        words = ("report", str(job_id), "--conf", str(service.conf))
        done = service.cluster.head.run([*as_user(user), *COMMAND, *words], env=ENV | login)
        return done.returncode, done.stdout + done.stderr

    status, text = said(JOB_USER, **object_site.server.login("reader"))
    assert status in (0, 3), text
    assert f"job {job_id}, " in text
    assert f"user {JOB_USER}, " in text
    assert "4 of 4 ranks" in text
    status, text = said(OTHER_USER)
    assert (status, text.count("\n")) == (3, 1)
    assert f"s3://{object_site.bucket}/site/" in text
    assert "no keys in the environment" in text
