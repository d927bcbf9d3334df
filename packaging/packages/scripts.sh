# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# What the packages' scripts do; build.py takes the parts that a package needs, and puts values above
# and a call below. No step fails a transaction: a half-configured package helps nobody. There is
# nothing to do for running jobs: what they have loaded stays with them, and so do their files.
#---
# The directories in $compile have Python source.
each_python() { # only releases that the command may choose
	for python in /usr/bin/python3.1[1-9]; do
		[ ! -x "$python" ] || "$python" "$@" || :
	done
}

compiled() {
	forget_compiled
	for dir in $compile; do
		each_python -I -m compileall -q "$dir"
	done
}

forget_compiled() {
	for dir in $compile; do
		[ ! -d "$dir" ] || find "$dir" -name __pycache__ -prune -exec rm -rf {} +
	done
}
#---
# $units are services and timers; $late_units are mounts, which stay while they have files of jobs;
# $preset is the role of which setup wrote a preset; $restarts are services of other packages that run this one's code.
is_booted() { [ -d /run/systemd/system ]; }

reload() {
	! is_booted || systemctl daemon-reload || :
}

restart() { # those that run
	if is_booted; then
		for unit in $units $restarts; do systemctl try-restart "$unit" || :; done
	fi
}

has_jobs() {
	[ -n "$(find /run/nccl-inspector/jobs /run/nccl-inspector/ended -mindepth 1 -maxdepth 1 2>/dev/null)" ]
}

stop() {
	# Written by setup beside the links, so that no first boot takes them away.
	[ -z "$preset" ] || find /etc/systemd/system-preset -name "70-nccl-inspector-$preset.preset" -delete 2>/dev/null || :
	command -v systemctl >/dev/null || return 0
	for unit in $units $late_units; do
		systemctl --quiet --no-reload disable "$unit" 2>/dev/null || :
	done
	is_booted || return 0
	for unit in $units; do systemctl stop "$unit" 2>/dev/null || :; done
	[ -n "$late_units" ] || return 0
	if has_jobs; then
		echo "/run/nccl-inspector stays mounted until the next boot: it has files of jobs"
		return 0
	fi
	for unit in $late_units; do systemctl stop "$unit" 2>/dev/null || :; done
	rmdir /run/nccl-inspector 2>/dev/null || :
}
#---
# The library is still there, and Slurm's commands read plugstack.conf anew each time they start.
unplug() {
	[ ! -x /usr/lib/nccl-inspector/unplug ] || /usr/lib/nccl-inspector/unplug || :
}
#---
installed() { # with a word if it takes the place of another version
	compiled
	reload
	[ -z "${1-}" ] || restart
}
before_upgrade() { forget_compiled; }
before_removal() {
	forget_compiled
	stop
}
removed() { reload; }
