/* SPDX-License-Identifier: Apache-2.0 */
/* Handles that are not ours, or not any more, and calls that nobody asked for. What the fuzzer has
 * found. */
#include "inspector.h"
#include "hotbox.h"

/* NCCL's mask can be set from outside, also where there is nothing to measure with. */
static void test_nothing_is_set_up(void)
{
	void *group = handle_of(5ull << HANDLE_NUMBER_SHIFT | HANDLE_GROUP);

	ok(!track_kernel_start(&inspector_track, NULL, 3, 1000) &&
	       !track_kernel_start(&inspector_track, handle_of(HANDLE_OPERATION), 3, 1000),
	   "before there is a box a channel is not followed");
	track_kernel_stop(&inspector_track, NULL, 2000);
	track_kernel_stop(&inspector_track, handle_of(HANDLE_KERNEL), 2000);
	track_group_stop(&inspector_track, group);
	ok(!track_operation(&inspector_track, NULL,
	                    &(struct event){ .peer = EVENT_NO_PEER, .count = 1 }) &&
	       !track_group_start(&inspector_track, NULL),
	   "nor is an operation");
}

static struct box_op new_pool[BOX_OPS];

static bool pool_is_untouched(void)
{
	return !memcmp(box.ops, new_pool, sizeof(new_pool));
}

static void test_other_words(void)
{
	void *const words[] = { handle_of(HANDLE_OPERATION), handle_of(HANDLE_KERNEL),
	                        handle_of(7ull << HANDLE_SLOT_SHIFT | HANDLE_OPERATION),
	                        handle_of(UINT64_MAX) };

	begin();
	memcpy(new_pool, box.ops, sizeof(new_pool));
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		kernel(words[i], 0, 1000);
		stop(words[i], 2000);
	}
	kernel(comm, 0, 1000);
	ok(pool_is_untouched(),
	   "a context or any other word is no operation, in a new slot either");
}

static void test_an_operation_of_an_earlier_communicator(void)
{
	begin();
	void *op = start(comm, 1, 1024);
	unsigned slot = handle_slot(handle_bits(op));
	uint64_t before = dropped(BOX_DROP_EXPIRED);

	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		comms_add(&track,
		          &(struct comm_fields){ .id = 100 + i, .name = "later", .nranks = 8 });
	ok(track_end_untimed(&track, &box.ops[slot], box.ops[slot].generation, TRACK_SLOT_FREE) &&
	       dropped(BOX_DROP_EXPIRED) == before + 1,
	   "one that is given up when its record serves another communicator is counted");
	ok(!box.comms[0].untimed, "and is none of that communicator's");
}

int main(void)
{
	log2_init();
	test_nothing_is_set_up();
	test_other_words();
	test_an_operation_of_an_earlier_communicator();
	return done_testing();
}
