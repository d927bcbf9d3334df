# SPDX-License-Identifier: Apache-2.0
"""An unpacked image, with what keeps its processes from being measured."""

import os
from pathlib import Path

import pytest

from nccl_inspector.doctor import read_image
from nccl_inspector.doctor.check import Outcome
from nccl_inspector.doctor.examine import Examination, examine_image
from nccl_inspector.doctor.facts import Settings
from nccl_inspector.settings.config import parse_config
from nccl_inspector.system.tree import Tree
from tests.support.repository import BUILD

LIBS = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with this host's C library and an NCCL that can be measured."""
    root = tmp_path / "image"
    (root / LIBS).mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "environment").write_text("LANG=C\nNCCL_DEBUG=INFO\n")
    (root / "lib").symlink_to("/usr/lib")
    libc = next(Path("/lib").glob("*-linux-gnu/libc.so.6"))
    (root / LIBS / "libc.so.6").write_bytes(libc.read_bytes())
    (root / LIBS / "libz.so.1").write_bytes(b"x")
    (root / LIBS / "libnccl.so.2.28.3").write_bytes(b"x" * 10)
    (root / LIBS / "libnccl.so.2").symlink_to("libnccl.so.2.28.3")
    return root


def examine(image: Path, conf: str = "") -> Examination:
    text = f"profiler = {BUILD}/libnccl-profiler-inspector.so\n{conf}"
    return examine_image(Settings(image, "", parse_config(text, "test")), image)


def found(image: Path, conf: str = "") -> dict[str, str]:
    results = examine(image, conf).results
    assert not [one for one in results if one.outcome is Outcome.CANNOT_TELL]
    return {one.check.id: one.evidence for one in results if one.outcome is Outcome.FOUND}


def test_an_image_that_can_be_measured_is_well(image: Path) -> None:
    assert found(image) == {}


def test_the_variable_of_an_image_is_found_with_its_file(image: Path) -> None:
    (image / ".singularity.d" / "env").mkdir(parents=True)
    line = "export NCCL_PROFILER_PLUGIN=/opt/x.so"
    (image / ".singularity.d" / "env" / "90-environment.sh").write_text(f"# NCCL\n{line}\n")
    assert found(image) == {"image-sets-profiler": f"/.singularity.d/env/90-environment.sh: {line}"}


def test_a_comment_sets_nothing(image: Path) -> None:
    (image / "etc" / "environment").write_text("#NCCL_PROFILER_PLUGIN=/opt/x.so\n")
    assert found(image) == {}


def test_nccls_own_configuration_is_found(image: Path) -> None:
    (image / "etc" / "nccl.conf").write_text("NCCL_PROFILER_PLUGIN=/opt/x.so\n")
    assert found(image).keys() == {"image-sets-others"}


def test_an_old_nccl_is_found_by_the_text_of_a_wheel(image: Path) -> None:
    folder = image / "usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib"
    folder.mkdir(parents=True)
    text = b"\0NCCL version 2.19.3+cuda12.3\0"
    (folder / "libnccl.so.2").write_bytes(b"\0" * (9 << 20) + text)
    assert list(found(image)) == ["image-nccl"]
    assert "NCCL 2.19.3 has no interface" in found(image)["image-nccl"]


def test_the_sites_list_is_looked_up(image: Path) -> None:
    assert list(found(image, "deny_nccl = 2.28.0-2.28.5\n")) == ["image-nccl"]


def test_rccl_is_found(image: Path) -> None:
    (image / "opt/rocm/lib").mkdir(parents=True)
    (image / "opt/rocm/lib/librccl.so.1").write_bytes(b"rccl")
    assert found(image) == {"image-rccl": "/opt/rocm/lib/librccl.so.1"}


def test_musl_is_found(image: Path) -> None:
    (image / LIBS / "libc.so.6").unlink()
    (image / "usr/lib/ld-musl-x86_64.so.1").write_bytes(b"x")
    assert found(image) == {"image-libc": "its C library is musl"}


def test_an_image_of_another_architecture_is_found(image: Path) -> None:
    libc = image / LIBS / "libc.so.6"
    data = bytearray(libc.read_bytes())
    data[18:20] = (183).to_bytes(2, "little")
    libc.write_bytes(data)
    assert found(image) == {"image-machine": "the image is for aarch64, the plugin for x86-64"}


def test_a_file_of_the_image_that_leads_to_the_host_is_not_read(image: Path) -> None:
    host = image.parent / "host"
    host.write_text("NCCL_PROFILER_PLUGIN=/opt/x.so\n")
    (image / "etc" / "environment").unlink()
    (image / "etc" / "environment").symlink_to(host)
    assert found(image) == {}


def test_a_directory_without_an_image_is_told(tmp_path: Path) -> None:
    results = examine(tmp_path).results
    assert {one.outcome for one in results if one.check.id != "settings-refused"} == {
        Outcome.CANNOT_TELL
    }
    assert "it is no unpacked image" in results[1].evidence


def test_of_many_large_libraries_those_beyond_the_budget_are_said_not_to_be_scanned(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_image, "SCAN_BYTES_MAX", 32 << 20)
    for number in range(40):
        path = image / LIBS / f"libnccl.so.{number}"
        path.touch()
        os.truncate(path, (10 << 20) + number)
    read: list[int] = []
    whole = Tree.read

    def counting(tree: Tree, path: str, bytes_max: int, offset: int = 0) -> bytes:
        data = whole(tree, path, bytes_max, offset)
        read.append(len(data) if "nccl" in path else 0)
        return data

    monkeypatch.setattr(Tree, "read", counting)
    config = parse_config("", "test")
    seen = read_image.read_image(config, image)
    assert len(seen.not_scanned) == 36
    assert sum(read) < 34 << 20
    results = {one.check.id: one for one in examine(image).results}
    outcome = results["image-nccl"].outcome, results["image-libc"].outcome
    assert outcome == (Outcome.CANNOT_TELL, Outcome.WELL)
    assert "not scanned" in results["image-nccl"].evidence
    assert "and 35 more" in results["image-nccl"].evidence


def test_a_thousand_files_that_set_variables_fill_no_terminal(image: Path) -> None:
    folder = image / "etc/profile.d"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number:04}.sh").write_text("export NCCL_PROFILER_PLUGIN=/x.so\n" * 50)
    assert len(found(image)["image-sets-profiler"]) < 20_000
