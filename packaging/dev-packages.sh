#!/bin/bash
# dev-packages.sh - the Debian packages that building, tests and demo need. Quick when they are there.
#
# Installs as root on Debian; otherwise says in one line what to install. The daemons among them are not started:
# tests and demo run their own on loopback.
set -euo pipefail

readonly packages=(
	gcc libc6-dev make git python3-venv
	slurm-wlm libslurm-dev slurm-wlm-basic-plugins munge
	slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
	prometheus prometheus-node-exporter openmpi-bin
	clang libclang-rt-14-dev clang-tidy cppcheck shellcheck procps util-linux debootstrap
	gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user locales
)

missing=()
for package in "${packages[@]}"; do
	[[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
	echo "missing packages; as root on Debian 12: apt-get install ${missing[*]}" >&2
	exit 1
fi

readonly policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 0755 "$policy"
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
