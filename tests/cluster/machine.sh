#!/bin/sh
# Make one machine of the sandbox: called in new UTS and mount namespaces, where every mount below stays.
# Usage: machine.sh STATE_DIR NAME node|head. Prints the pid of the process that keeps the namespaces.
set -eu
state=$1 name=$2 kind=$3
own=$state/machines/$name

hostname "$name"

# First the private tmpfs: it marks every process in here as the cluster's (tests/cluster/processes.py).
mount -t tmpfs -o size=64m,mode=0755 nccl-inspector-sandbox "$own/private"

# Writable overlays let this machine have files that the host has not.
layer() {
	mkdir -p "$own/private/upper$1" "$own/private/work$1"
	mount -t overlay overlay -o "lowerdir=$1,upperdir=$own/private/upper$1,workdir=$own/private/work$1" "$1"
}

layer /etc
layer /usr/lib
mkdir -p /etc/nccl-inspector /usr/lib/nccl-inspector
mount --bind "$state/etc/nccl-inspector" /etc/nccl-inspector
mount --bind "$state/root/usr/lib/nccl-inspector" /usr/lib/nccl-inspector
[ -e /etc/hosts ] || : >/etc/hosts
mount --bind "$state/etc/hosts" /etc/hosts

if [ "$kind" = node ]; then
	layer /run
	mkdir -p /run/nccl-inspector
	mount -t tmpfs -o size=256m,nr_inodes=20k,mode=0755,nosuid,nodev,noexec nccl-inspector /run/nccl-inspector
	mkdir -m 0711 /run/nccl-inspector/jobs
	mkdir -m 0700 /run/nccl-inspector/ended
	mkdir -m 0755 /run/nccl-inspector/prom /run/nccl-inspector/control
	[ ! -d /proc/driver ] || mount --bind "$own/driver" /proc/driver
fi

setsid sleep infinity </dev/null >/dev/null 2>&1 &
echo $!
