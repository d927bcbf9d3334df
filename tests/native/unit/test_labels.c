/* SPDX-License-Identifier: Apache-2.0 */
/* Operations by the application's tag, the kernel of a symmetric collective, and the root. */
#include <pthread.h>
#include <stdio.h>

#include "hotbox.h"

#define OPS 2000u

static const struct box_label nothing;

static const struct box_label *label_at(unsigned first, unsigned count, uint64_t value)
{
	for (unsigned i = first; i < first + count; i++)
		if (box.labels[i].used == KEY_VALID && box.labels[i].value == value)
			return &box.labels[i];
	return &nothing;
}

static const struct box_label *tag(uint64_t value)
{
	return label_at(0, BOX_LABEL_USER_TAGS, value);
}

static const struct box_label *root(uint64_t value)
{
	return label_at(BOX_LABEL_USER_TAGS + BOX_LABEL_KERNELS, BOX_LABEL_ROOTS, value);
}

static void *broadcast(void *context, int from, uint64_t bytes)
{
	return track_operation(&track, context,
	                       &(struct event){ .peer = EVENT_NO_PEER,
	                                        .func = "Broadcast",
	                                        .datatype = "ncclInt8",
	                                        .algo = "RING",
	                                        .proto = "SIMPLE",
	                                        .count = bytes,
	                                        .root = from,
	                                        .channels = 1 });
}

static void run(void *operation, uint64_t time_ns)
{
	stop(kernel(operation, 0, 1000), 1000 + time_ns);
	gpu_ns += 1000 + time_ns;
}

static void test_tags(void)
{
	begin();
	for (unsigned i = 0; i < 3; i++) {
		void *operation = start(comm, 1, 256);

		labels_told(&track, comm, i < 2 ? 7 : 9, NULL, 1024, operation);
		run(operation, 5000);
	}
	ok(tag(7)->ops == 2 && tag(7)->bytes == 2048,
	   "operations and bytes are those of their tag");
	ok(tag(7)->timed_ops == 2 && tag(7)->busy_ns == 10000 && tag(9)->busy_ns == 5000,
	   "and so are their times");
	ok(tag(7)->first_tick && tag(7)->last_tick >= tag(7)->first_tick &&
	       tag(7)->comm == BOX_LABEL_ALL_COMMS,
	   "a tag is of all communicators, and has its time");
	run(start(comm, 1, 256), 5000);
	labels_told(&track, comm, 0, NULL, 1024, NULL);
	labels_told(&track, comm, 1ull << 63, NULL, 1024, NULL);
	ok(tag(7)->busy_ns == 10000 && !tag(1ull << 63)->ops && !tag(0)->ops,
	   "no tag, and NCCL's own, count nothing");
	labels_told(&track, comm, 7, NULL, 1024, NULL);
	ok(tag(7)->ops == 3 && tag(7)->timed_ops == 2,
	   "an operation without a slot counts without a time");
}

/* The slot of one that had a tag serves one that has none. */
static void test_a_slot_that_serves_another(void)
{
	begin();
	for (unsigned i = 0; i < 2 * BOX_OPS; i++) {
		void *operation = start(comm, 1, 256);

		if (i < BOX_OPS)
			labels_told(&track, comm, 7, NULL, 1024, operation);
		run(operation, 100);
	}
	ok(tag(7)->ops == BOX_OPS && tag(7)->timed_ops == BOX_OPS &&
	       tag(7)->busy_ns == BOX_OPS * 100ull,
	   "its time is not the tag's");
}

