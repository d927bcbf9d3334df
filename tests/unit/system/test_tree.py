# SPDX-License-Identifier: Apache-2.0
"""Whoever makes an image cannot lead the doctor out of it, or make it wait."""

import os
from pathlib import Path

import pytest

from nccl_inspector.system import tree as tree_module
from nccl_inspector.system.tree import Tree
from tests.support.processes import nothing_left


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("of the host")
    root = tmp_path / "image"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "file").write_text("inside")
    return root


def read(root: Path, path: str) -> bytes:
    with Tree(root) as tree:
        return tree.read(path, 100)


def test_links_lead_inside_the_image(root: Path) -> None:
    (root / "absolute").symlink_to("/etc/file")
    (root / "etc" / "relative").symlink_to("../etc/./file")
    (root / "folder").symlink_to("/etc")
    for path in ("/absolute", "etc/relative", "/folder/relative"):
        assert read(root, path) == b"inside"


@pytest.mark.parametrize("target", ["../secret", "../../../../../../secret", "/../secret"])
def test_no_link_leads_out_of_it(root: Path, target: str) -> None:
    (root / "etc" / "out").symlink_to(target)
    assert read(root, "/etc/out") == b""
    assert read(root, f"/etc/{target}") == b""


def test_an_absolute_link_to_a_file_of_the_host_is_not_followed(root: Path) -> None:
    (root / "out").symlink_to(root.parent / "secret")
    assert read(root, "/out") == b""


def test_a_circle_of_links_ends(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert read(root, "/a") == b""


def test_a_fifo_and_a_device_are_not_opened(root: Path) -> None:
    os.mkfifo(root / "fifo")
    assert read(root, "/fifo") == b""
    (root / "null").symlink_to("/dev/null")
    assert read(root, "/null") == b""
    with Tree(root) as tree:
        assert tree.size("/fifo") == -1
        assert tree.names("/fifo") == []


def no_proc(_path_fd: int) -> int:
    raise FileNotFoundError


@pytest.fixture(params=["kernel", "walk"])
def chroot(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A chroot without /proc, with both ways to resolve a path."""
    monkeypatch.setattr(tree_module, "reopen", no_proc)
    if request.param == "walk":
        monkeypatch.setattr(tree_module, "_openat2", lambda *_: None)
    return str(request.param)


@pytest.mark.usefixtures("chroot")
def test_without_proc_the_same_is_read(root: Path) -> None:
    (root / "absolute").symlink_to("/etc/file")
    (root / "folder").symlink_to("/etc")
    (root / "etc" / "out").symlink_to("../../secret")
    os.mkfifo(root / "fifo")
    with nothing_left(), Tree(root) as tree:
        for path in ("etc/file", "/absolute", "/folder/../etc/file", "folder/./file"):
            assert tree.read(path, 100) == b"inside"
        for path in ("etc/out", "fifo", "etc", "..", "", "none"):
            assert tree.read(path, 100) == b""
        with tree.file("/folder/file") as fd:
            assert os.read(fd, 100) == b"inside"


@pytest.mark.usefixtures("chroot")
def test_what_is_another_file_by_then_is_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(_path_fd: int) -> int:
        (root / "etc" / "file").unlink()
        (root / "etc" / "file").write_text("another")
        raise FileNotFoundError

    monkeypatch.setattr(tree_module, "reopen", change)
    assert read(root, "etc/file") == b""


def test_a_proc_that_an_image_brought_along_is_not_believed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = root.parent / "secret"
    monkeypatch.setattr(tree_module, "reopen", lambda _: os.open(planted, os.O_RDONLY))
    assert read(root, "etc/file") == b""


def test_descriptors_are_given_back(root: Path) -> None:
    (root / "absolute").symlink_to("/etc/file")
    with nothing_left(), Tree(root) as tree:
        for _ in range(20):
            tree.read("/absolute", 10)
            tree.exists("/etc/none/x")
            tree.names("/etc")
