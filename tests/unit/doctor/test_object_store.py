# SPDX-License-Identifier: Apache-2.0
"""Whether the service account can write into a site's object store, and what is not needed then."""

import os
import pwd
import shutil
from dataclasses import replace
from functools import partial

from nccl_inspector.doctor.bounded import gather
from nccl_inspector.doctor.checks_storage import CHECKS
from nccl_inspector.doctor.facts import NOT_READ, CannotTell, Facts
from nccl_inspector.doctor.read_storage import read_objects
from nccl_inspector.settings.config import Config, parse_config
from tests.support.doctor_facts import changed, healthy
from tests.support.object_store import ObjectSite

ACCOUNT = "nobody"


def read(config: Config) -> object:
    return gather({"": partial(read_objects, config)})[""]


def test_the_store_is_tried_as_the_account_that_writes_into_it(object_site: ObjectSite) -> None:
    shutil.chown(object_site.keys, ACCOUNT)
    site = object_site.settings(parse_config(f"report_user = {ACCOUNT}", "test"))
    assert read(site) == ""
    assert object_site.names("doctor") == []
    os.chown(object_site.keys, 0, pwd.getpwnam(ACCOUNT).pw_gid)
    refused = read(site)
    assert isinstance(refused, str)
    assert f"(no keys in the environment or in {object_site.keys})" in refused
    assert read(replace(site, object_url="")) is None
    nobody = read(replace(site, report_user="no-such-account"))
    assert nobody == CannotTell("there is no account no-such-account")


def test_a_node_with_an_object_store_needs_no_report_dir() -> None:
    there = changed(healthy(), "reports.file.problem", "No such file or directory")
    node = replace(there, controller=NOT_READ)
    with_store = changed(node, "settings.values.object_url", "s3://bucket")

    def found(facts: Facts) -> set[str]:
        ids = {"report-dir", "report-dir-mode", "report-dir-acl"}
        return {one.id for one in CHECKS if one.id in ids and one.judge(facts)}

    assert found(node) == {"report-dir"}
    assert found(with_store) == set()
    assert found(replace(with_store, controller=there.controller)) == {"report-dir"}
