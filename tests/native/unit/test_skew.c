/* SPDX-License-Identifier: Apache-2.0 */
/* How much later each channel of a communicator ends than its first one. */
#include "hot/skew.h"
#include "hotbox.h"

#define SAMPLED TRACK_CALL_SAMPLE

static const unsigned LATE = 5;

/* Operations with so many channels, one of which ends 300 of 1000 us after the others. */
static void operations(void *context, unsigned count, unsigned channels)
{
	for (unsigned n = 0; n < count; n++) {
		void *kernels[BOX_CHANNELS], *op = start(context, channels, 1024);

		for (unsigned channel = 0; channel < channels; channel++)
			kernels[channel] = kernel(op, channel, 0);
		for (unsigned channel = 0; channel < channels; channel++)
			stop(kernels[channel], channel == LATE ? 1000000 : 700000);
		gpu_ns += 2000000;
	}
}

static void test_the_late_channel_is_the_one(void)
{
	const struct box_skew *skew;

	begin();
	skew = &box.skews[0];
	operations(comm, 10 * SAMPLED, 8);
	ok(completed() == 10 * SAMPLED && !dropped(BOX_DROP_STALE),
	   "all are counted, those that are looked at, too");
	ok(skew->ops == 10 && skew->time_ns == 10 * 1000000, "one of %u is looked at", SAMPLED);
	ok(skew->channels == 0xff, "its channels");
	for (unsigned channel = 0; channel < 8; channel++)
		ok(skew->late_ns[channel] == (channel == LATE ? 10 * 300000 : 0), "channel %u",
		   channel);
}

static void test_an_operation_of_one_channel_tells_nothing(void)
{
	begin();
	operations(comm, 2 * SAMPLED, 1);
	ok(completed() == 2 * SAMPLED && !box.skews[0].ops, "there is no other to end before it");
}

static void test_a_send_is_not_looked_at(void)
{
	begin();
	for (unsigned n = 0; n < 2 * SAMPLED; n++)
		stop(kernel(p2p(NULL, "Send", 1, 64), 0, 0), 1000);
	ok(completed() == 2 * SAMPLED && !box.skews[0].ops, "its channels are its own");
}

static void test_an_operation_without_its_end_gives_way(void)
{
	void *first, *kernels[2];

	begin();
	operations(comm, SAMPLED - 1, 2);
	first = start(comm, 2, 1024); /* is looked at */
	kernels[0] = kernel(first, 0, 0);
	kernels[1] = kernel(first, 1, 0);
	operations(comm, SAMPLED, 8);
	ok(box.skews[0].ops == 1, "the next one is looked at while it is there");
	stop(kernels[0], 500000);
	stop(kernels[1], 900000);
	ok(box.skews[0].ops == 1 && completed() == 2 * SAMPLED,
	   "its end counts, and is not looked at");
}

static void test_a_new_communicator_begins_with_nothing(void)
{
	begin();
	operations(comm, SAMPLED, 8);
	ok(box.skews[0].ops == 1, "one is looked at");
	skew_new_comm(&track, 0);
	ok(!box.skews[0].ops && !box.skews[0].channels && !box.skews[0].late_ns[LATE], "forgotten");
}

static void test_times_that_cannot_be_are_not_added(void)
{
	void *op, *kernels[2];

	begin();
	operations(comm, SAMPLED - 1, 2);
	op = start(comm, 2, 1024);
	kernels[0] = kernel(op, 0, 0);
	kernels[1] = kernel(op, 1, 0);
	stop(kernels[0], 0); /* ended when it began */
	stop(kernels[1], 900000);
	ok(!box.skews[0].ops && completed() == SAMPLED, "the operation counts");
}

int main(void)
{
	test_the_late_channel_is_the_one();
	test_an_operation_of_one_channel_tells_nothing();
	test_a_send_is_not_looked_at();
	test_an_operation_without_its_end_gives_way();
	test_a_new_communicator_begins_with_nothing();
	test_times_that_cannot_be_are_not_added();
	return done_testing();
}
