/* SPDX-License-Identifier: Apache-2.0 */
/* policy.h - decide whether the site's default applies to a job that asked for nothing.
 *
 * The decision uses the manifest, which the prolog wrote as root. So every step of a job gets the
 * same answer, whatever is in the job's environment. Only the QOS is the environment's if slurmd
 * did not tell it to the prolog.
 */
#ifndef NCCL_INSPECTOR_POLICY_H
#define NCCL_INSPECTOR_POLICY_H

#include "settings.h"

#define POLICY_MANIFEST_MAX_BYTES (1u << 20)

/* What a manifest says about a job. */
struct policy_job {
	uint64_t id;   /* of a heterogeneous job the leader's, so that all components are alike */
	uint64_t gpus; /* on this node */
	uint64_t nodes;
	uint64_t restart; /* 0: the first attempt */
	char partition[SETTINGS_TEXT_BYTES];
	char qos[SETTINGS_TEXT_BYTES]; /* empty: slurmd did not tell it (before Slurm 26.05) */
};

/* Returns NULL if the default applies to this job, else a short text that says why not. */
const char *policy_refusal(const struct settings *settings, const struct policy_job *job);

/* Reads what is needed from a manifest's text. Returns 0, or -EINVAL if the text is incomplete. */
int policy_parse_manifest(struct policy_job *job, const char *text);

/* Reads a manifest, which must be a regular file. Returns 0 or -errno. */
int policy_read_manifest(struct policy_job *job, const char *path);

#endif
