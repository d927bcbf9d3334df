#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# 50-nccl-inspector.sh - let a measured job's container write where the node's agent reads.
#
# Enroot runs it as the job's user, before it changes the root. If a hook fails, the container does
# not start, so this one always exits 0. In a container of a job that is not measured it does
# nothing: then the SPANK plugin has not set the marker NCCL_INSPECTOR_SET_BY_SLURM.
trap 'exit 0' EXIT HUP INT PIPE TERM
set -fu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
marker=${NCCL_INSPECTOR_SET_BY_SLURM-} dir=${NCCL_INSPECTOR_RUN_DIR-}
case $marker in "${SLURM_JOB_ID-none} "*) ;; *) exit 0 ;; esac

# Enroot refuses to start if a line of fstab is invalid, so the path must be plain.
case $dir in
*[!A-Za-z0-9._/-]*) ;;
/*/jobs/"$SLURM_JOB_ID"/raw)
	if [ -d "$dir" ]; then
		echo "$dir $dir none x-create=dir,bind,rw,nosuid,nodev,noexec,private,nofail,silent 0 0" \
			>>"$ENROOT_MOUNTS"
	fi
	;;
esac 2>/dev/null

# Enroot hands on only its own list of variables, which begins with those of the image. Add what the
# SPANK plugin has set, unless the user or the site has told Enroot a value (--env, environ.d): then
# the list has the variable more often than the image. Of several values the last one counts. Pyxis
# gives each task its own SLURM variables itself.
slurm='SLURM_JOB_ID SLURM_STEP_ID SLURM_PROCID SLURM_LOCALID SLURMD_NODENAME'
if [ -n "${PYXIS_RUNTIME_PATH-}" ]; then slurm=''; fi
image=$ENROOT_ROOTFS/etc/environment
[ -f "$image" ] || image=/dev/null
added=$(awk -v slurm="$slurm" '
	match($0, /^[ \t]*[A-Z_]+=/) {
		name = substr($0, 1, RLENGTH - 1)
		sub(/^[ \t]*/, "", name)
		number[part, name]++
	}
	END {
		marker = "NCCL_INSPECTOR_SET_BY_SLURM"
		count = split(ENVIRON[marker] " " marker " " slurm, words, " ")
		for (i = 2; i <= count; i++) {
			name = words[i]
			sub(/:.*/, "", name)
			if ((name in ENVIRON) && ENVIRON[name] !~ /[\001-\037]/ &&
			    number["image", name] == number["all", name])
				print name "=" ENVIRON[name]
		}
	}' part=image "$image" part=all "$ENROOT_ENVIRON") 2>/dev/null
if [ -n "$added" ]; then echo "$added" >>"$ENROOT_ENVIRON"; fi 2>/dev/null
