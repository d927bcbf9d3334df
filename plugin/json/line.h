/* SPDX-License-Identifier: Apache-2.0 */
/* json/line.h - a finished operation as one line of JSON.
 *
 * The keys of NVIDIA's Inspector (its format v4.0) come first in each object, with its names and
 * types; after them ours, which packaging/doc lists. What is the same for all operations of a
 * communicator is rendered once.
 */
#ifndef NCCL_INSPECTOR_JSON_LINE_H
#define NCCL_INSPECTOR_JSON_LINE_H

#include "hot/jsonring.h"

#define JSON_NAME_BYTES 255u /* of a communicator's name; the rest is cut at a character */

struct json_process { /* the same in every line */
	const char *hostname, *node, *cluster, *version;
	uint64_t job_id;          /* 0: not in a job */
	uint32_t step_id, procid; /* UINT32_MAX: not known */
	uint32_t pid;
};

struct json_comm_fields {
	unsigned comm; /* index of box->comms */
	uint32_t generation;
	uint64_t id;
	const char *name; /* NULL or any bytes: the application's */
	int nranks, nnodes, rank;
	bool unnamed;         /* id, name and rank come with the first event (NCCL up to 2.26) */
	const char *gpu_uuid; /* "" when the driver did not tell */
};

struct json_comm {
	struct json_comm *next; /* of its keeper */
	unsigned comm;
	uint32_t generation;
	int nranks;
	bool unnamed;
	size_t head_length, tail_length;
	/* The line up to the value of dump_timestamp_us; what comes after that value. */
	char text[];
};

/* Numbers that change from batch to batch. */
struct json_batch {
	uint64_t now_tick, now_real_ns, ns_per_tick_q32;
	uint64_t lines_dropped; /* since the process began */
	/* The same: without a time, so without a line; of any size. */
	uint64_t operations_unmeasured;
};

/* Renders what lines say of a communicator. Returns NULL without memory; to be freed with free().
 * Any thread. */
struct json_comm *json_comm_new(const struct json_process *process,
                                const struct json_comm_fields *fields);

/* Returns how many bytes a line of this communicator needs at most; `trace` may be NULL. */
size_t json_line_room(const struct json_comm *comm, const struct trace_op *trace);

/* Writes the line of an operation, with its newline, and returns its end. The caller has seen to
 * json_line_room bytes; `trace` may be NULL. */
char *json_line(char *to, const struct json_record *record, const struct json_comm *comm,
                const struct json_batch *batch, const struct trace_op *trace);

/* Writes the inside of a string: escaped, and with U+FFFD for each byte that is not part of UTF-8.
 * Takes at most `bytes` bytes of `from`, and no half character; each needs six bytes of room.
 * Returns the end. */
#define JSON_ESCAPED_ROOM(bytes) ((bytes) * 6u)
char *json_escape(char *to, const char *from, size_t bytes);

#endif
