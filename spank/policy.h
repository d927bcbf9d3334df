/* SPDX-License-Identifier: Apache-2.0 */
/* policy.h - whether the site's default is for a job that asked for nothing.
 *
 * It goes by the manifest that the prolog wrote as root, so that every step of a job
 * gets the same answer, whatever is in the job's environment.
 */
#ifndef NCCL_INSPECTOR_POLICY_H
#define NCCL_INSPECTOR_POLICY_H

#include "settings.h"

#define POLICY_MANIFEST_MAX_BYTES (1u << 20)

/* What a manifest says of a job. */
struct policy_job {
	uint64_t id;   /* of a het job's component: the leader's, so that all are treated alike */
	uint64_t gpus; /* of this node */
	uint64_t nodes;
	uint64_t restart; /* 0: the first attempt */
	char partition[SETTINGS_TEXT_BYTES];
};

/* Returns NULL when the default is for this job, else why it is not, in a few words. */
const char *policy_refusal(const struct settings *settings, const struct policy_job *job);

/* Takes what is needed from a manifest's text. Returns 0, or -EINVAL when it is not whole. */
int policy_parse_manifest(struct policy_job *job, const char *text);

/* Reads a manifest, a regular file of root's. Returns 0 or -errno. */
int policy_read_manifest(struct policy_job *job, const char *path);

#endif
