#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 50-nccl-inspector.sh - move a job's directory to ended/, where the agent collects it.
#
# The SPANK plugin runs this script as root after a job's last task. A site may run it as Epilog in
# slurm.conf instead; then the node drains if it exits non-zero. So it always exits 0. It looks only
# at the directory, never at a variable that a user can set. If there is no directory (mode off, no
# prolog, a second run), it does nothing and logs nothing. The script is plain sh because every job
# waits for it, and dash starts five times faster than bash.
trap 'exit 0' EXIT HUP INT PIPE TERM
set -fu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
run_dir=${NCCL_INSPECTOR_TEST_RUN_DIR:-/run/nccl-inspector} # only tests set the variable
job=${SLURM_JOB_ID-} trouble=''

log() {
	line=$(printf 'job %.20s: %.800s' "$job" "$1" | tr -c ' -~' '?')
	printf 'nccl-inspector-epilog: %s\n' "$line" >&2
	timeout 1 logger -t nccl-inspector-epilog -p daemon.warning -- "$line" 2>/dev/null
}

# Moves the directory to an unused name in ended/, even if the clock stands still or was set back.
hand_over() {
	# shellcheck disable=SC3028 # bash 5 has it; others ask date
	now=${EPOCHREALTIME:-$(date +%s.%6N)}
	now=${now%.*}${now#*.}000
	case $now in 0* | *[!0-9]* | ????????????????????*) now=1 ;; esac
	while [ -e "$run_dir/ended/$job.$now" ]; do now=$((now + 1)); done
	mv -T -- "$dir" "$run_dir/ended/$job.$now" 2>&1
}

case $job in '' | *[!0-9]* | 0?* | ???????????*)
	log "SLURM_JOB_ID is not a number"
	exit 0
	;;
esac
dir=$run_dir/jobs/$job prom=$run_dir/prom/$job.prom
if [ -L "$dir" ] || { [ -e "$dir" ] && [ ! -d "$dir" ]; }; then
	trouble="$dir stays: it is not a directory. "
elif [ -d "$dir" ]; then
	# The agent may have moved it meanwhile. Only after a failure it is done a second time, to
	# get the reason: that needs a subshell, which would delay every job.
	hand_over >/dev/null || [ ! -e "$dir" ] || reason=$(hand_over) ||
		trouble="the job's files stay: $reason. "
fi
# This comes after the rename, because the agent checks for the directory again when it has
# published a file.
if [ -e "$prom" ]; then
	rm -f -- "$prom" 2>/dev/null || reason=$(rm -f -- "$prom" 2>&1) ||
		trouble="${trouble}the job's series stay: $reason"
fi
[ -z "$trouble" ] || log "$trouble"
