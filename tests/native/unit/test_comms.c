/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that come and go, and kinds of operation that run out. */
#include "hotbox.h"

static void test_keys_run_out(void)
{
	static const char *const algos[] = { "TREE", "RING", "NVLS", "PAT" };
	static const char *const protos[] = { "LL", "LL128", "SIMPLE", NULL };
	static const char *const funcs[] = { "AllGather", "AllReduce" };
	uint64_t ops = 0;

	begin();
	for (unsigned i = 0; i < 2 * 40 * 16; i++) {
		void *op = track_operation(&track, comm,
		                           &(struct event){ .peer = EVENT_NO_PEER,
		                                            .func = funcs[i / 640],
		                                            .datatype = "ncclInt8",
		                                            .algo = algos[i / 4 % 4],
		                                            .proto = protos[i % 4],
		                                            .count = 1ull << i / 16 % 40,
		                                            .channels = 1 });

		stop(kernel(op, 0, 1000), 2000);
	}
	for (unsigned i = 0; i < BOX_KEYS; i++)
		ops += box.keys[i].ops;
	ok(dropped(BOX_DROP_NO_KEY) && dropped(BOX_DROP_NO_KEY) == 1280 - ops,
	   "kinds beyond the table are counted (%llu)",
	   (unsigned long long)dropped(BOX_DROP_NO_KEY));
	ok(completed() == 1280, "and their operations are, too");
}

static unsigned live_comms(void)
{
	unsigned live = 0;

	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		live += box.comms[i].state == BOX_COMM_LIVE;
	return live;
}

static void test_communicators(void)
{
	void *contexts[BOX_LIVE_COMMS + 1];

	begin();
	whole_operation(1000, 2000);
	contexts[0] = comm;
	for (unsigned i = 1; i <= BOX_LIVE_COMMS; i++)
		contexts[i] =
		    comms_add(&track, &(struct comm_fields){ .id = i, .nranks = 2, .name = "x" });
	ok(!start(contexts[BOX_LIVE_COMMS], 1, 1024) && dropped(BOX_DROP_NO_COMM) == 1,
	   "operations of a communicator beyond those with a record are counted");
	comms_remove(&track, contexts[BOX_LIVE_COMMS]);
	void *late = start(comm, 1, 1024);

	comms_remove(&track, comm);
	comms_remove(&track, comm);
	ok(live_comms() == BOX_LIVE_COMMS - 1, "a communicator ends once");
	void *next = comms_add(
	    &track,
	    &(struct comm_fields){ .id = 99, .nranks = 8, .name = "c", .rank = 3, .nnodes = 2 });

	ok(box.comms[0].id == 99 && box.comms[0].completed == 0, "its record serves another");
	ok(box.comms[BOX_LIVE_COMMS].id == 7 && box.comms[BOX_LIVE_COMMS].completed == 1 &&
	       box.keys[0].comm == BOX_LIVE_COMMS && box.keys[0].ops == 1,
	   "and its figures are kept in a folded one");
	stop(kernel(late, 0, 1000), 2000);
	ok(box.comms[0].completed == 0 && dropped(BOX_DROP_EXPIRED) == 1,
	   "an operation that ends later is not credited to the new one");
	ok(!start(comm, 1, 1024) && enqueued(0) == 0, "a context that is gone starts nothing");
	comm = next;
	whole_operation(1000, 5000);
	comms_remove(&track, next);
	comms_add(&track, &(struct comm_fields){ .id = 100, .nranks = 8 });
	ok(box.keys[0].ops == 2 && box.keys[0].busy_ns == 5000 &&
	       box.comms[BOX_LIVE_COMMS].folded == 2,
	   "alike communicators fold into one");
}

