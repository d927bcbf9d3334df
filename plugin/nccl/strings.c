/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/strings.h"

#include <stddef.h>
#include <string.h>

#include "box/box.h"

static const char *const funcs[BOX_FUNCS] = {
	[BOX_FUNC_UNKNOWN] = "Unknown",
	[BOX_FUNC_ALLREDUCE] = "AllReduce",
	[BOX_FUNC_ALLGATHER] = "AllGather",
	[BOX_FUNC_REDUCESCATTER] = "ReduceScatter",
	[BOX_FUNC_BROADCAST] = "Broadcast",
	[BOX_FUNC_REDUCE] = "Reduce",
	[BOX_FUNC_ALLTOALL] = "AlltoAll",
	[BOX_FUNC_GATHER] = "Gather",
	[BOX_FUNC_SCATTER] = "Scatter",
	[BOX_FUNC_SEND] = "Send",
	[BOX_FUNC_RECV] = "Recv",
	[BOX_FUNC_SENDRECV] = "SendRecv",
};
static const char *const algos[BOX_ALGOS] = {
	[BOX_ALGO_UNKNOWN] = "Unknown",
	[BOX_ALGO_TREE] = "TREE",
	[BOX_ALGO_RING] = "RING",
	[BOX_ALGO_COLLNET_DIRECT] = "COLLNET_DIRECT",
	[BOX_ALGO_COLLNET_CHAIN] = "COLLNET_CHAIN",
	[BOX_ALGO_NVLS] = "NVLS",
	[BOX_ALGO_NVLS_TREE] = "NVLS_TREE",
	[BOX_ALGO_PAT] = "PAT",
	[BOX_ALGO_GROUP] = "GROUP",
	[BOX_ALGO_CE] = "CE",
	[BOX_ALGO_SYM] = "SYM",
};
static const char *const protos[BOX_PROTOS] = {
	[BOX_PROTO_UNKNOWN] = "Unknown",
	[BOX_PROTO_LL] = "LL",
	[BOX_PROTO_LL128] = "LL128",
	[BOX_PROTO_SIMPLE] = "SIMPLE",
};

/* The tables are short and most words differ in their first letters. */
static uint8_t find(const char *const *table, unsigned count, const char *string)
{
	if (!string)
		return 0;
	for (unsigned i = 1; i < count; i++)
		if (table[i][0] == string[0] && !strcmp(table[i], string))
			return (uint8_t)i;
	return 0;
}

static uint8_t datatype_bytes(const char *string)
{
	static const struct {
		const char *string;
		uint8_t bytes;
	} types[] = {
		{ "ncclBfloat16", 2 }, { "ncclFloat32", 4 }, { "ncclFloat16", 2 }, { "ncclInt8", 1 },
		{ "ncclFloat64", 8 },  { "ncclInt64", 8 },   { "ncclUint64", 8 },  { "ncclInt32", 4 },
		{ "ncclUint32", 4 },   { "ncclFloat8e4m3", 1 }, { "ncclFloat8e5m2", 1 },
	};

	for (size_t i = 0; string && i < sizeof(types) / sizeof(*types); i++)
		if (!strcmp(types[i].string, string))
			return types[i].bytes;
	return 1;
}

_Atomic uint64_t strings_cache[STRINGS_TABLES][STRINGS_CACHED];

void strings_forget(void)
{
	for (unsigned table = 0; table < STRINGS_TABLES; table++)
		for (unsigned i = 0; i < STRINGS_CACHED; i++)
			atomic_store_explicit(&strings_cache[table][i], 0, memory_order_relaxed);
}

uint8_t strings_compare(enum strings_table table, const char *string)
{
	uint64_t address = (uintptr_t)string;
	uint8_t number = table == STRINGS_FUNC  ? find(funcs, BOX_FUNCS, string) :
			 table == STRINGS_ALGO  ? find(algos, BOX_ALGO_GROUP, string) : /* not our own words */
			 table == STRINGS_PROTO ? find(protos, BOX_PROTOS, string) :
						datatype_bytes(string) ^ 1;

	if (string && !(address >> 56))
		atomic_store_explicit(strings_place(table, address), address << 8 | number, memory_order_relaxed);
	return number;
}

const char *box_func_name(unsigned func)
{
	return funcs[func < BOX_FUNCS ? func : 0];
}

const char *box_algo_name(unsigned algo)
{
	return algos[algo < BOX_ALGOS ? algo : 0];
}

const char *box_proto_name(unsigned proto)
{
	return protos[proto < BOX_PROTOS ? proto : 0];
}

/* NCCL 2.23's enumerations, which v1 gives as they are. */
const char *strings_v1_func(unsigned number)
{
	static const char *const names[] = { "Broadcast", "Reduce",   "AllGather", "ReduceScatter",
					     "AllReduce", "SendRecv", "Send",	   "Recv" };

	return number < sizeof(names) / sizeof(*names) ? names[number] : NULL;
}

const char *strings_v1_algo(unsigned number)
{
	return number < BOX_ALGO_GROUP - 1 ? algos[number + 1] : NULL;
}

const char *strings_v1_proto(unsigned number)
{
	return number < BOX_PROTOS - 1 ? protos[number + 1] : NULL;
}

const char *strings_v1_datatype(unsigned number)
{
	static const char *const names[] = { "ncclInt8",    "ncclUint8",   "ncclInt32",	    "ncclUint32",
					     "ncclInt64",   "ncclUint64",  "ncclFloat16",   "ncclFloat32",
					     "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2" };

	return number < sizeof(names) / sizeof(*names) ? names[number] : NULL;
}
