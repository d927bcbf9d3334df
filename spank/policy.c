// SPDX-License-Identifier: Apache-2.0
#include "policy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether a comma-separated list has this word. */
static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (; *list; list += strcspn(list, ","), list += *list == ',')
		if (strcspn(list, ",") == len && !strncmp(list, word, len))
			return true;
	return false;
}

const char *policy_refusal(const struct settings *settings, const struct policy_job *job)
{
	uint64_t gpus;

	if (*settings->partitions && !has_word(settings->partitions, job->partition))
		return "the site's default is not for its partition";
	if (*settings->qos && !*job->qos)
		return "the site's default is for some QOS, and Slurm does not tell the job's";
	if (*settings->qos && !has_word(settings->qos, job->qos))
		return "the site's default is not for its QOS";
	if (!__builtin_mul_overflow(job->gpus, job->nodes, &gpus) && gpus < settings->min_gpus)
		return "the site's default is for jobs with more GPUs";
	if (settings->sample > 1 && job->id % settings->sample)
		return "the site's default is for one job in several, and this is another";
	return NULL;
}

/* Returns the value in a line `key=value`, up to the newline; NULL if there is no such line. */
static const char *find_value(const char *text, const char *key)
{
	size_t len = strlen(key);

	for (; text; text = strchr(text, '\n'), text = text ? text + 1 : NULL)
		if (!strncmp(text, key, len) && text[len] == '=')
			return text + len + 1;
	return NULL;
}

static uint64_t find_number(const char *text, const char *key)
{
	const char *value = find_value(text, key);

	return value && *value >= '0' && *value <= '9' ? strtoull(value, NULL, 10) : 0;
}

/* Counts the devices in SLURM_JOB_GPUS, which is like `0,1,4-7`. */
static uint64_t count_gpus(const char *list)
{
	uint64_t count = 0;

	while (list && *list >= '0' && *list <= '9') {
		char *end;
		uint64_t first = strtoull(list, &end, 10), last = first;

		if (*end == '-' && end[1] >= '0' && end[1] <= '9')
			last = strtoull(end + 1, &end, 10);
		count += last >= first && last - first < UINT16_MAX ? last - first + 1 : 1;
		list = *end == ',' ? end + 1 : NULL;
	}
	return count;
}

/* Copies a value, which ends at its newline. Returns whether there is room for it. */
static bool copy_value(char out[SETTINGS_TEXT_BYTES], const char *value)
{
	size_t len = strcspn(value, "\n");

	if (len >= SETTINGS_TEXT_BYTES)
		return false;
	memcpy(out, value, len);
	out[len] = '\0';
	return true;
}

int policy_parse_manifest(struct policy_job *job, const char *text)
{
	static const char end[] = "\nend\n";
	const char *partition = find_value(text, "partition");
	const char *qos = find_value(text, "qos"); /* not in that of an older prolog */
	size_t len = strlen(text);

	if (len < strlen(end) || strcmp(text + len - strlen(end), end) != 0 || !partition ||
	    !copy_value(job->partition, partition) || !copy_value(job->qos, qos ? qos : ""))
		return -EINVAL;
	job->id = find_number(text, "het_job_id");
	if (!job->id)
		job->id = find_number(text, "job_id");
	job->nodes = find_number(text, "num_nodes");
	if (!job->nodes)
		job->nodes = 1;
	job->restart = find_number(text, "restart");
	job->gpus = count_gpus(find_value(text, "gpus"));
	return 0;
}

/* Returns the text of a file, to be freed by the caller; NULL with errno set on an error. */
static char *read_text(int fd)
{
	struct stat st;
	ssize_t len;
	char *text;

	if (fstat(fd, &st))
		return NULL;
	if (!S_ISREG(st.st_mode) || st.st_size > POLICY_MANIFEST_MAX_BYTES) {
		errno = EINVAL;
		return NULL;
	}
	text = malloc((size_t)st.st_size + 1);
	if (!text)
		return NULL;
	len = pread(fd, text, (size_t)st.st_size, 0);
	text[len > 0 ? len : 0] = '\0';
	return text;
}

int policy_read_manifest(struct policy_job *job, const char *path)
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char *text;
	int rc;

	if (fd < 0)
		return -errno;
	text = read_text(fd);
	rc = text ? policy_parse_manifest(job, text) : -errno;
	free(text);
	close(fd);
	return rc;
}
