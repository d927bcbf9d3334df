#!/bin/bash
# build-needs.sh - names all that building needs and this host lacks, at once, and the command that installs it.
#
#   build-needs.sh deb|rpm    with CC, PYTHON, SLURM_INCLUDE and PACKAGES (suffixes; empty: all) in the environment
#
# Installs nothing. Exit status 1 if something is missing.
set -u
kind=$1
missing=() debian=() redhat=()
lacks() { # WHAT DEBIAN'S-PACKAGE RED-HAT'S-PACKAGE
	missing+=("$1")
	debian+=("$2")
	redhat+=("$3")
}
has() { command -v "$1" >/dev/null; }
builds() { # SUFFIX...: one of these packages is to be built
	[[ -z ${PACKAGES-} ]] && return
	local suffix
	for suffix; do [[ " $PACKAGES " == *" $suffix "* ]] && return; done
	return 1
}
if builds profiler slurm; then
	has "${CC:-gcc}" || lacks "a C compiler (${CC:-gcc})" gcc gcc
	[[ -e /usr/include/stdlib.h ]] || lacks "the C library's headers" libc6-dev glibc-devel
	for tool in strip objcopy readelf; do has $tool || lacks $tool binutils binutils; done
fi
if builds slurm && [[ ! -e ${SLURM_INCLUDE:-/usr/include}/slurm/spank.h ]]; then
	lacks "${SLURM_INCLUDE:-/usr/include}/slurm/spank.h, of your Slurm (or say SLURM_INCLUDE=DIR)" libslurm-dev slurm-devel
fi
has awk || lacks awk mawk gawk
python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	lacks "Python 3.11 or later as $python (or say PYTHON=python3.11)" python3 python3.11
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
	lacks "Python's module venv" python3-venv "$(basename "$python")"
fi
has git || lacks git git git
if [[ $kind == deb ]]; then
	has dpkg-deb || lacks dpkg-deb dpkg dpkg
else
	has rpmbuild || lacks rpmbuild rpm rpm-build
fi
((${#missing[@]})) || exit 0
{
	echo "cannot build here; missing:"
	printf '  %s\n' "${missing[@]}"
	if has apt-get; then
		echo "install them: apt-get install --no-install-recommends ${debian[*]}"
	elif has dnf; then
		echo "install them: dnf install ${redhat[*]}"
	else
		echo "packages that have them (RHEL's names): ${redhat[*]}"
	fi
} >&2
exit 1
