/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#include <stddef.h>
#include <string.h>

#include "box.h"

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
};
static const char *const protos[BOX_PROTOS] = {
	[BOX_PROTO_UNKNOWN] = "Unknown",
	[BOX_PROTO_LL] = "LL",
	[BOX_PROTO_LL128] = "LL128",
	[BOX_PROTO_SIMPLE] = "SIMPLE",
};

/* The tables are short and most words differ in their first letters. */
static uint8_t find(const char *const *table, unsigned count, const char *word)
{
	if (!word)
		return 0;
	for (unsigned i = 1; i < count; i++)
		if (table[i][0] == word[0] && !strcmp(table[i], word))
			return (uint8_t)i;
	return 0;
}

uint8_t words_func(const char *word)
{
	return find(funcs, BOX_FUNCS, word);
}

uint8_t words_algo(const char *word)
{
	return find(algos, BOX_ALGOS, word);
}

uint8_t words_proto(const char *word)
{
	return find(protos, BOX_PROTOS, word);
}

unsigned words_datatype_bytes(const char *word)
{
	static const struct {
		const char *word;
		unsigned bytes;
	} types[] = {
		{ "ncclBfloat16", 2 }, { "ncclFloat32", 4 }, { "ncclFloat16", 2 }, { "ncclInt8", 1 },
		{ "ncclFloat64", 8 },  { "ncclInt64", 8 },   { "ncclUint64", 8 },  { "ncclInt32", 4 },
		{ "ncclUint32", 4 },   { "ncclFloat8e4m3", 1 }, { "ncclFloat8e5m2", 1 },
	};

	for (size_t i = 0; word && i < sizeof(types) / sizeof(*types); i++)
		if (!strcmp(types[i].word, word))
			return types[i].bytes;
	return 1;
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
