/* SPDX-License-Identifier: Apache-2.0 */
/* jsonbox.h - for the tests of the JSON thread: a box, a writer, a directory, and what is in the
 * files. */
#ifndef NCCL_INSPECTOR_JSONBOX_H
#define NCCL_INSPECTOR_JSONBOX_H

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "json/writer.h"
#include "tap.h"

static char base[64];
static struct box_header header;
static struct box_comm comms[BOX_COMMS];
static struct box box = { .header = &header, .comms = comms };
static struct jsonwriter writer;
static _Atomic unsigned logged;
static const char *variables[4][2];

static void count_log(const char *message)
{
	(void)message;
	logged++;
}

static const char *environment(const char *name)
{
	if (!strcmp(name, "NCCL_INSPECTOR_DUMP_DIR"))
		return base;
	for (unsigned i = 0; i < 4; i++)
		if (variables[i][0] && !strcmp(variables[i][0], name))
			return variables[i][1];
	return strcmp(name, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS") ? NULL : "0";
}

static void add_comm(unsigned comm, uint32_t generation)
{
	jsonwriter_add_comm(&writer, &(struct json_comm_fields){ .comm = comm,
	                                                         .generation = generation,
	                                                         .id = comm + 1,
	                                                         .name = "c",
	                                                         .nranks = 2,
	                                                         .gpu_uuid = "" });
}

/* A writer with one more variable set, and communicators 0 and 1 in their use 1. */
static void begin(struct config *config)
{
	logged = 0;
	atomic_store(&header.self_ns, 0);
	atomic_store(&header.json_lines, 0);
	atomic_store(&header.dropped[BOX_DROP_JSON], 0);
	config_load(config, environment);
	ok(jsonwriter_open(&writer, config, &box, count_log) == 0 && jsonwriter_start(&writer) == 0,
	   "begun");
	add_comm(0, 1);
	add_comm(1, 1);
}

static uint64_t now_ms(void)
{
	return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

static uint64_t end(unsigned wait_ms)
{
	uint64_t from = now_ms();

	thread_ask_to_stop(&writer.thread);
	thread_wait(&writer.thread, clock_ns(CLOCK_MONOTONIC) + wait_ms * 1000000ull);
	return now_ms() - from;
}

static void leave(void)
{
	glob_t found;
	char pattern[128];

	end(30000);
	jsonring_free(&writer.ring);
	snprintf(pattern, sizeof(pattern), "%s/*", base);
	if (glob(pattern, 0, NULL, &found) == 0) {
		for (size_t i = 0; i < found.gl_pathc; i++)
			remove(found.gl_pathv[i]);
		globfree(&found);
	}
	memset(variables, 0, sizeof(variables));
}

struct timeline {
	uint64_t lines, bad, dropped, sum, bytes;
};

static void read_lines(const char *path, struct timeline *found)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t length;
	FILE *file = fopen(path, "r");

	while (file && (length = getline(&line, &room, file)) > 0) {
		const char *dropped = strstr(line, "\"lines_dropped\":"),
			   *number = strstr(line, "_sn\":");
		bool good = !strncmp(line, "{\"header\":{", 11) &&
		            !strcmp(line + length - 3, "}}\n") && dropped && number;

		found->lines++;
		found->bad += !good;
		found->dropped = dropped ? strtoull(dropped + 16, NULL, 10) : 0;
		found->sum += number ? strtoull(number + 5, NULL, 10) : 0;
		found->bytes += (uint64_t)length;
	}
	free(line);
	if (file)
		fclose(file);
}

/* All files of this process, in the order of their numbers (at most ten). */
static struct timeline in_files(void)
{
	struct timeline found = { 0 };
	char path[320];

	for (unsigned number = 0; number < 10; number++) {
		snprintf(path, sizeof(path), number ? "%s/%s.%u.log" : "%s/%s.log", base,
		         writer.file.stem, number);
		read_lines(path, &found);
	}
	return found;
}

static bool push(unsigned comm, uint32_t generation, uint64_t sequence)
{
	const struct json_record record = { .enqueue_tick = 1,
	                                    .end_tick = 2,
	                                    .gpu_start_ns = 5,
	                                    .time_ns = 1000,
	                                    .bytes = 1 << 20,
	                                    .sequence = sequence,
	                                    .kind = BOX_FUNC_ALLREDUCE,
	                                    .peer = -1,
	                                    .comm = (uint16_t)comm,
	                                    .comm_generation = generation };

	return jsonring_push(&writer.ring, &record, NULL);
}

/* The box's account: every operation that was taken is in the file, or counted. */
static void check_account(uint64_t pushed, const char *when)
{
	struct timeline found = in_files();
	uint64_t lines = atomic_load(&header.json_lines),
		 dropped = atomic_load(&header.dropped[BOX_DROP_JSON]);

	ok(lines == found.lines && lines + dropped == pushed && !found.bad,
	   "%s: %llu lines, %llu counted, %llu operations", when, (unsigned long long)found.lines,
	   (unsigned long long)dropped, (unsigned long long)pushed);
}

#endif
