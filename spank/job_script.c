// SPDX-License-Identifier: Apache-2.0
/* job_script.c - the callbacks before and after each job on a node: they run the two hook scripts.
 *
 * slurmd starts `slurmstepd spank prolog` and `slurmstepd spank epilog` as root, if it found these
 * callbacks when it started itself. A node without this library has no callbacks and runs nothing.
 * So the hooks need no line in slurm.conf; with such a line, Slurm would drain every node where the
 * package is missing. slurmd drains a node if its callback crashes or hangs; hooks.h says why these
 * callbacks cannot. They may call only spank_get_item; slurm_spank_init has not been called.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <slurm/spank.h>

#include "hooks.h"
#include "options.h"

#define PREFIX "nccl-inspector: "
#define HOOK_NAME "50-nccl-inspector.sh"
/* The scripts take some milliseconds. If a site has set PrologEpilogTimeout, that is longer. */
#define DEADLINE_MS 5000u

struct hook {
	const char *kind; /* "prolog" or "epilog": the directory with the script */
	uint32_t job_id;
	int word_count; /* of `words`, from the line in plugstack.conf */
	char **words;
};

/* Runs in the child. A job whose prolog ran needs its epilog, even if the configuration has become
 * invalid since; then the default directory is used. */
static void become_hook(void *arg)
{
	const struct hook *hook = arg;
	char why[SETTINGS_WHY_BYTES], path[SETTINGS_TEXT_BYTES + sizeof("/prolog/" HOOK_NAME)];
	struct settings settings;
	int rc;

	options_load_site(&settings, hook->word_count, hook->words, why);
	snprintf(path, sizeof(path), "%s/%s/" HOOK_NAME, settings.hooks, hook->kind);
	rc = hooks_become(path);
	/* A site may decide to have no script; then steps of a measured job log that. */
	if (rc == -ENOENT)
		slurm_debug(PREFIX "job %" PRIu32 ": there is no %s", hook->job_id, path);
	else
		slurm_error(PREFIX "job %" PRIu32 ": cannot run %s: %s", hook->job_id, path,
		            strerror(-rc));
}

/* Always returns success, because a job without metrics is better than a drained node. */
static int run_hook(spank_t spank, const char *kind, int word_count, char **words)
{
	struct hook hook = { .kind = kind, .word_count = word_count, .words = words };
	int rc;

	if (spank_get_item(spank, S_JOB_ID, &hook.job_id) != ESPANK_SUCCESS)
		hook.job_id = 0;
	rc = hooks_run(become_hook, &hook, DEADLINE_MS);
	if (rc == -ETIME)
		slurm_error(PREFIX "job %" PRIu32 ": the %s hook was killed after %u s",
		            hook.job_id, kind, DEADLINE_MS / 1000u);
	else if (rc < 0)
		slurm_error(PREFIX "job %" PRIu32 ": cannot run the %s hook: %s", hook.job_id, kind,
		            strerror(-rc));
	else if (rc > 0)
		slurm_error(PREFIX "job %" PRIu32 ": the %s hook ended with wait status %#x",
		            hook.job_id, kind, (unsigned int)rc);
	return ESPANK_SUCCESS;
}

int slurm_spank_job_prolog(spank_t spank, int ac, char **av)
{
	return run_hook(spank, "prolog", ac, av);
}

int slurm_spank_job_epilog(spank_t spank, int ac, char **av)
{
	return run_hook(spank, "epilog", ac, av);
}
