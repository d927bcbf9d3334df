/* SPDX-License-Identifier: Apache-2.0 */
#include "json/writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/directory.h"
#include "base/number.h"
#include "base/printable.h"

#define relaxed memory_order_relaxed
#define RING_LOG2 14u         /* 1 MiB: 0.8 s at 20,000 operations a second */
#define RING_LOG2_VERBOSE 11u /* a trace is 1.6 KB */
#define BUFFER_BYTES JSONWRITER_BUFFER_BYTES
#define DRAIN_NS 100000000ull
#define DRAIN_NS_VERBOSE 20000000ull
/* Where a round found little: to wake costs as much as the lines of 50 operations. A burst of up to
 * 65,000 operations a second still fits into the ring. */
#define DRAIN_NS_CALM 250000000ull
#define CALM_SHARE 16u /* of the ring */
#define RETRY_NS 1000000000ull
#define BATCH 256u          /* lines with one look at the clocks */
#define LAST_NS 10000000ull /* of the wait at exit: for the write that is under way */

static void name_host(struct jsonwriter *writer)
{
	char host[sizeof(writer->hostname)] = "";

	gethostname(host, sizeof(host) - 1);
	printable_copy(writer->hostname, sizeof(writer->hostname), host);
}

static void name_file(struct jsonwriter *writer, const struct config *config)
{
	char dir[sizeof(writer->file.dir)], stem[sizeof(writer->file.stem)];

	/* Later changes of the working directory must not move the files. */
	snprintf(dir, sizeof(dir), "%s", config->json_dir);
	directory_absolute(dir, sizeof(dir));
	snprintf(stem, sizeof(stem), "%s-pid%d", writer->hostname, (int)getpid());
	for (char *c = strchr(stem, '/'); c; c = strchr(c, '/'))
		*c = '_';
	jsonfile_init(&writer->file, dir, stem);
	writer->file.files = config->json_files;
	writer->file.file_bytes = config->json_max_bytes / config->json_files;
}

static void *writer_main(void *argument);

int jsonwriter_open(struct jsonwriter *writer, const struct config *config, const struct box *box,
                    void (*log)(const char *message))
{
	unsigned log2_count = config->verbose ? RING_LOG2_VERBOSE : RING_LOG2;

	memset(writer, 0, offsetof(struct jsonwriter, buffer));
	atomic_store(&writer->idle, true);
	writer->box = box;
	writer->log = log;
	writer->interval_ns = (uint64_t)config->json_interval_us * 1000;
	name_host(writer);
	name_file(writer, config);
	writer->process = (struct json_process){
		.hostname = writer->hostname,
		.node = config->node,
		.cluster = config->cluster,
		.version = NCCL_INSPECTOR_VERSION,
		.job_id = config->job_id,
		.step_id = config->step_id,
		.procid = config->procid,
		.pid = (uint32_t)getpid(),
	};
	thread_init(&writer->thread, writer_main, writer);
	if (jsonring_open(&writer->ring, log2_count, config->json_min_bytes, config->verbose,
	                  &box->header->dropped[BOX_DROP_JSON]))
		return -ENOMEM;
	if (config->json_gzip) {
		writer->file.gzip = gzip_open();
		if (!writer->file.gzip)
			log("libz.so.1 cannot be loaded: the JSON lines are not compressed");
	}
	return 0;
}

void jsonwriter_add_comm(struct jsonwriter *writer, const struct json_comm_fields *fields)
{
	jsoncomms_add(&writer->comms, json_comm_new(&writer->process, fields));
}

/* What has no line because it has no time. Figures move between records while communicators come
 * and go; the sum of all only grows. */
static uint64_t count_unmeasured(const struct jsonwriter *writer)
{
	static const enum box_drop reasons[] = { BOX_DROP_NO_SLOT, BOX_DROP_NO_COMM,
	                                         BOX_DROP_EXPIRED, BOX_DROP_IMPLAUSIBLE };
	const struct box *box = writer->box;
	uint64_t sum = 0;

	for (unsigned i = 0; i < sizeof(reasons) / sizeof(*reasons); i++)
		sum += atomic_load_explicit(&box->header->dropped[reasons[i]], relaxed);
	for (unsigned i = 0; i < BOX_COMMS; i++)
		if (atomic_load_explicit(&box->comms[i].state, relaxed) != BOX_COMM_FREE)
			sum += atomic_load_explicit(&box->comms[i].untimed, relaxed);
	return sum > writer->unmeasured ? sum : writer->unmeasured;
}

static uint64_t lines_dropped(const struct jsonwriter *writer)
{
	return atomic_load_explicit(&writer->box->header->dropped[BOX_DROP_JSON], relaxed);
}

static void begin_batch(struct jsonwriter *writer, struct json_batch *batch)
{
	batch->now_tick = clock_ticks();
	batch->now_real_ns = clock_ns(CLOCK_REALTIME);
	batch->ns_per_tick_q32 = writer->box->header->clock.ns_per_tick_q32;
	batch->lines_dropped = lines_dropped(writer);
	batch->operations_unmeasured = writer->unmeasured = count_unmeasured(writer);
}

