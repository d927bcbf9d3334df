/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is measured, and yet events come: NCCL's mask is the process's, and others set bits in
 * it. Also after the last finalize, and with handles that are none of ours. */
#include <stdlib.h>
#include <string.h>

#include "nccl/abi.h"
#include "tap.h"

extern const struct abi_table_v1 ncclProfiler_v1;
extern const struct abi_table_v2 ncclProfiler_v2;
extern const struct abi_table_v3 ncclProfiler_v3;
extern const struct abi_table_v4 ncclProfiler_v4;
extern const struct abi_table_v5 ncclProfiler_v5, ncclProfiler_v6;
extern const struct abi_table_v7 ncclProfiler_v7;

static void *odd_handles[] = {
	NULL,         (void *)1,    (void *)0x7fffffffffff0002ull, (void *)0xffffffffffffffffull,
	(void *)0x40, &odd_handles,
};
#define ODD (sizeof(odd_handles) / sizeof(*odd_handles))
#define TYPES 14u /* bits; NCCL 2.32 has 13 */
#define STATES 32

/* Every type of event with every odd parent, its states and its stop. How many wrote no handle or
 * said no success. */
#define CALL_ALL(table, descriptor, context)                                                       \
	do {                                                                                       \
		for (unsigned i = 0; i < TYPES * ODD; i++) {                                       \
			struct descriptor event;                                                   \
			void *handle = &event;                                                     \
                                                                                                   \
			memset(&event, 0, sizeof(event));                                          \
			event.type = (__typeof__(event.type))(1u << i / ODD);                      \
			event.parent = odd_handles[i % ODD];                                       \
			wrong += (table).start_event(context, &handle, &event) != 0;               \
			wrong += handle == &event;                                                 \
			for (int state = -1; state < STATES; state++) {                            \
				wrong += (table).record_event_state(handle, state, NULL) != 0;     \
				wrong += (table).record_event_state(odd_handles[i % ODD], state,   \
				                                    NULL) != 0;                    \
			}                                                                          \
			wrong += (table).stop_event(handle) != 0;                                  \
			wrong += (table).stop_event(odd_handles[i % ODD]) != 0;                    \
		}                                                                                  \
	} while (0)

static unsigned call_all(void *context)
{
	unsigned wrong = 0;

	CALL_ALL(ncclProfiler_v1, abi_descriptor_v1, context);
	CALL_ALL(ncclProfiler_v2, abi_descriptor_v2, context);
	CALL_ALL(ncclProfiler_v3, abi_descriptor_v3, context);
	CALL_ALL(ncclProfiler_v4, abi_descriptor_v4, context);
	CALL_ALL(ncclProfiler_v5, abi_descriptor_v5, context);
	CALL_ALL(ncclProfiler_v6, abi_descriptor_v5, context);
	CALL_ALL(ncclProfiler_v7, abi_descriptor_v7, context);
	return wrong;
}

int main(void)
{
	void *context = &context;
	int mask = -1;

	ok(!call_all(NULL), "events before any communicator");
	ok(!ncclProfiler_v7.init(&context, 7, &mask, "c", 1, 2, 0, NULL) && !context && !mask,
	   "without NCCL_INSPECTOR_ENABLE there is no context and no mask");
	ok(!call_all(context), "and events that come all the same do nothing");
	ok(!ncclProfiler_v7.finalize(context), "as does the end");
	ok(!call_all(&mask), "a context that is none of ours, too");
	return done_testing();
}
