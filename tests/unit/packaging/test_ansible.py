# SPDX-License-Identifier: Apache-2.0
"""The Ansible role, where Ansible is installed: as its linter has it, and really run.

It runs on a copy of this machine's root directory (no systemd runs there), with the packages that
`make deb` has built.
"""

import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import BUILD, PACKAGING
from tests.support.throwaway_root import can_copy, run_in_copy

ANSIBLE = PACKAGING / "ansible"
ROLE = ANSIBLE / "roles" / "nccl_inspector"
PACKAGES = BUILD / "packages"
TABLE = PACKAGING / "packages" / "packages.toml"
SITE = '[slurm]\nwords = "default=prom"\n[settings]\nreport_dir = "/shared/reports"\n'
MONITORING = '[monitoring]\nout = "/etc/prometheus/nccl-inspector"\n'
SLURM_CONF = "ClusterName=alpha\nSlurmUser=root\nPrologFlags=Alloc\n"
# What each run begins with, and what is left for the test to look at.
SCRIPT = """
export PATH={path}:/usr/sbin:/usr/bin:/sbin:/bin
userdel nccl-inspector 2>/dev/null || true
mkdir -p /etc/slurm
rm -f /etc/slurm/plugstack.conf
printf '{conf}' >/etc/slurm/slurm.conf
cp -r {ansible} /role
printf '%s' "$SITE" >/role/site.toml
cd /role
printf -- '- hosts: all\\n  roles: [nccl_inspector]\\n' >play.yml
play() {{
	ansible-playbook -i localhost, -c local -e ansible_python_interpreter=/usr/bin/python3 \
		-e '{{"nccl_inspector_roles": [{roles}]}}' -e nccl_inspector_site_file=/role/site.toml \
		-e nccl_inspector_package_dir={packages} "$@" play.yml 2>&1 || echo "play failed"
}}
look() {{
	dpkg-query -W -f '${{db:Status-Abbrev}}${{Package}}\\n' 'slurm-nccl-inspector*'
	cat /etc/slurm/plugstack.conf
	find /etc/nccl-inspector /etc/prometheus/nccl* /etc/grafana /shared 2>/dev/null || true
}}
"""


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_the_role_passes_the_linter() -> None:
    done = subprocess.run(
        [_tool("ansible-lint"), "--offline", "--nocolor"],
        cwd=ANSIBLE, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not TABLE.exists(), reason="there is no table of packages")
def test_the_role_names_packages_that_there_are() -> None:
    known = tomllib.loads(TABLE.read_text())
    names = {f"{known['name']}-{one['suffix']}".rstrip("-") for one in known["package"]}
    said = set(re.findall(r"^    - (slurm-\S+)$", (ROLE / "vars" / "main.yml").read_text(), re.M))
    assert said == names


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nccl-inspector-ansible-") as name:
        if not can_copy(Path(name)):
            pytest.skip("cannot make a copy of this machine's root")
        yield Path(name)


def run(place: Path, roles: str, *lines: str) -> list[str]:
    """Run lines of a script on a host with these roles; return what each printed."""
    if not list(PACKAGES.glob("*.deb")):
        pytest.skip("there are no packages: make deb")
    head = SCRIPT.format(
        path=Path(_tool("ansible-playbook")).parent, ansible=ANSIBLE, packages=PACKAGES,
        conf=SLURM_CONF.replace("\n", "\\n"),
        roles=", ".join(f'"{role}"' for role in roles.split()),
    )  # fmt: skip
    script = "\n".join([head, *(f"{line}\nprintf '\\0'" for line in lines)])
    done = run_in_copy(place, script, {"SITE": SITE + MONITORING, "ANSIBLE_NOCOLOR": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout.split("\0")[: len(lines)]


def changed(text: str) -> int:
    """How many tasks changed something; the play must not have failed."""
    match = re.search(r"ok=\d+ +changed=(\d+) +unreachable=0 +failed=0", text)
    assert match, text[-3000:]
    return int(match[1])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_node_is_set_up_once_and_taken_back(place: Path) -> None:
    shown, first, after, second, asked, removed, left = run(
        place, "node", "play --check", "play", "look", "play", "play --tags doctor",
        "play -e nccl_inspector_state=absent", "look 2>&1 || true",
    )  # fmt: skip
    assert changed(shown) > 0
    assert changed(first) > 0
    assert "by hand" in first
    assert "optional /usr/lib/nccl-inspector/spank_nccl_inspector.so default=prom" in after
    assert "ii slurm-nccl-inspector-node" in after
    assert changed(second) == 0
    assert "play failed" in asked, "no agent runs here, and the doctor says so"
    assert "run-dir-missing: " in asked
    assert "account nccl-inspector stays" in removed
    assert "ii slurm-nccl-inspector" not in left
    assert "spank_nccl_inspector" not in left


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_controller_that_also_monitors_is_set_up_once_and_taken_back(place: Path) -> None:
    shown, first, after, second, asked, removed, left = run(
        place, "controller monitoring", "play --check", "play", "look", "play",
        "play --tags doctor", "play -e nccl_inspector_state=absent", "look 2>&1 || true",
    )  # fmt: skip
    assert changed(shown) > 0
    assert changed(first) > 0
    assert "by hand  prometheus.yml: include the rules" in first
    assert "optional /usr/lib/nccl-inspector/spank_nccl_inspector.so default=prom" in after
    assert "ii slurm-nccl-inspector-monitoring" in after
    assert "/etc/prometheus/nccl-inspector/prometheus/nccl-inspector-alerts.yml" in after
    assert "/shared/reports" in after
    assert changed(second) == 0
    assert "play failed" in asked, "no controller service runs here, and the doctor says so"
    assert "account nccl-inspector stays" in removed
    assert "ii slurm-nccl-inspector" not in left
    assert "/etc/prometheus/nccl-inspector" not in left
    assert "/etc/nccl-inspector/nccl-inspector.conf" not in left
