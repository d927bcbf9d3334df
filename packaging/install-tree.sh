#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install-tree.sh - copy a tree to where it is used, and remove it again.
#
#   install-tree.sh TREE ROOT LIST       copy TREE to ROOT; LIST, below ROOT, gets the names of its
#                                        files, and what an earlier LIST had besides is removed
#   install-tree.sh --remove ROOT LISTS  remove the files of all lists in the directory LISTS
#
# Files are written beside and renamed: a program that loads a half-written library dies of SIGBUS.
set -eu
export LC_ALL=C
umask 022

# Removes the files named on standard input, then what Python compiled of them and directories of
# ours that are empty. Directories that others use too, such as systemd's, stay.
remove() {
	while read -r file; do
		rm -f -- "$root$file"
		dir=${file%/*}
		echo "$dir"
	done | sort -ru | while read -r dir; do
		rm -rf -- "$root$dir/__pycache__"
		while :; do
			case $dir in */nccl-inspector | */nccl-inspector/*) rmdir -- "$root$dir" 2>/dev/null || break ;; *) break ;; esac
			dir=${dir%/*}
		done
	done
}

if [ "$1" = --remove ]; then
	root=$2 lists=$3
	if [ ! -d "$root$lists" ]; then
		echo "nothing is installed: there is no $root$lists" >&2
		exit 1
	fi
	names=$(cd "$root$lists" && ls)
	{
		cat -- "$root$lists"/*
		for name in $names; do echo "$lists/$name"; done
	} | remove
	exit 0
fi

tree=$1 root=$2 list=$3
files=$(cd "$tree" && find . ! -type d | sed 's;^\.;;' | sort)
echo "$files" | sed 's;/[^/]*$;;' | sort -u | while read -r dir; do
	new=$root$dir/.nccl-inspector.new
	mkdir -p -- "$root$dir"
	rm -rf -- "$new"
	mkdir -- "$new"
	find "$tree$dir" -maxdepth 1 ! -type d -exec cp -P --preserve=mode -t "$new" -- {} +
	find "$new" -mindepth 1 -exec mv -f -t "$root$dir" -- {} +
	rmdir -- "$new"
done
mkdir -p -- "$root${list%/*}"
echo "$files" >"$root$list.new"
[ ! -e "$root$list" ] || comm -13 "$root$list.new" "$root$list" | remove
mv -f -- "$root$list.new" "$root$list"