static void test_kernels(void)
{
	begin();
	void *operation = start(comm, 1, 256);

	labels_told(&track, comm, 7, "LDMC", 1024, operation);
	run(operation, 5000);
	const struct box_label *kernel = &box.labels[BOX_LABEL_USER_TAGS];

	ok(kernel->kind == BOX_LABEL_KERNEL && !strcmp(kernel->text, "LDMC") &&
	       kernel->busy_ns == 5000,
	   "a kernel has its name and time");
	ok(tag(7)->busy_ns == 5000, "and the tag of the same operation has, too");
	labels_told(&track, comm, 0, "a kernel\nwhose name is longer than there is room for", 1024,
	            NULL);
	labels_told(&track, comm, 0, "a kernel\nwhose name is longer than there is room for", 1024,
	            NULL);
	ok(kernel[1].ops == 2 && !strcmp(kernel[1].text, "a kernel?whose name is longer than ther"),
	   "a long name is cut, once");
}

static void test_roots(void)
{
	begin();
	run(broadcast(comm, 0, 100), 5000);
	run(broadcast(comm, 2, 200), 6000);
	run(broadcast(comm, 2, 200), 6000);
	ok(root(0)->ops == 1 && root(2)->ops == 2 && root(2)->bytes == 400 &&
	       root(2)->busy_ns == 12000,
	   "Broadcasts by root");
	ok(root(2)->func == BOX_FUNC_BROADCAST && root(2)->comm == 0,
	   "of their communicator and function");
	broadcast(comm, -1, 100);
	run(start(comm, 1, 256), 5000);
	ok(!root(UINT64_MAX)->ops && !root(UINT32_MAX)->ops,
	   "what has no root, and an odd one, have no place");
	track.options.timing = BOX_TIMING_NONE;
	broadcast(comm, 2, 200);
	ok(root(2)->ops == 3 && root(2)->timed_ops == 2, "one without a time counts");
}

/* NCCL 2.29 and later gives no event of a Broadcast but its call. */
static void test_calls_alone(void)
{
	const struct event call = { .peer = EVENT_NO_PEER,
	                            .func = "Broadcast",
	                            .datatype = "ncclInt8",
	                            .count = 100,
	                            .root = 3 };

	begin();
	track_coll_call(&track, comm, &call);
	track_coll_call(&track, comm, &call);
	ok(root(3)->called_ops == 2 && root(3)->called_bytes == 200 && !root(3)->ops,
	   "calls count where NCCL tells no more");
	run(broadcast(comm, 3, 100), 5000);
	track_coll_call(&track, comm, &call);
	ok(root(3)->ops == 1 && root(3)->called_ops == 2, "and where it does, operations");
}

static void test_parts_of_a_group(void)
{
	begin();
	void *group = track_group_start(&track, comm), *call = p2p_calls(comm, group, 2);
	void *send = p2p(call, "Send", 1, 100), *receive = p2p(call, "Recv", 1, 100);

	labels_told(&track, comm, 7, NULL, 100, send);
	labels_told(&track, comm, 7, NULL, 100, receive);
	track_group_stop(&track, group);
	run(send, 5000);
	run(receive, 5000);
	ok(tag(7)->ops == 2 && tag(7)->bytes == 200 && !tag(7)->timed_ops && !tag(7)->busy_ns,
	   "parts of a group count without their times, which overlap");
	group = track_group_start(&track, comm);
	send = p2p(p2p_calls(comm, group, 1), "Send", 1, 100);
	labels_told(&track, comm, 7, NULL, 100, send);
	track_group_stop(&track, group);
	run(send, 5000);
	ok(tag(7)->ops == 3 && tag(7)->busy_ns == 5000, "a Send alone has its time");
}

static void test_more_than_there_are_places(void)
{
	begin();
	for (unsigned i = 1; i <= 1000; i++) {
		char name[16];

		snprintf(name, sizeof(name), "kernel%u", i);
		labels_told(&track, comm, i, name, 10, NULL);
		run(broadcast(comm, (int)i, 10), 100);
	}
	ok(tag(1)->ops == 1 && tag(BOX_LABEL_OTHERS)->ops == 1000 - (BOX_LABEL_USER_TAGS - 1),
	   "tags beyond are others");
	const struct box_label *kernels = &box.labels[BOX_LABEL_USER_TAGS + BOX_LABEL_KERNELS - 1];

	ok(kernels->value == BOX_LABEL_OTHERS && kernels->ops == 1000 - (BOX_LABEL_KERNELS - 1),
	   "so are kernels");
	ok(root(BOX_LABEL_OTHERS)->ops == 1000 - (BOX_LABEL_ROOTS - 1) &&
	       root(BOX_LABEL_OTHERS)->busy_ns == 100 * (1000 - (BOX_LABEL_ROOTS - 1)),
	   "and roots, with their times");
}

