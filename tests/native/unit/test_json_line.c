/* SPDX-License-Identifier: Apache-2.0 */
/* One finished operation as a line. */
#include <stdlib.h>
#include <string.h>

#include "box/box.h"
#include "base/number.h"
#include "box/names.h"
#include "json/line.h"
#include "tap.h"

static const struct json_process process = {
	.hostname = "vm",
	.node = "n1",
	.cluster = "lab",
	.version = "9",
	.job_id = 4711,
	.step_id = 0,
	.procid = 3,
	.pid = 22266,
};
/* One tick is one nanosecond. */
static const struct json_batch batch = {
	.now_tick = 5000000,
	.now_real_ns = 1795216803085202000u,
	.ns_per_tick_q32 = 1ull << 32,
	.lines_dropped = 2,
	.operations_unmeasured = 5,
};

static struct json_comm *communicator(const char *name)
{
	return json_comm_new(&process, &(struct json_comm_fields){ .id = 0xabc000000000,
	                                                           .name = name,
	                                                           .nranks = 16,
	                                                           .nnodes = 2,
	                                                           .gpu_uuid = "GPU-1" });
}

static struct json_record operation(void)
{
	return (struct json_record){
		.enqueue_tick = 1000000,
		.end_tick = 6000000,
		.gpu_start_ns = 77,
		.time_ns = 25240,
		.bytes = 1048576,
		.sequence = 9,
		.peer = -1,
		.kind = BOX_FUNC_ALLREDUCE | BOX_ALGO_RING << 8 | BOX_PROTO_SIMPLE << 16 | 8u << 24,
	};
}

/* The line as a string, without its newline. */
static const char *line_of(const struct json_record *record, const struct trace_op *trace)
{
	static char text[65536];
	struct json_comm *comm = communicator("harness");
	size_t room = json_line_room(comm, trace);
	char *end = json_line(text, record, comm, &batch, trace);

	free(comm);
	if (end[-1] != '\n' || (size_t)(end - text) > room)
		return "too long, or not a line";
	end[-1] = '\0';
	return text;
}

#define HEAD                                                                                       \
	"{\"header\":{\"id\":\"0xabc000000000\",\"comm_name\":\"harness\",\"rank\":0,\"n_ranks\":" \
	"16,\"nnodes\":2},"                                                                        \
	"\"metadata\":{\"inspector_output_format_version\":\"v4.0\",\"git_rev\":\"slurm-nccl-"     \
	"inspector-9\","                                                                           \
	"\"rec_mechanism\":\"nccl_profiler_interface\",\"dump_timestamp_us\":1795216803085202,"    \
	"\"hostname\":\"vm\","                                                                     \
	"\"pid\":22266,\"node\":\"n1\",\"cluster\":\"lab\",\"slurm_job_id\":4711,\"slurm_step_"    \
	"id\":0,"                                                                                  \
	"\"slurm_procid\":3,\"gpu_uuid\":\"GPU-1\",\"lines_dropped\":2,\"operations_unmeasured\":" \
	"5},"

static void test_collective(void)
{
	struct json_record record = operation();
	const char *line = line_of(&record, NULL);

	ok(!strcmp(
	       line, HEAD
	       "\"coll_perf\":{\"coll\":\"AllReduce\",\"coll_sn\":9,\"coll_msg_size_bytes\":"
	       "1048576,"
	       "\"coll_exec_time_us\":25,\"coll_timing_source\":\"kernel_gpu\","
	       "\"coll_algobw_gbs\":41.544216,\"coll_busbw_gbs\":77.895404,\"coll_algo\":\"RING\","
	       "\"coll_proto\":\"SIMPLE\",\"coll_channels\":8,\"coll_exec_time_ns\":25240,"
	       "\"coll_start_us\":1795216803081202,\"coll_end_us\":1795216803086202,"
	       "\"coll_gpu_start_ns\":77}}"),
	   "a collective: the vendor's keys, then ours\n# %s", line);
}

static void test_point_to_point(void)
{
	struct json_record record = operation();
	const char *line;

	record.peer = 5;
	record.kind = BOX_FUNC_SEND | 4u << 24;
	record.flags = JSON_CPU_TIMED;
	record.time_ns = 499;
	line = line_of(&record, NULL);
	ok(!strcmp(
	       line, HEAD
	       "\"p2p_perf\":{\"p2p\":\"Send\",\"p2p_sn\":9,\"p2p_peer\":5,\"p2p_msg_size_bytes\":"
	       "1048576,"
	       "\"p2p_exec_time_us\":1,\"p2p_timing_source\":\"kernel_cpu\","
	       "\"p2p_algobw_gbs\":2101.354709,\"p2p_busbw_gbs\":2101.354709,\"p2p_channels\":4,"
	       "\"p2p_exec_time_ns\":499,\"p2p_start_us\":1795216803081202,"
	       "\"p2p_end_us\":1795216803086202,\"p2p_gpu_start_ns\":null}}"),
	   "a Send, timed by the CPU\n# %s", line);
}

