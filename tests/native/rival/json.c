/* SPDX-License-Identifier: Apache-2.0 */
/* json.c - a line for each finished operation. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rival.h"

#define LINE_BYTES (32 * 1024)

struct line {
	char text[LINE_BYTES];
	size_t length;
};

static pthread_mutex_t file_lock = PTHREAD_MUTEX_INITIALIZER;
static int file = -1;

__attribute__((format(printf, 2, 3))) static void add(struct line *line, const char *format, ...)
{
	size_t room = sizeof(line->text) - line->length;
	va_list arguments;

	va_start(arguments, format);
	int n = vsnprintf(line->text + line->length, room, format, arguments);

	va_end(arguments);
	if (n > 0)
		line->length += (size_t)n < room ? (size_t)n : room - 1;
}

/* Length of the UTF-8 character, 0 when it is none. */
static size_t character(const unsigned char *c)
{
	size_t length = *c < 0x80 ? 1 : (*c & 0xe0) == 0xc0 ? 2 : (*c & 0xf0) == 0xe0 ? 3 :
			(*c & 0xf8) == 0xf0 ? 4 : 0;

	for (size_t i = 1; i < length; i++)
		if ((c[i] & 0xc0) != 0x80)
			return 0;
	return length;
}

static bool is_clean(const char *text)
{
	const unsigned char *c = (const unsigned char *)text;

	while (*c) {
		size_t length = *c < 0x20 ? 0 : character(c);

		if (!length)
			return false;
		c += length;
	}
	return true;
}

static void add_string(struct line *line, const char *text)
{
	add(line, "\"");
	for (; *text; text++)
		add(line, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
	add(line, "\"");
}

static void add_head(struct line *line, const struct rival_comm *comm, uint64_t dump_us)
{
	char host[256] = "";

	gethostname(host, sizeof(host) - 1);
	add(line, "{\"header\":{\"id\":\"0x%llx\",\"comm_name\":", (unsigned long long)comm->id);
	add_string(line, comm->name);
	add(line, ",\"rank\":%d,\"n_ranks\":%d,\"nnodes\":%d}", comm->rank, comm->nranks,
	    comm->nnodes);
	add(line,
	    ",\"metadata\":{\"inspector_output_format_version\":\"v4.0\",\"git_rev\":\"unknown\","
	    "\"rec_mechanism\":\"nccl_profiler_interface\",\"dump_timestamp_us\":%llu,"
	    "\"hostname\":\"%s\",\"pid\":%d}",
	    (unsigned long long)dump_us, host, (int)getpid());
}

static void add_trace(struct line *line, const struct rival_record *record, const char *unit)
{
	const char *kind = record->p2p ? "p2p" : "coll";
	bool sn = !strcmp(unit, "sn");

	add(line, ",\"event_trace_%s\":{\"%s_start_%s\":%llu,\"%s_stop_%s\":%llu,\"kernel_events\":[",
	    unit, kind, unit, (unsigned long long)(sn ? record->start_sn : record->start_us), kind, unit,
	    (unsigned long long)(sn ? record->stop_sn : record->stop_us));
	for (unsigned i = 0; i < record->channels && i < RIVAL_CHANNELS; i++) {
		const struct rival_trace *t = &record->trace[i];

		add(line,
		    "%s{\"channel_id\":%u,\"kernel_start_%s\":%llu,\"kernel_stop_%s\":%llu,"
		    "\"kernel_record_%s\":%llu}",
		    i ? "," : "", i, unit, (unsigned long long)(sn ? t->start_sn : t->start_us), unit,
		    (unsigned long long)(sn ? t->stop_sn : t->stop_us), unit,
		    (unsigned long long)(sn ? t->record_sn : t->record_us));
	}
	add(line, "]}");
}

/* No time of the operation, no algorithm, no protocol, no channels, no GPU, no job: D14. */
static void add_perf(struct line *line, const struct rival_record *record)
{
	static const char *const sources[] = {
		[RIVAL_KERNEL_GPU] = "kernel_gpu",
		[RIVAL_KERNEL_CPU] = "kernel_cpu",
		[RIVAL_COLLECTIVE_CPU] = "collective_cpu",
	};
	const char *kind = record->p2p ? "p2p" : "coll";

	add(line, ",\"%s_perf\":{\"%s\":\"%s\",\"%s_sn\":%llu", kind, kind, record->func, kind,
	    (unsigned long long)record->sn);
	if (record->p2p)
		add(line, ",\"p2p_peer\":%d", record->peer);
	add(line,
	    ",\"%s_msg_size_bytes\":%llu,\"%s_exec_time_us\":%llu,\"%s_timing_source\":\"%s\","
	    "\"%s_algobw_gbs\":%.6f,\"%s_busbw_gbs\":%.6f",
	    kind, (unsigned long long)record->bytes, kind, (unsigned long long)record->time_us, kind,
	    sources[record->source], kind, record->algbw, kind, record->busbw);
	if (rival_settings.verbose) {
		add_trace(line, record, "sn");
		add_trace(line, record, "ts");
	}
	add(line, "}}\n");
}

/* A name that is not clean text ends it at once, and the next one waits for the lock: S2. */
static void write_record(const struct rival_comm *comm, const struct rival_record *record,
			struct line *line)
{
	pthread_mutex_lock(&file_lock);
	if (!is_clean(comm->name))
		return;
	line->length = 0;
	add_head(line, comm, rival_now_us());
	add_perf(line, record);
	rival_write(file, line->text, line->length);
	pthread_mutex_unlock(&file_lock);
}

/* Whoever had this number before: its file is gone. It grows for as long as the process lives: S11. */
static void open_file(void)
{
	char host[256] = "", path[4500];

	gethostname(host, sizeof(host) - 1);
	snprintf(path, sizeof(path), "%s/%s-pid%d.log", rival_settings.dir, host, (int)getpid());
	file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

void rival_json_dump(struct rival_comm *comms)
{
	struct rival_record *room = rival_ring_room();
	struct line *line = rival_memory(NULL, sizeof(*line));

	if (file < 0)
		open_file();
	for (struct rival_comm *comm = comms; comm && file >= 0; comm = comm->next) {
		struct rival_ring *rings[] = { &comm->coll, &comm->p2p };

		for (size_t ring = 0; ring < 2; ring++) {
			size_t count = rival_ring_take(comm, rings[ring], room);

			for (size_t i = 0; i < count; i++)
				write_record(comm, &room[i], line);
		}
	}
	free(line);
	free(room);
}

void rival_json_end(void)
{
	if (file >= 0)
		close(file);
	file = -1;
}
