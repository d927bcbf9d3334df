// SPDX-License-Identifier: Apache-2.0
/* For which jobs a site's default is, by what the manifest says; odd manifests first. */
#include "policy.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WHOLE                                                                                      \
	"format=1\njob_id=811\nuid=1000\nrestart=2\npartition=gpu\nqos=high\nnum_nodes=2\ngpus=0," \
	"1,2,3\n"                                                                                  \
	"het_job_id=\nwork_dir=/home/me\nend\n"

static struct policy_job job;

static void test_odd_manifests(void)
{
	static const char *const cases[] = {
		"",
		"end\n",
		"format=1\njob_id=811\npartition=gpu\n",
		"job_id=811\npartition=gpu\nend",
		"job_id=811\nend\n",
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		ok(policy_parse_manifest(&job, cases[i]) == -EINVAL, "refused: odd manifest %zu",
		   i);
	ok(policy_parse_manifest(&job, "job_id=x\npartition=\ngpus=no\nnum_nodes=-3\nend\n") == 0 &&
	       !job.id && !job.gpus && job.nodes == 1 && !*job.partition,
	   "what is no number counts as none");
	ok(policy_parse_manifest(&job, "partition=\ngpus=9-3,1\nnum_nodes=1\nend\n") == 0 &&
	       job.gpus == 2,
	   "a range that runs backwards is one device");
}

static void test_manifests(void)
{
	ok(!policy_parse_manifest(&job, WHOLE) && job.id == 811 && job.gpus == 4 &&
	       job.nodes == 2 && job.restart == 2 && !strcmp(job.partition, "gpu") &&
	       !strcmp(job.qos, "high"),
	   "a manifest says partition, QOS, nodes and GPUs");
	ok(!policy_parse_manifest(&job, "partition=p\nend\n") && !*job.qos,
	   "the manifest of an older prolog has no QOS");
	ok(!policy_parse_manifest(&job, "het_job_id=800\njob_id=801\npartition=gpu\nend\n") &&
	       job.id == 800,
	   "a component counts under the id of its het job");
	ok(!policy_parse_manifest(&job, "partition=p\ngpus=0-3,6\nend\n") && job.gpus == 5,
	   "GPUs may be ranges");
	ok(!policy_parse_manifest(&job, "partition=p\ngpus=\nend\n") && !job.gpus, "or none");
}

static bool included(const char *key, const char *value)
{
	struct settings settings;
	char why[SETTINGS_WHY_BYTES];

	settings_init(&settings);
	ok(!policy_refusal(&settings, &job), "without settings the default is for all");
	ok(!settings_set(&settings, SETTING_SCOPE_SITE, key, value, why), "%s=%s", key, value);
	return !policy_refusal(&settings, &job);
}

static void test_policies(void)
{
	policy_parse_manifest(&job, WHOLE);
	ok(included("partitions", "gpu") && included("partitions", "debug,gpu,long"),
	   "the job's partition is in the list");
	ok(!included("partitions", "debug") && !included("partitions", "gpu2,xgpu,gp") &&
	       !included("partitions", ","),
	   "the job's partition is not in the list");
	ok(included("qos", "high") && included("qos", "normal,high") &&
	       !included("qos", "hig,highest"),
	   "the job's QOS is in the list or not");
	ok(included("min_gpus", "8") && !included("min_gpus", "9"),
	   "four GPUs on each of two nodes are eight");
	ok(included("sample", "811") && !included("sample", "2"), "one job in k has k in its id");
	job.qos[0] = '\0';
	ok(!included("qos", "high"), "a QOS that Slurm does not tell is in no list");
	job.gpus = UINT64_MAX;
	ok(included("min_gpus", "9"), "a number beyond all bounds is enough");
}

static void test_files(void)
{
	char dir[] = "/tmp/test_policy.XXXXXX", path[64], link[64];
	FILE *file;

	ok(mkdtemp(dir) != NULL, "a directory of our own");
	snprintf(path, sizeof(path), "%s/manifest", dir);
	snprintf(link, sizeof(link), "%s/link", dir);
	ok(policy_read_manifest(&job, path) == -ENOENT, "there may be no manifest");
	file = fopen(path, "w");
	ok(file && fputs(WHOLE, file) >= 0 && !fclose(file) && !symlink(path, link),
	   "a manifest and a link to it");
	ok(!policy_read_manifest(&job, path) && job.gpus == 4, "a manifest is read");
	ok(policy_read_manifest(&job, link) == -ELOOP, "not through a link");
	ok(policy_read_manifest(&job, dir) == -EINVAL, "not a directory");
	ok(!truncate(path, 1ll << 30) && policy_read_manifest(&job, path) == -EINVAL,
	   "not one of 1 GB");
	unlink(path);
	ok(!mkfifo(path, 0600) && policy_read_manifest(&job, path) == -EINVAL,
	   "not a FIFO, and without waiting");
	unlink(path);
	unlink(link);
	rmdir(dir);
}

int main(void)
{
	test_odd_manifests();
	test_manifests();
	test_policies();
	test_files();
	return done_testing();
}
