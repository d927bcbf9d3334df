/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <stdlib.h>

#include "fresh.h"
#include "inspector.h"
#include "still.h"

struct driver run;

static const struct {
	const char *word;
	unsigned bytes;
} datatypes[] = { { "ncclInt8", 1 },
                  { "ncclFloat16", 2 },
                  { "ncclFloat32", 4 },
                  { "ncclFloat64", 8 },
                  { "ncclBfloat16", 2 },
                  { "Unknown", 1 },
                  { "", 1 },
                  { NULL, 1 } };
static const unsigned numbered_bytes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
static const char *const funcs[] = { "AllReduce", "AllGather", "ReduceScatter",
                                     "Broadcast", "Reduce",    "Send",
                                     "Recv",      "Send",      "Recv",
                                     "AlltoAll",  "",          NULL };
static const char *const algos[] = { "RING", "TREE", "NVLS", "GROUP", "", NULL };
static const char *const protos[] = { "LL", "LL128", "SIMPLE", "Unknown", NULL };
static const char *const names[] = { "tp", "", NULL, "two\nlines", "\xff\xfe\"\\" };

/* --- what a call says --- */

struct calls_words driver_words(void)
{
	uint8_t what = bytes_u8(&run.in), how = bytes_u8(&run.in), channels = bytes_u8(&run.in);

	return (struct calls_words){
		.func = PICK(funcs, what),
		.datatype = PICK(datatypes, how & 7).word,
		.algo = PICK(algos, how >> 3 & 3),
		.proto = PICK(protos, how >> 5 & 3),
		.name = PICK(names, what >> 4),
		.func_number = what,
		.datatype_number = how & 15,
		.algo_number = how >> 4,
		.proto_number = how >> 6,
		.count = bytes_odd(&run.in),
		.sequence = what,
		.id = what,
		.rank = what & 7,
		.nranks = how & 15,
		.nnodes = how >> 4,
		.peer = channels & 64 ? (int)(int8_t)what : (int)(how & 7),
		.channels = channels & 128 ? channels : channels & 3,
		.channel = channels & 63,
		.symmetric = how & 128,
		.captured = what & 128,
		.is_send = what & 1,
		.foreign = channels == 200,
		.root = (int)(int8_t)what,
		.user_tag = channels & 16 ? (uint64_t)(int64_t)(int8_t)what : 0,
		.kernel = PICK(names, how >> 4),
	};
}

void *driver_handle(void)
{
	uint8_t byte = bytes_u8(&run.in);

	if (byte < 0xe0)
		return run.handle_count
			   ? run.handles[(run.handle_count - 1 - byte % HANDLES) % HANDLES]
			   : NULL;
	if (byte < 0xf0 && run.comm_count)
		return run.comms[byte % run.comm_count].context;
	return byte < 0xf8 ? NULL : (void *)(uintptr_t)bytes_u64(&run.in);
}

static void keep_handle(void *handle)
{
	if (handle)
		run.handles[run.handle_count++ % HANDLES] = handle;
}

uint64_t driver_gpu_now(void)
{
	return still_now_ns + GPU_AHEAD_NS;
}

uint64_t driver_gpu_ns(void)
{
	uint8_t byte = bytes_u8(&run.in);

	if (byte >= 0xf0)
		return bytes_odd(&run.in);
	return driver_gpu_now() + (uint64_t)byte * 1000 - 100000;
}

/* --- what the driver tells --- */

static uint64_t bytes_of(unsigned api, const struct calls_words *words)
{
	unsigned number = words->datatype_number, each = 1;

	if (api == 1)
		return words->count * (number < sizeof(numbered_bytes) / sizeof(*numbered_bytes)
					   ? numbered_bytes[number]
					   : 1);
	for (size_t i = 0; i < sizeof(datatypes) / sizeof(*datatypes); i++)
		if (words->datatype == datatypes[i].word)
			each = datatypes[i].bytes;
	return words->count * each;
}

static bool is_operation(unsigned api, uint64_t type, const struct calls_words *words)
{
	if (type == ABI_P2P)
		return words->peer == EVENT_NO_PEER || inspector_track.options.p2p;
	return type == ABI_COLL || (type == ABI_CE_COLL && api >= 5);
}

bool driver_has_record(const void *context)
{
	uint32_t generation;
	unsigned index = handle_context_comm(context, &generation);

	return fresh_box() && inspector_track.active && index != UINT32_MAX &&
	       fresh_box()->comms[index].generation == generation;
}

void driver_start(unsigned api, void *context, uint64_t type, void *parent,
                  const struct calls_words *words)
{
	type = calls_type(api, type);
	if (is_operation(api, type, words) && driver_has_record(context)) {
		run.told.ops++;
		run.told.bytes += bytes_of(api, words);
		for (unsigned i = 0; i < run.comm_count; i++)
			run.comms[i].ops += run.comms[i].context == context;
	}
	run.told.calls |= type == ABI_COLL_API && api >= 5;
	run.told.channels_beyond |= type == ABI_KERNEL_CH && words->channel >= 64;
	keep_handle(calls_start(api, context, type, parent, words));
}

void *driver_context(unsigned *api)
{
	uint8_t byte = bytes_u8(&run.in);

	*api = run.api;
	if (byte >= 0xf8 || !run.comm_count)
		return byte & 1 ? NULL : (void *)(uintptr_t)bytes_u64(&run.in);
	*api = run.comms[byte % run.comm_count].api;
	return run.comms[byte % run.comm_count].context;
}

_Noreturn void driver_fail(const char *what)
{
	fprintf(stderr, "%s\n", what);
	abort();
}