/* Settled first: who counts at exit what is not settled counts nothing twice. */
static void drop(struct jsonwriter *writer, uint64_t lines)
{
	atomic_fetch_add(&writer->settled, lines);
	atomic_fetch_add(&writer->box->header->dropped[BOX_DROP_JSON], lines);
}

/* Turns at most a batch of operations into lines, as far as there is room for lines. False when
 * none is left. */
static bool drain_batch(struct jsonwriter *writer)
{
	const struct trace_op *trace;
	struct json_record record;
	struct json_batch batch;

	begin_batch(writer, &batch);
	for (unsigned i = 0; i < BATCH; i++) {
		if (!jsonring_peek(&writer->ring, &record)) {
			jsoncomms_trim(&writer->comms);
			return false;
		}
		const struct json_comm *comm =
		    jsoncomms_find(&writer->comms, record.comm, record.comm_generation);

		if (comm) {
			char *to = writer->buffer + writer->length;

			trace = jsonring_trace(&writer->ring);
			if (json_line_room(comm, trace) > BUFFER_BYTES - writer->length)
				return true;
			writer->length +=
			    (size_t)(json_line(to, &record, comm, &batch, trace) - to);
		} else {
			drop(writer, 1);
			batch.lines_dropped = lines_dropped(writer);
		}
		jsonring_release(&writer->ring);
	}
	return true;
}

static void log_failure(struct jsonwriter *writer, int error)
{
	char message[512];

	if (!writer->failing) {
		snprintf(
		    message, sizeof(message),
		    "cannot write JSON lines to %.380s: %s; the newest are dropped until it can",
		    writer->file.dir, strerror(-error));
		writer->log(message);
	}
	writer->failing = true;
}

/* As many as fit into the room; one that does not fit is for the file to refuse. `end` is after the
 * last newline. */
static size_t whole_lines(const char *lines, const char *end, size_t room)
{
	const char *newline = end - 1;

	if ((size_t)(end - lines) > room)
		newline = memrchr(lines, '\n', room);
	if (!newline)
		newline = memchr(lines, '\n', (size_t)(end - lines));
	return newline ? (size_t)(newline - lines) + 1 : 0;
}

static uint64_t count_lines(const char *lines, size_t length)
{
	const char *end = lines + length;
	uint64_t count = 0;

	while ((lines = memchr(lines, '\n', (size_t)(end - lines)))) {
		lines++;
		count++;
	}
	return count;
}

/* Around what the end of the process must not cut in two. False when that has begun. */
static bool enter(struct jsonwriter *writer)
{
	atomic_store(&writer->inside, true);
	if (!atomic_load(&writer->closed))
		return true;
	atomic_store(&writer->inside, false);
	return false;
}

/* Returns 0 or -errno; -ECANCELED at the end of the process. */
static int write_lines(struct jsonwriter *writer, const char *lines, size_t length)
{
	int error;

	if (!enter(writer))
		return -ECANCELED;
	error = jsonfile_write(&writer->file, lines, length);
	/* else: it took so long that it is counted as lost. */
	if (!error && !atomic_load(&writer->counted)) {
		uint64_t count = count_lines(lines, length);

		atomic_fetch_add(&writer->settled, count);
		atomic_fetch_add(&writer->box->header->json_lines, count);
	}
	atomic_store(&writer->inside, false);
	return error;
}

/* Writes the buffer, whole lines at a time. False when it could not. */
static bool flush(struct jsonwriter *writer, uint64_t now_ns)
{
	const char *at = writer->buffer, *end = at + writer->length;
	int error = 0;

	while (at < end && !error) {
		size_t chunk = whole_lines(
		    at, end, jsonfile_room(&writer->file, atomic_load(&writer->ending)));

		error = write_lines(writer, at, chunk);
		at += error ? 0 : chunk;
	}
	writer->length = (size_t)(end - at);
	memmove(writer->buffer, at, writer->length);
	if (error)
		writer->retry_ns = now_ns + RETRY_NS;
	if (!error)
		writer->failing = false;
	else if (error != -ECANCELED)
		log_failure(writer, error);
	return !error;
}

/* At most one ring's worth of operations. What does not fit into the buffer of a file that cannot
 * be written stays in the ring; what then does not fit into the ring is dropped there. */
static void work(struct jsonwriter *writer, uint64_t now_ns, bool write_all)
{
	bool may_write = !writer->failing || now_ns >= writer->retry_ns;
	uint64_t first = writer->ring.tail;
	bool more = true, moved = true;

	while (more && moved && writer->ring.tail - first <= writer->ring.mask) {
		uint64_t before = writer->ring.tail;

		more = drain_batch(writer);
		moved = writer->ring.tail != before;
		if (may_write && writer->length >= BUFFER_BYTES / 2)
			moved = may_write = flush(writer, now_ns);
	}
	if (may_write && write_all)
		flush(writer, now_ns);
}

