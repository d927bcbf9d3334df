#!/bin/sh
# Make one machine of the sandbox: called in new UTS and mount namespaces, where every mount below stays.
# Usage: machine.sh STATE_DIR NAME node|head HOST_NAME [TREE REPOSITORY]. Prints the pid of the process that keeps
# the namespaces. With TREE, a Debian in a directory, that is what the machine has in place of the host's files.
set -eu
state=$1 name=$2 kind=$3 host_name=$4 tree=${5-} repository=${6-}
own=$state/machines/$name

hostname "$host_name"

# First the private tmpfs: it marks every process in here as the cluster's (tests/sandbox/processes.py).
mount -t tmpfs -o size=64m,mode=0755 nccl-inspector-sandbox "$own/private"

# Writable overlays let this machine have files that the host has not.
layer() {
	mkdir -p "$own/private/upper$1" "$own/private/work$1"
	mount -t overlay overlay -o "lowerdir=$1,upperdir=$own/private/upper$1,workdir=$own/private/work$1" "$1"
}

# What the unit of one of the product's mounts says.
options() {
	sed -n 's/^Options=//p' "$packaging/run-nccl\\x2dinspector$1.mount"
}

# A directory or a file of the host, at the same path below the new root.
bring() {
	if [ -d "$1" ]; then
		mkdir -p "$root$1"
	else
		mkdir -p "$root${1%/*}"
		[ -e "$root$1" ] || : >"$root$1"
	fi
	mount "${2---bind}" "$1" "$root$1"
}

# Make the tree, below a writable layer, the root of this machine.
enter_tree() {
	root=$own/private/root
	mkdir "$root" "$own/private/upper" "$own/private/work"
	mount -t overlay overlay -o "lowerdir=$tree,upperdir=$own/private/upper,workdir=$own/private/work" "$root"
	for path in /proc /sys /dev; do
		bring "$path" --rbind
	done
	# The private tmpfs once more: only what the new root shows marks a process.
	for path in /tmp "$state" "$own/private" "$repository" /etc/passwd /etc/group /etc/shadow; do
		bring "$path"
	done
	mount -o remount,bind,ro "$root$repository"
	# Monitoring is no part of a release: its programs are the host's.
	for program in prometheus prometheus-node-exporter; do
		path=$(command -v "$program") && bring "$path"
	done
	cd "$root"
	mkdir .host
	pivot_root . .host
	cd /
	umount -l /.host
	rmdir /.host
}

if [ -n "$tree" ]; then
	enter_tree
else
	layer /etc
	layer /usr/lib
	[ "$kind" = head ] || layer /run
fi
mkdir -p /etc/nccl-inspector /usr/lib/nccl-inspector
mount --bind "$state/etc/nccl-inspector" /etc/nccl-inspector
mount --bind "$state/root/usr/lib/nccl-inspector" /usr/lib/nccl-inspector
[ -e /etc/hosts ] || : >/etc/hosts
mount --bind "$state/etc/hosts" /etc/hosts

if [ "$kind" = node ]; then
	packaging=${0%/*}/../../packaging
	mkdir -p /run/nccl-inspector
	sh "$packaging/mount.nccl-inspector" nccl-inspector /run/nccl-inspector -o "$(options '')" 2>/dev/null
	mkdir -m 0711 /run/nccl-inspector/jobs
	mkdir -m 0700 /run/nccl-inspector/ended
	for path in prom control; do
		mkdir -m 0755 "/run/nccl-inspector/$path"
		mount -t tmpfs -o "$(options "-$path")" nccl-inspector "/run/nccl-inspector/$path"
	done
	[ ! -d /proc/driver ] || mount --bind "$own/driver" /proc/driver
	# Only adapters, and the loader's own directories: the product knows of no other place for either.
	[ ! -d "$own/sys/class" ] || mount --bind "$own/sys/class" /sys/class
	for path in /usr/lib/*-linux-gnu; do
		[ ! -d "$own/nvml" ] || ln -sf "$own/nvml/libnvidia-ml.so.1" "$path/"
	done
fi

setsid sleep infinity </dev/null >/dev/null 2>&1 &
echo $!
