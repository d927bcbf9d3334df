# SPDX-License-Identifier: Apache-2.0
"""Make the .deb or .rpm files of packages.toml, from the parts that `make stage` put together.

nfpm would make both from one description, but is not in Debian, and debhelper and a spec file are
two. So this writes DEBIAN/control or a spec from packages.toml and leaves the rest to dpkg-deb and
rpmbuild. The same tree and commit give the same .deb, byte by byte.
"""

import argparse
import gzip
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import textwrap
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import formatdate
from importlib.metadata import PathDistribution
from pathlib import Path

HERE = Path(__file__).parent
REPO = HERE.parents[1]
DEB_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# The packages that have the libraries which compiled code may need, apart from the C library.
DEB_LIBRARIES = {
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
    "libz.so.1": "zlib1g",
}
OWN_DIR = "nccl-inspector"
# Debian requires a maintainer. Who makes packages for a site is the site's own admin, and root has
# a mailbox on every host.
ROOT = "the administrator of this host <root@localhost>"
LINTIAN_OF_ROOT = """# Nobody was named as the maintainer: mail goes to the host's own root.
bogus-mail-host Maintainer root@localhost
bogus-mail-host-in-debian-changelog root@localhost *
root-in-contact Maintainer *
"""


@dataclass(frozen=True, slots=True)
class Target:
    """What the packages are built for and from."""

    stage: Path
    out: Path
    version: str
    machine: str
    slurm: str
    slurm_prefix: str  # of a Slurm that is in no package; empty: it is in one
    python: str
    tools: str  # what the names of strip, objcopy and readelf begin with
    maintainer: str  # empty: nobody is named
    epoch: int
    level: int  # of compression

    def fill(self, text: str) -> str:
        """Put the releases of Slurm and Python into a text of packages.toml."""
        year, month = self.slurm.split(".")
        after = f"{year}.{int(month) + 1:02d}"
        return text.format(slurm=self.slurm, slurm_next=after, python=self.python)

    def built_for(self, suffix: str) -> str:
        """Return what the version of a package ends with: the release that it fits alone."""
        found = {"slurm": f"slurm{self.slurm}", "tools": f"python{self.python}"}
        return found.get(suffix.split("-")[0], "")

    def deb_version(self, suffix: str) -> str:
        """Return the version of one of our packages, as dpkg writes it."""
        extra = self.built_for(suffix)
        return f"{self.version}-1" + (f"+{extra}" if extra else "")

    def rpm_release(self, suffix: str) -> str:
        """Return the release of one of our packages, as rpm writes it."""
        extra = self.built_for(suffix)
        return "1" + (f".{extra}" if extra else "")


@dataclass(frozen=True, slots=True)
class Package:
    """One entry of packages.toml, whose comments say what the fields are; or debug symbols."""

    base: str
    suffix: str
    arch: str
    parts: Sequence[str]
    summary: str
    description: str
    needs: Sequence[str] = ()
    suggests: Sequence[str] = ()
    deb: Sequence[str] = ()
    rpm: Sequence[str] = ()
    compile: Sequence[str] = ()
    units: Sequence[str] = ()
    late_units: Sequence[str] = ()
    restarts: Sequence[str] = ()
    preset: str = ""
    unplugs: bool = False

    def others(self, target: Target, kind: str) -> list[str]:
        """Return the packages of others that it needs, in the words of dpkg or of rpm."""
        if self.suffix == "slurm" and target.slurm_prefix:
            return []
        return [target.fill(one) for one in (self.deb if kind == "deb" else self.rpm)]

    @property
    def name(self) -> str:
        """Return the name of the package."""
        return self.named(self.suffix)

    def named(self, suffix: str) -> str:
        """Return the name of another package of ours."""
        return f"{self.base}-{suffix}" if suffix else self.base

    def values(self) -> str:
        """Return the assignments that scripts.sh reads."""
        lists = {"compile": self.compile, "units": self.units, "late_units": self.late_units}
        lists |= {"restarts": self.restarts, "preset": [self.preset]}
        return "".join(f"{name}={shlex.quote(' '.join(of))}\n" for name, of in lists.items())

    @property
    def has_scripts(self) -> bool:
        """Something is to be done when it is installed or removed."""
        return bool(self.compile or self.units or self.unplugs)

    def actions(self, scripts: Mapping[str, str]) -> Mapping[str, str]:
        """Return those of DEB_SCRIPTS or RPM_SCRIPTS that it needs."""
        if self.compile or self.units:
            return scripts
        return {when: action for when, action in scripts.items() if "unplug" in action}


