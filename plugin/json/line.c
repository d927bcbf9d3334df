/* SPDX-License-Identifier: Apache-2.0 */
#include "json/line.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/number.h"
#include "box/bandwidth.h"
#include "box/box.h"
#include "box/names.h"
#include "hot/trace.h"

#define TEXT_BYTES 255u /* of a host name and the like */
#define COMM_ROOM (1024u + JSON_ESCAPED_ROOM(JSON_NAME_BYTES + 5 * TEXT_BYTES))
#define OPERATION_ROOM 1280u
#define TRACE_ROOM (512u + TRACE_CHANNELS * 320u)

/* Copied whole, whatever its length: that is two or three moves and no call. */
#define PIECE_ROOM 40u
struct piece {
	char text[PIECE_ROOM];
	size_t length;
};
#define PIECE(literal) { literal, sizeof(literal) - 1 }

enum key {
	KEY_FUNC,
	KEY_SN,
	KEY_PEER,
	KEY_BYTES,
	KEY_TIME_US,
	KEY_SOURCE,
	KEY_ALGBW,
	KEY_BUSBW,
	KEY_TRACE_SN,
	KEY_TRACE_STOP_SN,
	KEY_TRACE_TS,
	KEY_TRACE_STOP_TS,
	KEY_ALGO,
	KEY_PROTO,
	KEY_CHANNELS,
	KEY_TIME_NS,
	KEY_START_US,
	KEY_END_US,
	KEY_GPU_START_NS,
	KEY_USER_TAG,
	KEY_VARIANT,
	KEYS,
};
#define KEY_PIECES(p)                                                                              \
	{                                                                                          \
		[KEY_FUNC] = PIECE("},\"" p "_perf\":{\"" p "\":\""),                              \
		[KEY_SN] = PIECE("\",\"" p "_sn\":"),                                              \
		[KEY_PEER] = PIECE(",\"" p "_peer\":"),                                            \
		[KEY_BYTES] = PIECE(",\"" p "_msg_size_bytes\":"),                                 \
		[KEY_TIME_US] = PIECE(",\"" p "_exec_time_us\":"),                                 \
		[KEY_SOURCE] = PIECE(",\"" p "_timing_source\":\""),                               \
		[KEY_ALGBW] = PIECE("\",\"" p "_algobw_gbs\":"),                                   \
		[KEY_BUSBW] = PIECE(",\"" p "_busbw_gbs\":"),                                      \
		[KEY_TRACE_SN] = PIECE(",\"event_trace_sn\":{\"" p "_start_sn\":"),                \
		[KEY_TRACE_STOP_SN] = PIECE(",\"" p "_stop_sn\":"),                                \
		[KEY_TRACE_TS] = PIECE(",\"event_trace_ts\":{\"" p "_start_ts\":"),                \
		[KEY_TRACE_STOP_TS] = PIECE(",\"" p "_stop_ts\":"),                                \
		[KEY_ALGO] = PIECE(",\"" p "_algo\":\""),                                          \
		[KEY_PROTO] = PIECE("\",\"" p "_proto\":\""),                                      \
		[KEY_CHANNELS] = PIECE(",\"" p "_channels\":"),                                    \
		[KEY_TIME_NS] = PIECE(",\"" p "_exec_time_ns\":"),                                 \
		[KEY_START_US] = PIECE(",\"" p "_start_us\":"),                                    \
		[KEY_END_US] = PIECE(",\"" p "_end_us\":"),                                        \
		[KEY_GPU_START_NS] = PIECE(",\"" p "_gpu_start_ns\":"),                            \
		[KEY_USER_TAG] = PIECE(",\"" p "_user_tag\":"),                                    \
		[KEY_VARIANT] = PIECE(",\"" p "_kernel_variant\":\""),                             \
	}
static const struct piece coll_keys[KEYS] = KEY_PIECES("coll");
static const struct piece p2p_keys[KEYS] = KEY_PIECES("p2p");

static char *put(char *to, const struct piece *keys, enum key key)
{
	memcpy(to, keys[key].text, PIECE_ROOM);
	return to + keys[key].length;
}

static char *put_text(char *to, const char *text)
{
	return put_bytes(to, text, strlen(text));
}

/* Length of the UTF-8 character at `at`, 0 when it is none: too long, too short, a surrogate,
 * beyond U+10FFFF. */