/* Nobody may come to write it: what could not be written by now is lost. */
static void give_up(struct jsonwriter *writer)
{
	struct json_record record;
	uint64_t most = (uint64_t)writer->ring.mask + 1;

	if (!enter(writer))
		return;
	while (most-- && jsonring_peek(&writer->ring, &record))
		jsonring_release(&writer->ring);
	writer->length = 0;
	drop(writer, writer->ring.tail - atomic_load(&writer->settled));
	atomic_store(&writer->inside, false);
}

/* Operations that were called and did not come to an end: under way, or given up. */
static uint64_t count_unfinished(const struct box *box)
{
	uint64_t unfinished = 0;

	for (unsigned i = 0; i < BOX_COMMS; i++) {
		const struct box_comm *comm = &box->comms[i];
		uint64_t over = atomic_load_explicit(&comm->completed, relaxed) +
		                atomic_load_explicit(&comm->untimed, relaxed);
		uint64_t enqueued = atomic_load_explicit(&comm->enqueued, relaxed);

		if (atomic_load_explicit(&comm->state, relaxed) != BOX_COMM_FREE && enqueued > over)
			unfinished += enqueued - over;
	}
	return unfinished;
}

/* Without this file nobody could tell lines that stop because the job is over from those of one
 * that hangs. */
static void put_end(struct jsonwriter *writer)
{
	char text[160];
	char *to = text;

	to = put_u64(PUT_LITERAL(to, "{\"end_us\":"), clock_ns(CLOCK_REALTIME) / 1000);
	to = put_u64(PUT_LITERAL(to, ",\"operations_unfinished\":"), count_unfinished(writer->box));
	to = put_u64(PUT_LITERAL(to, ",\"lines_dropped\":"), lines_dropped(writer));
	to = PUT_LITERAL(to, "}\n");
	if (!enter(writer))
		return;
	jsonfile_put_end(&writer->file, text, (size_t)(to - text));
	atomic_store(&writer->inside, false);
}

static void last_round(struct jsonwriter *writer, uint64_t now_ns)
{
	writer->retry_ns = 0;
	work(writer, now_ns, true);
	if (writer->failing)
		give_up(writer);
	put_end(writer);
	jsonfile_close(&writer->file);
}

/* How long the ring may fill after a round that found so many operations. */
static uint64_t rest_ns(const struct jsonwriter *writer, uint64_t found)
{
	uint64_t rest = writer->ring.traces                      ? DRAIN_NS_VERBOSE
	                : found > writer->ring.mask / CALM_SHARE ? DRAIN_NS
	                                                         : DRAIN_NS_CALM;

	return writer->interval_ns && writer->interval_ns < rest ? writer->interval_ns : rest;
}

static void *writer_main(void *argument)
{
	struct jsonwriter *writer = argument;
	uint64_t interval_ns = writer->interval_ns;
	uint64_t now = clock_ns(CLOCK_MONOTONIC), first = writer->ring.tail;
	uint64_t next_write = now + interval_ns;

	atomic_store(&writer->idle, false);
	jsonfile_remove_end(&writer->file);
	for (;;) {
		bool stop =
		    thread_sleep(&writer->thread, now + rest_ns(writer, writer->ring.tail - first));

		first = writer->ring.tail;
		now = clock_ns(CLOCK_MONOTONIC);
		if (stop) {
			last_round(writer, now);
			atomic_store(&writer->idle, true);
			if (thread_end(&writer->thread))
				return NULL;
			atomic_store(&writer->idle, false);
			jsonfile_remove_end(&writer->file);
		} else {
			bool due = interval_ns && now >= next_write;

			work(writer, now, due);
			if (due)
				next_write += (1 + (now - next_write) / interval_ns) * interval_ns;
		}
		atomic_fetch_add(&writer->box->header->self_ns, thread_cpu_ns(&writer->thread));
	}
}

int jsonwriter_start(struct jsonwriter *writer)
{
	atomic_store(&writer->idle, false);
	int error = thread_start(&writer->thread);

	if (error)
		atomic_store(&writer->idle, true);
	return error;
}

/* What was handed over and neither written nor counted. */
static void count_rest(struct jsonwriter *writer)
{
	uint64_t settled = atomic_load(&writer->settled), head = atomic_load(&writer->ring.head);

	atomic_store(&writer->counted, true);
	if (head > settled)
		drop(writer, head - settled);
}

void jsonwriter_close(struct jsonwriter *writer, uint64_t due_ns)
{
	struct timespec pause = { 0, 500000 };
	bool asked = false;

	atomic_store(&writer->ending, true);
	while (!atomic_load(&writer->idle) && clock_ns(CLOCK_MONOTONIC) + LAST_NS < due_ns) {
		asked = asked || thread_try_to_stop(&writer->thread);
		nanosleep(&pause, NULL);
	}
	atomic_store(&writer->closed, true);
	while (atomic_load(&writer->inside) && clock_ns(CLOCK_MONOTONIC) < due_ns)
		nanosleep(&pause, NULL);
	count_rest(writer);
}