def call(*words: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints; if it fails, so does the build."""
    return subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | (env or {})
    ).stdout


def is_elf(path: Path) -> bool:
    """Tell whether a file is compiled code."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def files(tree: Path) -> list[Path]:
    """Return the files of a tree, in order, as paths from its root."""
    return sorted(path.relative_to(tree) for path in tree.rglob("*") if not path.is_dir())


def zipped(path: Path, data: bytes) -> None:
    """Write a file compressed, without a time of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def licences(tree: Path) -> str:
    """Return what the modules of others in a tree say of their licences."""
    lines = []
    for folder in sorted(tree.rglob("*.dist-info")):
        about = PathDistribution(folder).metadata
        found = [*(about.get_all("License-Expression") or ()), *(about.get_all("License") or ())]
        classes = [one for one in about.get_all("Classifier") or () if one.startswith("License ::")]
        said = (
            found[0].splitlines()[0]
            if found
            else ", ".join(one.split(" :: ")[-1] for one in classes)
        )
        texts = sorted(
            path.relative_to(tree)
            for path in folder.rglob("*")
            if re.match("(LICEN|NOTICE|COPY)", path.name)
        )
        where = "".join(f"\n  /{path}" for path in texts)
        lines.append(f"{about['Name']} {about['Version']}: {said}{where}\n")
    return "\n".join(lines)


def take_symbols(library: Path, target: Target, symbols: Path) -> None:
    """Move the debug symbols of a library to where gdb looks for them, below `symbols`."""
    notes = call(f"{target.tools}readelf", "--notes", library)
    found = re.search(r"Build ID: ([0-9a-f]{4,})", notes)
    if found is None:
        raise SystemExit(f"{library} has no build id")
    place = symbols / f"usr/lib/debug/.build-id/{found[1][:2]}/{found[1][2:]}.debug"
    place.parent.mkdir(parents=True, exist_ok=True)
    keep = ("--only-keep-debug", "--compress-debug-sections")
    call(f"{target.tools}objcopy", *keep, library, place)
    place.chmod(0o644)
    call(f"{target.tools}strip", "--strip-unneeded", "--remove-section=.comment", library)


def put_together(package: Package, target: Target, tree: Path, symbols: Path) -> None:
    """Make the tree of a package: its parts, with compressed man pages and its papers.

    What is compiled is stripped; `symbols` gets what that takes away.
    """
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for part in package.parts:
        shutil.copytree(target.stage / part, tree, symlinks=True, dirs_exist_ok=True)
    for name in files(tree):
        path = tree / name
        if is_elf(path) and "report" not in package.parts:
            take_symbols(path, target, symbols)
        elif "share/man" in str(path.parent):
            zipped(path.with_name(path.name + ".gz"), path.read_bytes())
            path.unlink()
    add_papers(package, target, tree)


def add_papers(package: Package, target: Target, tree: Path) -> None:
    """Add changelog and copyright to a tree, and give all of it its modes and times."""
    doc = tree / "usr/share/doc" / package.name
    doc.mkdir(parents=True)
    zipped(doc / "changelog.gz", (REPO / "CHANGELOG.md").read_bytes())
    others = licences(tree)
    text = (HERE / "copyright").read_text()
    if others:
        text += f"\nModules of others in this package, each under its own licence:\n\n{others}"
    (doc / "copyright").write_text(text)
    for path in (tree, *tree.rglob("*")):
        if path.is_dir() or not path.stat().st_mode & 0o111:
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (target.epoch, target.epoch), follow_symlinks=False)


def symbols_of(package: Package, kind: str) -> Package:
    """Return the package with the debug symbols of another one, named as the distributions do."""
    suffix = f"{package.suffix}-{'dbgsym' if kind == 'deb' else 'debuginfo'}"
    return Package(
        package.base, suffix, package.arch, (),
        f"NCCL communication metrics for Slurm jobs: debug symbols of {package.suffix}",
        f"With it gdb and perf know the functions and lines of {package.name}, in processes that "
        "have loaded it and in their core files. No node needs it.",
        needs=(package.suffix,),
    )  # fmt: skip


def c_library(tree: Path) -> list[str]:
    """Return Debian's names of the libraries that the compiled code of a tree needs."""
    newest, found, inside = (0, 0), set(), {path.name for path in files(tree)}
    for name in files(tree):
        if not is_elf(tree / name):
            continue
        said = call("readelf", "--wide", "--dynamic", "--version-info", tree / name)
        versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", said)
        newest = max([newest, *((int(one), int(two)) for one, two in versions)])
        found |= set(re.findall(r"NEEDED.*\[(.+?)\]", said))
    if not found:
        return []
    of_glibc = r"lib(c|m|dl|pthread|rt)\.so\.\d|ld-linux[-\w]*\.so\.\d"
    rest = {name for name in found - inside if not re.fullmatch(of_glibc, name)}
    return [f"libc6 (>= {newest[0]}.{newest[1]})", *sorted(DEB_LIBRARIES[name] for name in rest)]


def wrapped(text: str) -> list[str]:
    """Return the lines of a description as the tools want them."""
    return textwrap.wrap(text.strip(), 75)


# $1 and $2 of dpkg's and of rpm's scripts, in the words of the scripts' functions.
DEB_SCRIPTS = {
    "postinst": '[ "$1" != configure ] || installed "${2:+again}"',
    "prerm": "case $1 in remove) unplug && before_removal ;; deconfigure) before_removal ;; "
    "*) before_upgrade ;; esac",
    "postrm": '[ "$1" != remove ] || removed',
}  # fmt: skip
RPM_SCRIPTS = {
    "post": 'if [ "$1" -gt 1 ]; then installed again; else installed; fi',
    "preun": '[ "$1" -gt 0 ] || { unplug && before_removal; }',
    "postun": '[ "$1" -gt 0 ] || removed',
}


def script(package: Package, action: str) -> str:
    """Return the text of a script: what the package needs of scripts.sh, and the call."""
    text = (HERE / "scripts.sh").read_text()
    _, compiled, units, unplug, functions = text.split("\n#---\n")
    parts = [package.values()]
    parts += [compiled] if package.compile else ["compiled() { :; }\nforget_compiled() { :; }\n"]
    parts += (
        [units]
        if package.units or package.restarts
        else ["reload() { :; }\nrestart() { :; }\nstop() { :; }\n"]
    )
    parts += [unplug if package.unplugs else "unplug() { :; }\n"]
    return "\n".join([*parts, functions, action])


def add_debians_papers(package: Package, target: Target, tree: Path, maintainer: str) -> None:
    """Add Debian's changelog and what lintian is told."""
    version = target.deb_version(package.suffix)
    entry = (
        f"{package.name} ({version}) unstable; urgency=medium\n\n"
        f"  * Release {target.version}; changelog.gz says what it brings.\n\n"
        f" -- {maintainer}  {formatdate(target.epoch, usegmt=False)}\n"
    )
    doc = tree / "usr/share/doc" / package.name
    zipped(doc / "changelog.Debian.gz", entry.encode())
    overrides = HERE / "lintian" / (package.suffix or "command")
    known = overrides.read_text() if overrides.exists() else ""
    known += "" if target.maintainer else LINTIAN_OF_ROOT
    if known:
        place = tree / "usr/share/lintian/overrides" / package.name
        place.parent.mkdir(parents=True)
        place.write_text(known)


def make_deb(package: Package, target: Target, tree: Path) -> Path:
    """Make one .deb of a package's tree, which gets a directory DEBIAN and Debian's changelog."""
    arch = "all" if package.arch == "all" else DEB_MACHINES[target.machine]
    version = target.deb_version(package.suffix)
    maintainer = target.maintainer or ROOT
    is_symbols = package.suffix.endswith("-dbgsym")
    if is_symbols:  # Debian wants no file there but the symbols
        doc = tree / "usr/share/doc" / package.name
        doc.parent.mkdir(parents=True)
        doc.symlink_to(package.named(package.needs[0]))
    else:
        add_debians_papers(package, target, tree, maintainer)
    control = tree / "DEBIAN"
    control.mkdir()
    depends = [f"{package.named(one)} (= {target.deb_version(one)})" for one in package.needs]
    depends += package.others(target, "deb")
    depends += [] if is_symbols else c_library(tree)
    text = wrapped(target.fill(package.description))
    names = [name for name in files(tree) if name.parts[0] != "DEBIAN"]
    size = sum((tree / name).lstat().st_size for name in names) // 1024 + 1
    suggests = ", ".join(package.named(one) for one in package.suggests)
    fields = {
        "Package": package.name, "Version": version, "Architecture": arch,
        "Section": "debug" if is_symbols else "admin",
        "Auto-Built-Package": "debug-symbols" if is_symbols else "",
        "Priority": "optional", "Maintainer": maintainer, "Installed-Size": str(size),
        "Depends": ", ".join(depends), "Suggests": suggests,
        "Description": "\n ".join([target.fill(package.summary), *text]),
    }  # fmt: skip
    lines = [f"{name}: {value}\n" for name, value in fields.items() if value]
    (control / "control").write_text("".join(lines))
    sums = [
        f"{hashlib.md5((tree / name).read_bytes()).hexdigest()}  {name}\n"  # noqa: S324 - dpkg's
        for name in names if not (tree / name).is_symlink()
    ]  # fmt: skip
    (control / "md5sums").write_text("".join(sums))
    if conffiles := [f"/{name}\n" for name in names if name.parts[0] == "etc"]:
        (control / "conffiles").write_text("".join(conffiles))
    if package.has_scripts:
        for name, action in package.actions(DEB_SCRIPTS).items():
            (control / name).write_text(f"#!/bin/sh\nset -e\n{script(package, action)}\n")
            (control / name).chmod(0o755)
    for path in (tree, *tree.rglob("*")):
        os.utime(path, (target.epoch, target.epoch), follow_symlinks=False)
    out = target.out / f"{package.name}_{version}_{arch}.deb"
    env = {"SOURCE_DATE_EPOCH": str(target.epoch)}
    pack = ("-Zxz", f"-z{target.level}") if target.level else ("-Znone",)
    call("dpkg-deb", "--build", "--root-owner-group", *pack, tree, out, env=env)
    return out


def make_rpm(package: Package, target: Target, tree: Path) -> Path:
    """Make one .rpm of a package's tree."""
    arch = "noarch" if package.arch == "all" else target.machine
    release = target.rpm_release(package.suffix)
    lines = [
        f"Name: {package.name}", f"Version: {target.version}", f"Release: {release}",
        f"Summary: {target.fill(package.summary)}", "License: Apache-2.0",
        *([f"Packager: {target.maintainer}"] if target.maintainer else []),
        *(["BuildArch: noarch"] if arch == "noarch" else []),
        *(f"Requires: {package.named(one)} = {target.version}-{target.rpm_release(one)}"
          for one in package.needs),
        *(f"Requires: {one}" for one in package.others(target, "rpm")),
        *(f"Suggests: {package.named(one)}" for one in package.suggests),
        "%description", *wrapped(target.fill(package.description)),
    ]  # fmt: skip
    if package.has_scripts:
        for when, action in package.actions(RPM_SCRIPTS).items():
            lines += [f"%{when}", script(package, action).replace("%", "%%"), ":"]
    lines += ["%files", "%defattr(-,root,root,-)"]
    folders = {parent for name in files(tree) for parent in name.parents}
    own = sorted(
        one for one in folders
        if any(OWN_DIR in part for part in one.parts) or ".build-id" in one.parent.parts
    )  # fmt: skip
    lines += [f'%dir "/{folder}"' for folder in own]
    for name in files(tree):
        mark = "%config(noreplace) " if name.parts[0] == "etc" else ""
        mark = "%license " if name.name == "copyright" else mark
        if not mark and {"doc", "man"} & set(name.parts):
            mark = "%doc "
        # A backslash, as in the names of mount units, quotes there; the pattern finds one file.
        lines.append(f'{mark}"/{name}"'.replace("\\", "?"))
    day = time.strftime("%a %b %d %Y", time.gmtime(target.epoch))
    lines += [
        "%changelog",
        f"* {day} {target.maintainer or package.base} - {target.version}-{release}",
    ]
    lines += [f"- Release {target.version}; changelog.gz says what it brings."]
    work = target.out / "work"
    spec = work / f"{package.name}.spec"
    spec.write_text("\n".join(lines) + "\n")
    defines = {
        "_topdir": str(work), "_rpmdir": str(target.out), "buildroot": str(tree.resolve()),
        "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        # What all supported releases can read.
        "_binary_payload": f"w{target.level}.xzdio", "_build_id_links": "none",
        # Nothing is changed any more, nothing is provided to others, and what numpy brings is not
        # asked of the system.
        "__os_install_post": "%%{nil}", "debug_package": "%%{nil}",
        "__provides_exclude_from": "^/usr/lib/nccl-inspector/",
        "__requires_exclude": "^lib(scipy_openblas|gfortran|quadmath).*",
        "use_source_date_epoch_as_buildtime": "1", "_buildhost": "localhost",
    }  # fmt: skip
    words = [
        word
        for name, text in defines.items()
        for word in ("--define", f"{name} {text.replace('%%', '%')}")
    ]
    call("rpmbuild", "-bb", "--quiet", "--noclean", f"--target={arch}-linux", *words, spec,
         env={"SOURCE_DATE_EPOCH": str(target.epoch)})  # fmt: skip
    return target.out / f"{package.name}-{target.version}-{release}.{arch}.rpm"


def read_packages() -> list[Package]:
    """Return the packages of packages.toml."""
    read = tomllib.loads((HERE / "packages.toml").read_text())
    return [Package(base=read["name"], **one) for one in read["package"]]


def slurm_release(include: Path) -> str:
    """Return major.minor of the Slurm whose headers these are."""
    text = (include / "slurm" / "slurm_version.h").read_text()
    found = re.search(r"^#define SLURM_VERSION_NUMBER\s+(0x[0-9a-f]+)", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{include}/slurm/slurm_version.h names no release")
    number = int(found[1], 16)
    return f"{number >> 16 & 255}.{number >> 8 & 255:02d}"


def main(words: Iterable[str] | None = None) -> None:
    """Make the packages that were asked for, and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("deb", "rpm"))
    for name in ("stage", "out", "slurm-include"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("version", "machine", "python"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("tools", "maintainer", "slurm-prefix"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument(
        "--level", type=int, default=6, help="of compression; 0 packs a .deb without"
    )
    parser.add_argument("--packages", default="", help="suffixes of those to make; all without")
    asked = parser.parse_args(words if words is None else list(words))
    os.umask(0o022)
    commit_s = int(call("git", "-C", REPO, "log", "-1", "--format=%ct"))
    target = Target(
        asked.stage, asked.out, asked.version, asked.machine, slurm_release(asked.slurm_include),
        asked.slurm_prefix, asked.python, asked.tools, asked.maintainer, commit_s, asked.level,
    )  # fmt: skip
    wanted = asked.packages.split()
    for folder in ("work", "debug/work"):
        (target.out / folder).mkdir(parents=True, exist_ok=True)
    for package in read_packages():
        if wanted and (package.suffix or "command") not in wanted:
            continue
        tree = target.out / "work" / asked.kind / package.name
        symbols = tree.with_name(f"{package.name}-symbols")
        shutil.rmtree(symbols, ignore_errors=True)
        put_together(package, target, tree, symbols)
        make = make_deb if asked.kind == "deb" else make_rpm
        print(make(package, target, tree))
        if symbols.exists():
            of_it = symbols_of(package, asked.kind)
            if asked.kind == "rpm":
                add_papers(of_it, target, symbols)
            # In a directory of their own: `apt install ./*.deb` of the others does not mean them.
            print(make(of_it, replace(target, out=target.out / "debug"), symbols))


if __name__ == "__main__":
    main()
