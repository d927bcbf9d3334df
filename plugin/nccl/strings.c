/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/strings.h"

#include <stddef.h>
#include <string.h>

#include "box/box.h"
#include "box/names.h"

/* The number below `count` that has that name; 0: none. */
static uint8_t find(const char *(*name_of)(unsigned number), unsigned count, const char *string)
{
	for (unsigned i = 1; string && i < count; i++)
		if (!strcmp(name_of(i), string))
			return (uint8_t)i;
	return 0;
}

static uint8_t datatype_bytes(const char *string)
{
	static const struct {
		const char *string;
		uint8_t bytes;
	} types[] = {
		{ "ncclBfloat16", 2 },   { "ncclFloat32", 4 },    { "ncclFloat16", 2 },
		{ "ncclInt8", 1 },       { "ncclFloat64", 8 },    { "ncclInt64", 8 },
		{ "ncclUint64", 8 },     { "ncclInt32", 4 },      { "ncclUint32", 4 },
		{ "ncclFloat8e4m3", 1 }, { "ncclFloat8e5m2", 1 },
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

static uint8_t number_of(enum strings_table table, const char *string)
{
	switch (table) {
	case STRINGS_FUNC:
		return find(box_func_name, BOX_FUNCS, string);
	case STRINGS_ALGO:
		return find(box_algo_name, BOX_ALGO_GROUP, string); /* not our own names */
	case STRINGS_PROTO:
		return find(box_proto_name, BOX_PROTOS, string);
	default:
		return datatype_bytes(string) ^ 1;
	}
}

uint8_t strings_compare(enum strings_table table, const char *string)
{
	uint64_t address = (uintptr_t)string;
	uint8_t number = number_of(table, string);

	if (string && !(address >> 56))
		atomic_store_explicit(strings_place(table, address), address << 8 | number,
		                      memory_order_relaxed);
	return number;
}

/* NCCL 2.23's enumerations, which v1 gives as they are. */
const char *strings_v1_func(unsigned number)
{
	static const char *const names[] = { "Broadcast", "Reduce",   "AllGather", "ReduceScatter",
	                                     "AllReduce", "SendRecv", "Send",      "Recv" };

	return number < sizeof(names) / sizeof(*names) ? names[number] : NULL;
}

const char *strings_v1_algo(unsigned number)
{
	return number < BOX_ALGO_GROUP - 1 ? box_algo_name(number + 1) : NULL;
}

const char *strings_v1_proto(unsigned number)
{
	return number < BOX_PROTOS - 1 ? box_proto_name(number + 1) : NULL;
}

const char *strings_v1_datatype(unsigned number)
{
	static const char *const names[] = { "ncclInt8",     "ncclUint8",      "ncclInt32",
	                                     "ncclUint32",   "ncclInt64",      "ncclUint64",
	                                     "ncclFloat16",  "ncclFloat32",    "ncclFloat64",
	                                     "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2" };

	return number < sizeof(names) / sizeof(*names) ? names[number] : NULL;
}
