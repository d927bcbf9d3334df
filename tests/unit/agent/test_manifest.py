# SPDX-License-Identifier: Apache-2.0
from contextlib import suppress

import pytest

from nccl_inspector.agent.manifest import parse_manifest
from nccl_inspector.errors import RefusedError
from tests.support.boxes import JOB_UID, fixed_chance, manifest_text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "torn_manifest"),
        (manifest_text()[:-1], "torn_manifest"),
        (manifest_text()[:-4], "torn_manifest"),
        (manifest_text()[:50], "torn_manifest"),
        (manifest_text().replace("uid=", "uidd="), "bad_manifest"),
        (manifest_text(uid="0x1"), "bad_manifest"),
        (manifest_text(uid=""), "bad_manifest"),
        (manifest_text(restart="-1"), "bad_manifest"),
        (manifest_text(format=2), "bad_manifest"),
        (manifest_text(node="../../etc"), "bad_manifest"),
        (manifest_text(node=""), "bad_manifest"),
        ("uid=0\n" + manifest_text(), "bad_manifest"),
        ("nonsense\n" + manifest_text(), "bad_manifest"),
    ],
)
def test_what_is_not_a_whole_manifest_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_manifest(text.encode())
    assert caught.value.reason == reason


def test_every_cut_of_a_manifest_is_torn() -> None:
    data = manifest_text().encode()
    for end in range(len(data)):
        with pytest.raises(RefusedError):
            parse_manifest(data[:end])


def test_random_bytes_never_raise_anything_else() -> None:
    chance = fixed_chance(1)
    for _ in range(300):
        data = bytearray(manifest_text().encode())
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(RefusedError):
            parse_manifest(bytes(data))


def test_a_manifest_of_a_later_release_may_say_more() -> None:
    manifest = parse_manifest(("colour=red\n" + manifest_text()).encode())
    assert (manifest.job_id, manifest.uid, manifest.nodelist) == (42, JOB_UID, "n[1-4]")


def test_a_manifest_of_an_earlier_or_later_prolog_is_read_with_and_without_the_boot() -> None:
    with_boot = manifest_text()
    without = "".join(
        line for line in with_boot.splitlines(True) if not line.startswith("boot_id=")
    )
    assert without != with_boot
    assert parse_manifest(without.encode()) == parse_manifest(with_boot.encode())


def test_numbers_that_slurmd_did_not_say_are_zero() -> None:
    assert parse_manifest(manifest_text(num_nodes="", restart="").encode()).restart == 0