/* Communicators of one name come and go. */
static void test_folded_communicators(void)
{
	begin();
	for (unsigned i = 0; i < 3 * BOX_LIVE_COMMS; i++) {
		void *one = comms_add(
		    &track, &(struct comm_fields){ .id = 1000 + i, .nranks = 8, .name = "x" });

		run(broadcast(one, 5, 10), 100);
		comms_remove(&track, one);
	}
	uint64_t ops = 0;
	unsigned used = 0;

	for (unsigned i = BOX_LABEL_USER_TAGS + BOX_LABEL_KERNELS; i < BOX_LABELS; i++) {
		const struct box_label *label = &box.labels[i];

		used += label->used == KEY_VALID;
		ops += label->used == KEY_VALID ? label->ops : 0;
		if (label->used == KEY_VALID && label->value != BOX_LABEL_OTHERS)
			ok(box.comms[label->comm].state != BOX_COMM_FREE,
			   "a root has a communicator");
	}
	ok(ops == 3ull * BOX_LIVE_COMMS, "no operation is lost (%llu)", (unsigned long long)ops);
	ok(used <= BOX_LABEL_ROOTS && root(5)->ops, "and their roots are one");
}

static void test_what_does_not_count(void)
{
	begin();
	labels_told(&track, NULL, 7, "kernel", 10, NULL);
	labels_told(&track, handle_of(0xffff), 7, "kernel", 10, NULL);
	labels_told(&track, handle_of(handle_bits(comm) + (1ull << 40)), 7, "kernel", 10, NULL);
	ok(!tag(7)->ops, "contexts that are not ours");
	labels_told(&track, comm, 7, NULL, 10, handle_of(HANDLE_GROUP));
	labels_told(&track, comm, 7, NULL, 10, handle_of(UINT64_MAX));
	ok(tag(7)->ops == 2 && !tag(7)->timed_ops,
	   "handles that are not ours count without a time");
	track_follow(&track, false);
	labels_told(&track, comm, 7, NULL, 10, NULL);
	ok(tag(7)->ops == 2, "nothing while the site's kill switch is on");
}

/* A thread that calls another communicator. */
static void *many(void *context)
{
	for (unsigned i = 0; i < OPS; i++) {
		void *operation = start(context, 1, 256);

		labels_told(&track, context, 1 + i % 30, "kernel", 10, operation);
		track_kernel_stop(&track,
		                  track_kernel_start(&track, operation, 0, 1700000000000000000ull),
		                  1700000000000000100ull);
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t other;
	uint64_t ops = 0, busy_ns = 0;

	begin();
	void *second = comms_add(
	    &track, &(struct comm_fields){ .id = 8, .name = "d", .nranks = 8, .nnodes = 2 });

	pthread_create(&other, NULL, many, second);
	many(comm);
	pthread_join(other, NULL);
	for (unsigned i = 0; i < BOX_LABEL_USER_TAGS; i++) {
		ops += box.labels[i].ops;
		busy_ns += box.labels[i].busy_ns;
	}
	ok(ops == 2 * OPS && busy_ns == 100ull * 2 * OPS,
	   "threads of two communicators lose nothing");
}

int main(void)
{
	test_tags();
	test_a_slot_that_serves_another();
	test_kernels();
	test_roots();
	test_calls_alone();
	test_parts_of_a_group();
	test_more_than_there_are_places();
	test_folded_communicators();
	test_what_does_not_count();
	test_threads();
	return done_testing();
}
