# SPDX-License-Identifier: Apache-2.0
"""slurmctld calls nccl-inspector-mail: what a user who asked for mail gets."""

import email
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.policy import default
from pathlib import Path

import pytest

from nccl_inspector.render.json import to_json
from tests.sandbox import Cluster
from tests.support import example_cards
from tests.support.mail_site import Site
from tests.support.sandbox import jobs

pytestmark = pytest.mark.long


@pytest.fixture
def site(cluster: Cluster) -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="nccl-inspector-mail-", dir="/var/tmp"))
    made = Site(folder, wait="120s")
    mailprog = cluster.layout.root / "etc" / "mailprog"
    shutil.copy2(made.wrapper, mailprog)
    try:
        yield made
    finally:
        mailprog.unlink()
        shutil.rmtree(folder)


def test_the_mail_of_a_jobs_begin_is_slurms_and_that_of_its_end_has_the_report(
    cluster: Cluster, site: Site
) -> None:
    job_id = jobs.submit(
        cluster, "-N1", "--mail-type=BEGIN,END", "--mail-user=amy@example.org", script="true"
    )
    cluster.wait_for_job(job_id)
    site.mail("mailer")
    words = (site.folder / "mailer.args").read_text().split("\n")
    assert words[0] == "-s"
    assert words[1].startswith(f"Slurm Job_id={job_id} Name=")
    assert " Began" in words[1]
    assert words[2] == "amy@example.org"
    # The report comes when the job has long ended: slurmctld did not wait.
    site.report.write_text(to_json(example_cards.straggler(), datetime.now(UTC)))
    mail = email.message_from_bytes(site.mail("sendmail"), policy=default)
    assert mail["To"] == "amy@example.org"
    assert mail["Subject"].startswith(f"Slurm Job_id={job_id} Name=")
    assert " Ended, Run time " in mail["Subject"]
    assert mail["Subject"].endswith(", NCCL DEGRADED (straggler)")