/* The thread that tells of the end of its last operation does not get to run. */
static void test_a_destroyed_one_that_is_busy(void)
{
	void *contexts[BOX_LIVE_COMMS] = { 0 };
	uint32_t generation;

	begin();
	contexts[0] = comm;
	for (unsigned i = 1; i < BOX_LIVE_COMMS; i++)
		contexts[i] =
		    comms_add(&track, &(struct comm_fields){ .id = i, .nranks = 2, .name = "x" });
	comms_remove(&track, contexts[5]);
	comms_remove(&track, contexts[9]);
	ok(comm_enter(&box.comms[5]), "a late end is being added to one that was destroyed");
	ok(handle_context_comm(comms_add(&track, &(struct comm_fields){ .id = 100, .nranks = 2 }),
	                       &generation) == 9,
	   "the next communicator takes another one's record");
	ok(handle_context_comm(comms_add(&track, &(struct comm_fields){ .id = 101, .nranks = 2 }),
	                       &generation) == UINT32_MAX,
	   "as long as there is one");
	comm_leave(&box.comms[5]);
	ok(handle_context_comm(comms_add(&track, &(struct comm_fields){ .id = 102, .nranks = 2 }),
	                       &generation) == 5,
	   "and this one's when the end is added");
}

static void test_keys_of_the_destroyed(void)
{
	begin();
	for (unsigned i = 0; i < 20; i++) {
		comm =
		    comms_add(&track, &(struct comm_fields){ .id = i, .nranks = 2, .name = "k" });
		for (unsigned k = 0; k < 13; k++) {
			void *op = start(comm, 1, 4ull << k);

			stop(kernel(op, 0, 1000), 2000);
		}
		comms_remove(&track, comm);
	}
	ok(!dropped(BOX_DROP_NO_KEY), "destroyed communicators give their keys back in time");
}

/* Each with a name of its own: none gives its keys to one that was like it. */
static void test_keys_of_the_destroyed_with_other_names(void)
{
	uint64_t ops = 0, completed_ops = 0, folded = 0;
	char name[16];

	begin();
	for (unsigned i = 0; i < 200; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		comm =
		    comms_add(&track, &(struct comm_fields){ .id = i, .nranks = 2, .name = name });
		for (unsigned k = 0; k < 10; k++) {
			void *op = start(comm, 1, 4ull << k);

			stop(kernel(op, 0, 1000), 2000);
		}
		comms_remove(&track, comm);
	}
	for (unsigned i = 0; i < BOX_KEYS; i++)
		ops += box.keys[i].ops;
	for (unsigned i = 0; i < BOX_COMMS; i++) {
		if (box.comms[i].state == BOX_COMM_FREE)
			continue;
		completed_ops += box.comms[i].completed;
		folded += box.comms[i].folded;
	}
	ok(!dropped(BOX_DROP_NO_KEY),
	   "200 communicators with 200 names leave keys to each other (%llu dropped)",
	   (unsigned long long)dropped(BOX_DROP_NO_KEY));
	ok(ops == 2000 && completed_ops == 2000, "and all operations are kept (%llu, %llu)",
	   (unsigned long long)ops, (unsigned long long)completed_ops);
	ok(!strcmp(box.comms[BOX_COMMS - 1].name, "(others)") &&
	       box.comms[BOX_COMMS - 1].state == BOX_COMM_FOLDED &&
	       box.comms[BOX_COMMS - 1].folded > 100 && folded > box.comms[BOX_COMMS - 1].folded,
	   "those of long ago together, the latest by name");
	unsigned named = 0;

	for (unsigned i = BOX_LIVE_COMMS; i < BOX_COMMS - 1; i++)
		named += box.comms[i].state == BOX_COMM_FREE && box.comms[i].completed;
	ok(!named, "and a record that is free has nothing");
}

static void test_a_life_of_communicators(void)
{
	char name[16];

	begin();
	for (unsigned i = 0; i < 100000; i++) {
		snprintf(name, sizeof(name), "g%u", i % 50);
		comm = comms_add(&track, &(struct comm_fields){
					     .id = i, .nranks = 2 + (int)(i % 3), .name = name });
		if (i % 100 == 0)
			whole_operation(1000, 2000);
		comms_remove(&track, comm);
	}
	uint64_t ops = 0;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		ops += box.keys[i].ops;
	ok(ops == 1000 && !dropped(BOX_DROP_NO_KEY),
	   "100,000 communicators lose no operation (%llu)", (unsigned long long)ops);
	ok(box.header->comms_created == 100001 && !(box.header->layout_seq & 1), "and are counted");
}

int main(void)
{
	log2_init();
	test_keys_run_out();
	test_communicators();
	test_a_destroyed_one_that_is_busy();
	test_keys_of_the_destroyed();
	test_keys_of_the_destroyed_with_other_names();
	test_a_life_of_communicators();
	return done_testing();
}
