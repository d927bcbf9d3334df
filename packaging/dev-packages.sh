#!/bin/bash
# dev-packages.sh - the Debian packages that building, demo and tests need. Quick when they are there.
#
#   dev-packages.sh            all of them
#   dev-packages.sh demo       only what the demo needs
#   dev-packages.sh test       only what `make test` needs
#   dev-packages.sh first      what the demo needs, if anything of `make test` is missing: others can begin meanwhile
#
# Installs as root on Debian; otherwise says in one line what to install. The services among them are
# neither started nor enabled: tests and demo run their own on loopback.
set -euo pipefail

of_demo=(
	gcc libc6-dev make git python3-venv
	slurm-wlm libslurm-dev slurm-wlm-basic-plugins munge
	prometheus prometheus-node-exporter procps util-linux
)
of_test=(
	postgresql
	systemd busybox-static debootstrap locales man-db shellcheck
)
# For long tests, `make lint` and packages.
others=(
	slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core
	victoria-metrics
	swift-proxy swift-account swift-container swift-object memcached
	openmpi-bin
	clang libclang-rt-dev clang-tidy cppcheck
	gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
	rpm cpio rpmlint lintian apt-utils createrepo-c
)
case ${1-} in
demo) of_test=() others=() ;;
test | first) others=() ;;
esac

missing=()
look() { # PACKAGE...: adds to `missing`
	local package
	for package; do
		[[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
	done
}
look "${of_demo[@]}"
needed=("${missing[@]}")
look "${of_test[@]}" "${others[@]}"
((${#missing[@]})) || exit 0

if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
	echo "missing packages; as root on Debian 12 or 13: apt-get install ${missing[*]}" >&2
	exit 1
fi
[[ ${1-} != first ]] || missing=("${needed[@]}")
((${#missing[@]})) || exit 0

readonly policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
	trap 'rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 0755 "$policy"
fi

enabled() {
	{ find /etc/systemd/system -path '*.wants/*' 2>/dev/null || :; } | sort
}

echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
before=$(enabled)
apt-get update -qq
if [[ " ${missing[*]} " == *" postgresql "* ]]; then
	# Debian would make a server of its own and keep it running.
	apt-get install -qq -y --no-install-recommends postgresql-common >/dev/null
	sed -i 's/^#* *create_main_cluster .*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
fi
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
# policy-rc.d keeps services from being started now, and this at the next boot.
comm -13 <(echo "$before") <(enabled) | xargs -r -d '\n' rm -f --