static unsigned utf8_length(const unsigned char *at, size_t left)
{
	static const struct {
		unsigned char first, last, second_low, second_high, length;
	} forms[] = {
		{ 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
		{ 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 },
		{ 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 },
		{ 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
		if (at[0] < forms[i].first || at[0] > forms[i].last)
			continue;
		if (left < forms[i].length || at[1] < forms[i].second_low ||
		    at[1] > forms[i].second_high)
			return 0;
		for (unsigned n = 2; n < forms[i].length; n++)
			if ((at[n] & 0xc0) != 0x80)
				return 0;
		return forms[i].length;
	}
	return 0;
}

/* How many of at most `bytes` bytes to take: all, or up to the character that would be cut. */
static size_t cut(const char *from, size_t bytes)
{
	size_t length = strnlen(from, bytes), start = length;

	if (length < bytes || !from[length])
		return length;
	for (unsigned back = 0; back < 3 && start && ((unsigned char)from[start] & 0xc0) == 0x80;
	     back++)
		start--;
	return utf8_length((const unsigned char *)from + start, strnlen(from + start, 4)) ? start
	                                                                                  : length;
}

char *json_escape(char *to, const char *from, size_t bytes)
{
	static const char hex[] = "0123456789abcdef";
	size_t length = cut(from, bytes);

	for (size_t i = 0; i < length;) {
		unsigned char c = (unsigned char)from[i];
		unsigned wide =
		    c < 0x80 ? 1 : utf8_length((const unsigned char *)from + i, length - i);

		if (!wide) {
			to = PUT_LITERAL(to, "\xef\xbf\xbd");
			wide = 1;
		} else if (c < 0x20 || c == 0x7f) {
			to = PUT_LITERAL(to, "\\u00");
			*to++ = hex[c >> 4];
			*to++ = hex[c & 15];
		} else {
			if (c == '"' || c == '\\')
				*to++ = '\\';
			to = put_bytes(to, from + i, wide);
		}
		i += wide;
	}
	return to;
}

static char *put_id(char *to, uint64_t id)
{
	unsigned digits = id ? (67u - (unsigned)__builtin_clzll(id)) / 4 : 1;

	to = PUT_LITERAL(to, "0x");
	while (digits--)
		*to++ = "0123456789abcdef"[id >> 4 * digits & 15];
	return to;
}

static char *put_string(char *to, const char *key, const char *value, size_t bytes)
{
	to = put_text(to, key);
	to = json_escape(to, value, bytes);
	*to++ = '"';
	return to;
}

static char *put_number(char *to, const char *key, int64_t value)
{
	return put_i64(put_text(to, key), value);
}

static char *put_known(char *to, const char *key, uint64_t value, bool known)
{
	to = put_text(to, key);
	return known ? put_u64(to, value) : PUT_LITERAL(to, "null");
}

static char *put_head(char *to, const struct json_process *process,
                      const struct json_comm_fields *fields)
{
	to = PUT_LITERAL(to, "{\"header\":{\"id\":\"");
	to = put_id(to, fields->id);
	to = put_string(to, "\",\"comm_name\":\"",
	                fields->name && *fields->name ? fields->name : "unknown", JSON_NAME_BYTES);
	to = put_number(to, ",\"rank\":", fields->rank);
	to = put_number(to, ",\"n_ranks\":", fields->nranks);
	to = put_number(to, ",\"nnodes\":", fields->nnodes);
	to = PUT_LITERAL(to, "},\"metadata\":{\"inspector_output_format_version\":\"v4.0\"");
	to = put_string(to, ",\"git_rev\":\"slurm-nccl-inspector-", process->version, TEXT_BYTES);
	return PUT_LITERAL(to,
	                   ",\"rec_mechanism\":\"nccl_profiler_interface\",\"dump_timestamp_us\":");
}

static char *put_tail(char *to, const struct json_process *process,
                      const struct json_comm_fields *fields)
{
	to = put_string(to, ",\"hostname\":\"", process->hostname, TEXT_BYTES);
	to = put_number(to, ",\"pid\":", process->pid);
	to = put_string(to, ",\"node\":\"", process->node, TEXT_BYTES);
	to = put_string(to, ",\"cluster\":\"", process->cluster, TEXT_BYTES);
	to = put_known(to, ",\"slurm_job_id\":", process->job_id, process->job_id != 0);
	to = put_known(to, ",\"slurm_step_id\":", process->step_id, process->step_id != UINT32_MAX);
	to = put_known(to, ",\"slurm_procid\":", process->procid, process->procid != UINT32_MAX);
	to = put_string(to, ",\"gpu_uuid\":\"", fields->gpu_uuid, TEXT_BYTES);
	return PUT_LITERAL(to, ",\"lines_dropped\":");
}

struct json_comm *json_comm_new(const struct json_process *process,
                                const struct json_comm_fields *fields)
{
	char text[COMM_ROOM];
	char *tail = put_head(text, process, fields);
	char *end = put_tail(tail, process, fields);
	struct json_comm *comm = malloc(sizeof(*comm) + (size_t)(end - text));

	if (!comm)
		return NULL;
	comm->next = NULL;
	comm->comm = fields->comm;
	comm->generation = fields->generation;
	comm->nranks = fields->nranks;
	comm->unnamed = fields->unnamed;
	comm->head_length = (size_t)(tail - text);
	comm->tail_length = (size_t)(end - tail);
	memcpy(comm->text, text, (size_t)(end - text));
	return comm;
}

size_t json_line_room(const struct json_comm *comm, const struct trace_op *trace)
{
	return comm->head_length + comm->tail_length + OPERATION_ROOM + (trace ? TRACE_ROOM : 0);
}

static uint64_t real_us(const struct json_batch *batch, uint64_t tick)
{
	uint64_t now = batch->now_tick;

	if (tick <= now)
		return (batch->now_real_ns -
		        clock_ticks_to_ns(now - tick, batch->ns_per_tick_q32)) /
		       1000;
	return (batch->now_real_ns + clock_ticks_to_ns(tick - now, batch->ns_per_tick_q32)) / 1000;
}

/* The vendor's keys for one event: "_sn" its number, "_ts" its time in microseconds. */
static char *put_events(char *to, const struct json_batch *batch, const struct trace_op *trace,
                        bool times, bool cpu_timed)
{
	const char *unit = times ? "_ts\":" : "_sn\":";
	char *begin;

	to = PUT_LITERAL(to, ",\"kernel_events\":[");
	begin = to;
	for (uint64_t left = trace->started & trace->stopped; left; left &= left - 1) {
		unsigned channel = (unsigned)__builtin_ctzll(left);
		const struct trace_channel *at = &trace->channel[channel];
		uint64_t start = times ? real_us(batch, at->start_tick) : at->start_number;
		uint64_t stop = times ? real_us(batch, at->stop_tick) : at->stop_number;

		if (to != begin)
			*to++ = ',';
		to = put_u64(PUT_LITERAL(to, "{\"channel_id\":"), channel);
		to = put_u64(put_text(PUT_LITERAL(to, ",\"kernel_start"), unit), start);
		to = put_u64(put_text(PUT_LITERAL(to, ",\"kernel_stop"), unit), stop);
		/* The GPU's clock came just before the stop; an interface without such clocks has
		 * no such event. */
		if (!cpu_timed)
			to = put_u64(put_text(PUT_LITERAL(to, ",\"kernel_record"), unit),
			             stop - !times);
		*to++ = '}';
	}
	return PUT_LITERAL(to, "]}");
}

static char *put_trace(char *to, const struct piece *keys, const struct json_record *record,
                       const struct json_batch *batch, const struct trace_op *trace)
{
	bool cpu_timed = record->flags & JSON_CPU_TIMED;
	bool stopped = atomic_load_explicit(&trace->stop_generation, memory_order_relaxed) ==
	               trace->generation;

	to = PUT_LITERAL(put(to, keys, KEY_TRACE_SN), "1");
	to = put(to, keys, KEY_TRACE_STOP_SN);
	/* null: NCCL had not yet said that it is enqueued. */
	to = stopped ? put_u64(to, atomic_load_explicit(&trace->stop_number, memory_order_relaxed))
	             : PUT_LITERAL(to, "null");
	to = put_events(to, batch, trace, false, cpu_timed);
	to = put_u64(put(to, keys, KEY_TRACE_TS), real_us(batch, trace->start_tick));
	to = put(to, keys, KEY_TRACE_STOP_TS);
	to = stopped ? put_u64(to, real_us(batch, atomic_load_explicit(&trace->stop_tick,
	                                                               memory_order_relaxed)))
	             : PUT_LITERAL(to, "null");
	return put_events(to, batch, trace, true, cpu_timed);
}

/* The vendor's rule: bytes are one rank's share for these two; nothing is said of functions without
 * a rule. */
static double algorithm_factor(unsigned func, int nranks)
{
	if (func == BOX_FUNC_ALLGATHER || func == BOX_FUNC_REDUCESCATTER)
		return nranks;
	return bandwidth_bus_factor(func, 2) > 0 ? 1 : 0;
}

/* What a rank sends to itself takes no bus. */
static double bus_factor(const struct json_record *record, int nranks)
{
	double factor = bandwidth_bus_factor(record->kind & 0xff, nranks);

	return record->flags & JSON_GROUP ? factor * record->others_q31 / JSON_ALL_Q31 : factor;
}

static bool is_p2p(const struct json_record *record)
{
	return !(record->flags & JSON_GROUP) && record->peer >= 0;
}

static char *put_ours(char *to, const struct piece *keys, const struct json_record *record,
                      const struct json_batch *batch)
{
	if (!is_p2p(record)) {
		to = put_text(put(to, keys, KEY_ALGO), box_algo_name(record->kind >> 8 & 0xff));
		to = put_text(put(to, keys, KEY_PROTO), box_proto_name(record->kind >> 16 & 0xff));
		*to++ = '"';
	}
	to = put_u64(put(to, keys, KEY_CHANNELS), record->kind >> 24);
	to = put_u64(put(to, keys, KEY_TIME_NS), record->time_ns);
	to = put_u64(put(to, keys, KEY_START_US), real_us(batch, record->enqueue_tick));
	to = put_u64(put(to, keys, KEY_END_US), real_us(batch, record->end_tick));
	to = put(to, keys, KEY_GPU_START_NS);
	return record->flags & JSON_CPU_TIMED ? PUT_LITERAL(to, "null")
	                                      : put_u64(to, record->gpu_start_ns);
}

/* What NCCL 2.31 and later say besides, in the traces only. */
static char *put_note(char *to, const struct piece *keys, const struct trace_op *trace)
{
	if (trace->user_tag)
		to = put_u64(put(to, keys, KEY_USER_TAG), trace->user_tag);
	if (*trace->kernel_variant) {
		to = json_escape(put(to, keys, KEY_VARIANT), trace->kernel_variant,
		                 sizeof(trace->kernel_variant));
		*to++ = '"';
	}
	return to;
}

char *json_line(char *to, const struct json_record *record, const struct json_comm *comm,
                const struct json_batch *batch, const struct trace_op *trace)
{
	const struct piece *keys = is_p2p(record) ? p2p_keys : coll_keys;
	unsigned func = record->kind & 0xff;
	double gbs = record->time_ns ? (double)record->bytes / (double)record->time_ns : 0;
	uint64_t time_us = (record->time_ns + 500) / 1000;

	to = put_bytes(to, comm->text, comm->head_length);
	to = put_u64(to, batch->now_real_ns / 1000);
	to = put_bytes(to, comm->text + comm->head_length, comm->tail_length);
	to = put_u64(to, batch->lines_dropped);
	to = put_u64(PUT_LITERAL(to, ",\"operations_unmeasured\":"), batch->operations_unmeasured);
	to = put_text(put(to, keys, KEY_FUNC), box_func_name(func));
	to = put_u64(put(to, keys, KEY_SN), record->sequence);
	if (is_p2p(record))
		to = put_i64(put(to, keys, KEY_PEER), record->peer);
	to = put_u64(put(to, keys, KEY_BYTES), record->bytes);
	/* To the vendor's readers 0 means "no time"; the nanoseconds are below. */
	to = put_u64(put(to, keys, KEY_TIME_US), time_us ? time_us : 1);
	to = put(to, keys, KEY_SOURCE);
	to = record->flags & JSON_CPU_TIMED ? PUT_LITERAL(to, "kernel_cpu")
	                                    : PUT_LITERAL(to, "kernel_gpu");
	to = put_micro(put(to, keys, KEY_ALGBW), gbs * algorithm_factor(func, comm->nranks));
	to = put_micro(put(to, keys, KEY_BUSBW), gbs * bus_factor(record, comm->nranks));
	if (trace && trace->generation)
		to = put_trace(to, keys, record, batch, trace);
	to = put_ours(to, keys, record, batch);
	if (trace && trace->generation)
		to = put_note(to, keys, trace);
	return PUT_LITERAL(to, "}}\n");
}