static void test_bandwidth(void)
{
	static const struct {
		unsigned func;
		const char *text;
	} cases[] = {
		/* 1048576 bytes in 25240 ns by 16 ranks */
		{ BOX_FUNC_ALLGATHER,
		  "\"coll_algobw_gbs\":664.707448,\"coll_busbw_gbs\":623.163233" },
		{ BOX_FUNC_REDUCESCATTER,
		  "\"coll_algobw_gbs\":664.707448,\"coll_busbw_gbs\":623.163233" },
		{ BOX_FUNC_BROADCAST,
		  "\"coll_algobw_gbs\":41.544216,\"coll_busbw_gbs\":41.544216" },
		{ BOX_FUNC_UNKNOWN, "\"coll_algobw_gbs\":0.000000,\"coll_busbw_gbs\":0.000000" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct json_record record = operation();

		record.kind = cases[i].func;
		ok(strstr(line_of(&record, NULL), cases[i].text), "bandwidth of %s",
		   box_func_name(cases[i].func));
	}
}

static void test_group(void)
{
	struct json_record record = operation();
	const char *line;

	record.kind = BOX_FUNC_ALLTOALL | BOX_ALGO_GROUP << 8;
	record.flags = JSON_GROUP;
	record.others_q31 = JSON_ALL_Q31 / 16 * 15;
	line = line_of(&record, NULL);
	ok(strstr(line, "\"coll\":\"AlltoAll\"") && strstr(line, "\"coll_algo\":\"GROUP\"") &&
	       strstr(line, "\"coll_algobw_gbs\":41.544216,\"coll_busbw_gbs\":38.947702"),
	   "what an all-to-all keeps takes no bus");
	record.others_q31 = JSON_ALL_Q31;
	ok(strstr(line_of(&record, NULL), "\"coll_busbw_gbs\":41.544216"),
	   "unless it keeps nothing");
}

static void test_extremes(void)
{
	struct json_record record;
	const char *line;

	memset(&record, 0xff, sizeof(record));
	record.flags = 0;
	line = line_of(&record, NULL);
	ok(strstr(line, "\"coll_exec_time_ns\":18446744073709551615,") &&
	       strstr(line, "\"coll\":\"Unknown\""),
	   "all bits set");
	memset(&record, 0, sizeof(record));
	ok(strstr(line_of(&record, NULL), "\"p2p_busbw_gbs\":0.000000"), "none set");
	record.bytes = UINT64_MAX;
	record.time_ns = 1;
	record.kind = BOX_FUNC_RECV;
	ok(strstr(line_of(&record, NULL), "\"p2p_busbw_gbs\":1000000000000.000000"),
	   "a bandwidth that cannot be is cut");
}

static void test_digits(void)
{
	char text[32], want[32];
	unsigned wrong = 0;

	for (unsigned shift = 0; shift < 64; shift++)
		for (int64_t near = -2; near <= 2; near++) {
			uint64_t values[2] = { (1ull << shift) + (uint64_t)near, (uint64_t)near };

			for (unsigned i = 0; i < shift % 20; i++)
				values[1] = i ? (values[1] - (uint64_t)near) * 10 + (uint64_t)near
				              : 10 + (uint64_t)near;
			for (unsigned i = 0; i < 2; i++) {
				*put_u64(text, values[i]) = '\0';
				snprintf(want, sizeof(want), "%llu", (unsigned long long)values[i]);
				wrong += strcmp(text, want) != 0;
			}
		}
	ok(!wrong, "numbers at every power of two and ten (%u wrong)", wrong);
	*put_i64(text, INT64_MIN) = '\0';
	ok(!strcmp(text, "-9223372036854775808"), "the least of all numbers");
	*put_micro(text, 0.9999996) = '\0';
	ok(!strcmp(text, "1.000000"), "rounded (%s)", text);
	*put_micro(text, 0.0 / 0.0) = '\0';
	ok(!strcmp(text, "0.000000"), "no number is 0");
}

static void test_escape(void)
{
	static const struct {
		const char *from, *to;
	} cases[] = {
		{ "", "" },
		{ "plain", "plain" },
		{ "a\"b\\c", "a\\\"b\\\\c" },
		{ "a\nb\x01\x7f", "a\\u000ab\\u0001\\u007f" },
		{ "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" },
		{ "\xff", "\xef\xbf\xbd" },
		{ "\xc3", "\xef\xbf\xbd" }, /* cut short */
		{ "\xc3(", "\xef\xbf\xbd(" },
		{ "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" }, /* a slash, too long */
		{ "\xe0\x80\xaf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
		{ "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" }, /* a surrogate */
		{ "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
		{ "\xe2\x82(", "\xef\xbf\xbd\xef\xbf\xbd(" },
	};
	char text[256];

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		*json_escape(text, cases[i].from, 64) = '\0';
		ok(!strcmp(text, cases[i].to), "escaped: %zu", i);
	}
	*json_escape(text, "ab\xe2\x82\xac", 4) = '\0';
	ok(!strcmp(text, "ab"), "no half character where the text is cut (%s)", text);
	*json_escape(text, "ab\xe2\x82\xac", 5) = '\0';
	ok(!strcmp(text, "ab\xe2\x82\xac"), "a whole one stays");
}

static bool has(const char *text, size_t length, const char *word)
{
	return memmem(text, length, word, strlen(word)) != NULL;
}

static void test_names(void)
{
	char name[400];
	struct json_comm *comm = communicator(NULL);

	ok(has(comm->text, comm->head_length, "\"comm_name\":\"unknown\""), "no name is unknown");
	free(comm);
	memset(name, 1, sizeof(name));
	name[399] = '\0';
	comm = communicator(name);
	ok(comm->head_length > JSON_NAME_BYTES * 6 && comm->head_length < JSON_NAME_BYTES * 6 + 400,
	   "a long name of bad bytes (%zu)", comm->head_length);
	free(comm);
}

static void test_outside_slurm(void)
{
	const struct json_process alone = { .hostname = "vm",
	                                    .node = "vm",
	                                    .cluster = "",
	                                    .version = "9",
	                                    .step_id = UINT32_MAX,
	                                    .procid = UINT32_MAX };
	struct json_comm *comm =
	    json_comm_new(&alone, &(struct json_comm_fields){ .gpu_uuid = "" });

	ok(has(comm->text + comm->head_length, comm->tail_length,
	       "\"slurm_job_id\":null,\"slurm_step_id\":null,\"slurm_procid\":null"),
	   "what is not known is null");
	ok(has(comm->text, comm->head_length, "{\"id\":\"0x0\","), "an id of 0 has a digit");
	free(comm);
}

static void test_trace(void)
{
	static struct trace_op trace;
	struct json_record record = operation();
	const char *line;

	trace_begin(&trace, 7);
	trace_app_stop(&trace, 5);
	ok(strstr(line_of(&record, &trace), "\"coll_stop_sn\":null"),
	   "the stop of an earlier operation is not this one's");
	trace_begin(&trace, 7);
	trace_kernel_start(&trace, 63);
	trace_kernel_start(&trace, 2);
	trace_app_stop(&trace, 7);
	trace_kernel_stop(&trace, 63);
	trace_kernel_stop(&trace, 2);
	trace.start_tick = 5000000;
	trace.channel[2].start_tick = trace.channel[2].stop_tick = 5001000;
	trace.channel[63].start_tick = trace.channel[63].stop_tick = 5002000;
	atomic_store(&trace.stop_tick, 5003000);
	line = line_of(&record, &trace);
	ok(strstr(line,
	          ",\"event_trace_sn\":{\"coll_start_sn\":1,\"coll_stop_sn\":4,\"kernel_events\":["
	          "{\"channel_id\":2,\"kernel_start_sn\":3,\"kernel_stop_sn\":8,\"kernel_record_"
	          "sn\":7},"
	          "{\"channel_id\":63,\"kernel_start_sn\":2,\"kernel_stop_sn\":6,\"kernel_record_"
	          "sn\":5}]}"),
	   "the order of the events\n# %s", line);
	ok(strstr(line,
	          ",\"event_trace_ts\":{\"coll_start_ts\":1795216803085202,\"coll_stop_ts\":"
	          "1795216803085205,"
	          "\"kernel_events\":[{\"channel_id\":2,\"kernel_start_ts\":1795216803085203,"
	          "\"kernel_stop_ts\":1795216803085203,\"kernel_record_ts\":1795216803085203},"),
	   "and their times");
	trace.started = trace.stopped = UINT64_MAX;
	memset(trace.channel, 0xff, sizeof(trace.channel));
	ok(strstr(line_of(&record, &trace), "\"channel_id\":63"), "all channels fit");
}

int main(void)
{
	test_collective();
	test_point_to_point();
	test_bandwidth();
	test_group();
	test_extremes();
	test_digits();
	test_escape();
	test_names();
	test_outside_slurm();
	test_trace();
	return done_testing();
}
