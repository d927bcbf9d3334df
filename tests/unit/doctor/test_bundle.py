# SPDX-License-Identifier: Apache-2.0
"""The archive has what helps, and no name of a user or a job."""

import json
import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_inspector.agent.kill_switch import Disabled
from nccl_inspector.doctor.bundle import FOLDER, bundle_files, redact, write_bundle
from nccl_inspector.doctor.check import Role, run_check
from nccl_inspector.doctor.examine import Examination
from nccl_inspector.doctor.facts import Facts
from nccl_inspector.doctor.registry import CHECKS
from nccl_inspector.errors import InspectorError
from nccl_inspector.settings.config import parse_config
from tests.support.doctor_facts import changed, environment, healthy

CONF = "report_group = staff-of-alice\nreport_dir = /home/alice/reports\nsample = 4\n"


def examined(facts: Facts) -> Examination:
    return Examination((Role.NODE,), facts, tuple(run_check(one, facts) for one in CHECKS))


def with_names() -> Facts:
    """Faults whose evidence names a user, a program or a reason."""
    facts = healthy()
    settings = replace(facts.settings, values=parse_config(CONF, "test"))
    facts = changed(facts, "settings", settings)
    facts = changed(facts, "agent.status.disabled", Disabled(1, "alice asked for it"))
    own = environment(NCCL_PROFILER_PLUGIN="/home/alice/secret-project.so")
    facts = changed(facts, "job.processes.0.environ", own)
    denial = 'avc: denied { read } for pid=7 comm="secret-project" name="alice" auid=1000'
    named: Facts = changed(facts, "security.denials", (denial,))
    return named


def test_nothing_in_it_names_a_user_or_what_a_user_named() -> None:
    files = bundle_files(examined(with_names()))
    text = "\n".join(files.values())
    assert "alice" not in text
    assert "secret-project" not in text
    assert "staff-of" not in text


def test_names_of_accounts_are_replaced_wherever_they_stand() -> None:
    people = frozenset({"bob"})
    assert redact("bob and bobby; user=bob", people) == "USER and bobby; user=USER"
    assert redact("/home/x/y and /users/z/a, uid 1000", people) == (
        "/home/USER and /users/USER, uid N"
    )


def test_it_has_the_checks_the_versions_and_our_settings() -> None:
    files = bundle_files(examined(with_names()))
    assert set(files) == {
        "README.txt", "doctor.json", "versions.json", "settings.json", "units.json"
    }  # fmt: skip
    checks = {one["id"]: one["outcome"] for one in json.loads(files["doctor.json"])["checks"]}
    assert checks["disabled"] == "found"
    assert checks["clock"] == "well"
    assert json.loads(files["versions.json"])["slurm"]["slurmd"] == [24, 11]
    settings = json.loads(files["settings.json"])
    assert settings["sample"] == "4"
    assert settings["report_group"] == "(set)"
    assert "interval" not in settings, "it has its default"


def test_the_text_says_what_is_in_it() -> None:
    files = bundle_files(examined(healthy()))
    assert all(name in files["README.txt"] for name in files if name != "README.txt")


def test_the_archive_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    write_bundle(path, {"README.txt": "hello\n"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        (member,) = archive.getmembers()
        assert (member.name, member.uid, member.uname) == (f"{FOLDER}/README.txt", 0, "")


def test_it_overwrites_nothing_and_follows_no_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = tmp_path / "b.tar.gz"
    link.symlink_to(target)
    with pytest.raises(InspectorError, match="File exists"):
        write_bundle(link, {"README.txt": "x"})
    assert not target.exists()
    with pytest.raises(InspectorError, match="No such file"):
        write_bundle(tmp_path / "none" / "b", {})
    assert os.listdir(tmp_path) == ["b.tar.gz"]  # noqa: PTH208 - a link


@pytest.mark.parametrize("text", [
    "postgresql://u@db/x?sslmode=verify-full&sslpassword=GEHEIM",
    "postgresql://someone:GEHEIM@db/x",
    "postgresql://db/x?password=GEHEIM&application_name=y",
    "s3://bucket/x?secret_access_key=GEHEIM&aws_session_token=GEHEIM",
    "host=db sslpassword=GEHEIM dbname=x",
    "store_url: it runs with postgresql://db/GEHEIM, configured is postgresql://db/GEHEIM",
])  # fmt: skip
def test_no_secret_of_a_url_is_carried(text: str) -> None:
    assert "GEHEIM" not in redact(text, frozenset())


def test_of_the_urls_of_stores_only_the_kind_is_carried() -> None:
    url = "postgresql://db/x?sslpassword=GEHEIM&sslkey=/etc/GEHEIM.key"
    facts = healthy()
    values = replace(facts.settings.values, store_url=url, object_url="s3://b/GEHEIM")
    files = bundle_files(examined(replace(facts, settings=replace(facts.settings, values=values))))
    found = json.loads(files["settings.json"])
    assert (found["store_url"], found["object_url"]) == ("postgresql://(set)", "s3://(set)")
    assert "GEHEIM" not in "".join(files.values())
