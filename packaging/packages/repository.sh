#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# repository.sh - make a directory from which apt and dnf install, of the packages that were built.
#
#   repository.sh PACKAGES REPOSITORY [KEY]    KEY: a key of your gpg, which signs the lists, and each rpm
#
# Packages are added: older releases stay until you delete their files and run it again. Serve REPOSITORY
# by http, or share it. A repository is for one distribution and one Slurm: -slurm and -tools of another
# have the same names.
set -euo pipefail
packages=$1 repository=$2 key=${3-}
needs() { # COMMAND PACKAGES
	command -v "$1" >/dev/null || {
		echo "repository.sh: $1 is missing: install $2" >&2
		exit 1
	}
}
sign() { # OUTPUT gpg's words: written beside, then renamed
	gpg --batch --yes --local-user "$key" --output "$1.new" "${@:2}"
	mv -f "$1.new" "$1"
}

shopt -s nullglob
debs=("$packages"/*.deb "$packages"/debug/*.deb) rpms=("$packages"/*.rpm "$packages"/debug/*.rpm)
if ((${#debs[@]} + ${#rpms[@]} == 0)); then
	echo "repository.sh: no packages in $packages: run make deb or make rpm first" >&2
	exit 1
fi
[[ -z $key ]] || needs gpg gnupg
if ((${#debs[@]})); then
	needs apt-ftparchive apt-utils
	mkdir -p "$repository/deb"
	cp -p "${debs[@]}" "$repository/deb"
	cd "$repository/deb"
	rm -f Release.gpg InRelease # they are of another list; without them apt does not trust the new one
	apt-ftparchive packages . >Packages.new
	mv -f Packages.new Packages
	gzip -9nc Packages >Packages.gz
	apt-ftparchive -o APT::FTPArchive::Release::Origin=slurm-nccl-inspector \
		-o APT::FTPArchive::Release::Label=slurm-nccl-inspector release . >../Release.new
	mv -f ../Release.new Release
	if [[ -n $key ]]; then
		sign Release.gpg --armor --detach-sign Release
		sign InRelease --clearsign Release
		gpg --batch --export "$key" >slurm-nccl-inspector.gpg
	fi
	cd "$OLDPWD"
	echo "$repository/deb"
fi
if ((${#rpms[@]})); then
	needs createrepo_c "createrepo-c (Debian) or createrepo_c"
	mkdir -p "$repository/rpm"
	cp -p "${rpms[@]}" "$repository/rpm"
	cd "$repository/rpm"
	if [[ -n $key ]]; then
		needs rpmsign "rpm (Debian) or rpm-sign"
		names=("${rpms[@]##*/}")
		rpmsign --define "_gpg_name $key" --define "__gpg $(command -v gpg)" --addsign "${names[@]}" >/dev/null
	fi
	createrepo_c --quiet .
	if [[ -n $key ]]; then
		sign repodata/repomd.xml.asc --armor --detach-sign repodata/repomd.xml
		gpg --batch --armor --export "$key" >slurm-nccl-inspector.asc
	fi
	cd "$OLDPWD"
	echo "$repository/rpm"
fi
