# SPDX-License-Identifier: Apache-2.0
"""`make repo`: apt installs from the directory, and trusts it only with the site's key."""

import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import packages
from tests.support.packages import NAME
from tests.support.repository import REPO

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
KEY = "site@example.org"


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment in which gpg has the site's key, without a passphrase."""
    home = tmp_path_factory.mktemp("gnupg")
    home.chmod(0o700)
    env = {**os.environ, "GNUPGHOME": str(home), "LC_ALL": "C"}
    words = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", KEY]
    subprocess.run(words, env=env, check=True, capture_output=True)
    yield env
    subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=env, check=True)


def make_repository(
    built: Path, place: Path, env: dict[str, str], key: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--silent", "repo", f"PACKAGES_OUT={built}", f"REPOSITORY={place}",
         f"REPOSITORY_KEY={key}"],
        cwd=REPO, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two packages that need nothing compiled, of both kinds."""
    place = tmp_path_factory.mktemp("built")
    for kind in ("deb", "rpm"):
        packages.build(kind, place, suffixes=("node", "monitoring"))
    return place


def apt(place: Path, repository: Path, *words: str, trust: str = "") -> str:
    """Run apt with this repository alone and a state of its own; return all that it prints."""
    folders = "sources.list.d", "preferences.d", "trusted.gpg.d", "apt.conf.d"
    others = "var/lib/dpkg", "var/lib/apt/lists/partial", "cache"
    for folder in (*(f"etc/apt/{one}" for one in folders), *others):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "var/lib/dpkg/status").touch()
    (place / "etc/apt/sources.list").write_text(f"deb [{trust}] copy:{repository}/deb ./\n")
    options = {
        "Dir": place, "Dir::State::status": place / "var/lib/dpkg/status",
        "Dir::Etc": place / "etc/apt", "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "root", "APT::Architecture": "amd64",
    }  # fmt: skip
    done = subprocess.run(
        ["apt-get", *(f"-o{name}={value}" for name, value in options.items()), *words],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_apt_takes_the_package_from_a_signed_repository_and_from_no_other(
    built: Path, keyring: dict[str, str], tmp_path: Path
) -> None:
    signed, bare = tmp_path / "signed", tmp_path / "bare"
    for place, key in ((signed, KEY), (bare, "")):
        done = make_repository(built, place, keyring, key)
        assert done.stdout.split() == [f"{place}/deb", f"{place}/rpm"], done.stderr
    trust = f"signed-by={signed}/deb/slurm-nccl-inspector.gpg"
    said = apt(tmp_path / "a", signed, "update", trust=trust)
    assert not [line for line in said.splitlines() if line.startswith(("W:", "E:"))], said
    said = apt(tmp_path / "a", signed, "install", "--simulate", f"{NAME}-monitoring", trust=trust)
    assert f"Inst {NAME}-monitoring" in said
    assert "not signed" in apt(tmp_path / "b", bare, "update", trust=trust)
    # Somebody has changed the list.
    with (signed / "deb/Packages").open("a") as file:
        file.write("\n")
    (signed / "deb/Packages.gz").unlink()
    assert "E:" in apt(tmp_path / "c", signed, "update", trust=trust)


def test_older_releases_stay_and_an_old_signature_does_not(
    built: Path, keyring: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "repository"
    assert make_repository(built, place, keyring, KEY).returncode == 0
    packages.build("deb", newer := tmp_path / "newer", "VERSION=9.9", suffixes=("monitoring",))
    assert make_repository(newer, place, keyring).returncode == 0
    listed = (place / "deb/Packages").read_text()
    assert listed.count(f"Package: {NAME}-monitoring\n") == 2
    assert not (place / "deb/InRelease").exists()


def test_dnfs_list_has_the_packages_and_the_key_signs_them(
    built: Path, keyring: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "repository"
    assert make_repository(built, place, keyring, KEY).returncode == 0
    index = place / "rpm/repodata/repomd.xml"
    tree = ET.parse(index)  # noqa: S314 - written a moment ago
    kinds = {one.get("type") for one in tree.iter() if one.tag.endswith("}data")}
    assert {"primary", "filelists"} <= kinds
    verify = ["gpg", "--verify", f"{index}.asc", str(index)]
    subprocess.run(verify, env=keyring, check=True, capture_output=True)
    database = f"--dbpath={tmp_path}/rpmdb"
    for words in (("--import", f"{place}/rpm/slurm-nccl-inspector.asc"), ("--checksig",)):
        files = [*map(str, (place / "rpm").glob("*.rpm"))] if len(words) == 1 else []
        done = subprocess.run(
            ["rpmkeys", database, *words, *files], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("digests signatures OK") == 2


def test_without_packages_it_says_what_to_do(tmp_path: Path, keyring: dict[str, str]) -> None:
    done = make_repository(tmp_path, tmp_path / "r", keyring)
    assert done.returncode != 0
    assert "run make deb or make rpm first" in done.stderr
