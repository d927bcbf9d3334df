/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's masks under the site's list of versions, its kill switch and the guard. */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ask/mask.h"
#include "base/clock.h"
#include "base/log2.h"
#include "hot/calls.h"
#include "hot/coll.h"
#include "hot/follow.h"
#include "hot/kernels.h"
#include "hot/start.h"
#include "nccl/abi.h"
#include "upkeep/comms.h"
#include "upkeep/sweep.h"
#include "switch_file.h"
#include "tap.h"

#define SECOND_NS 1000000000ull
#define ALL (ABI_COLL | ABI_P2P | ABI_KERNEL_CH)
#define LIGHT (ABI_COLL | ABI_P2P)
#define FOREIGN ABI_PROXY_OP

static int mask;
static struct box box;
static struct track track;
static struct mask control;
static struct config config;
static uint64_t now_ns;
static char message[MASK_MESSAGE_BYTES];

static enum box_silent library_says; /* as identity_fill leaves it */

static void start(void)
{
	box.header->silent = library_says;
	box.header->silent_ns = box.header->sampled_ns = box.header->hot_ns = 0;
	track_init(&track, &box, 1ull << 32,
	           &(struct track_options){ .p2p = true, .timing = BOX_TIMING_GPU });
	mask_init(&control, &config, &track);
	mask = 0; /* as libnccl has it before the first communicator */
	now_ns = 100 * SECOND_NS;
}

static void begin(void)
{
	start();
	mask_begin(&control, &mask, ALL, now_ns);
	mask_take_message(&control, message);
}

/* Rounds of a second, in each of which calls took so much. */
static void rounds(unsigned n, uint64_t hot_ns)
{
	for (unsigned i = 0; i < n; i++) {
		now_ns += SECOND_NS;
		box.header->hot_ns += hot_ns;
		mask_round(&control, now_ns, 0);
	}
}

static void test_disabled(void)
{
	begin();
	ok(mask == ALL && !*message && !mask_is_silent(&control), "the mask is what is wanted");
	switch_on();
	rounds(1, 0);
	mask_take_message(&control, message);
	ok(mask == 0 && box.header->silent == BOX_SILENT_DISABLED && strstr(message, "disabled"),
	   "disabled: the next round clears the mask and says so");
	rounds(5, 0);
	ok(box.header->silent_ns == 5 * SECOND_NS, "silence is counted");
	mask_take_message(&control, message);
	ok(!*message, "and said once");
	mask_begin(&control, &mask, ALL, now_ns);
	ok(mask == 0, "a new communicator stays silent");
	switch_off();
	rounds(1, 0);
	mask_take_message(&control, message);
	ok(mask == ALL && !mask_is_silent(&control) && strstr(message, "enabled"),
	   "enabled: the mask is back");
	ok(box.header->silent_ns == 6 * SECOND_NS, "the last second was silent, too");
	rounds(100, 0);
	ok(box.header->silent_ns == 6 * SECOND_NS && mask == ALL, "from then on it is not");
}

static void test_disabled_from_the_start(void)
{
	switch_on();
	begin();
	ok(mask == 0 && mask_is_silent(&control) && *message, "the first communicator is silent");
	switch_off();
	rounds(1, 0);
	ok(mask == ALL, "and measured as soon as that is over");
	switch_on();
	mask_begin(&control, &mask, ALL, now_ns);
	ok(mask == 0, "a communicator does not wait for the round to fall silent");
	ok(mask_end(&control, 0, now_ns) == 1, "one of two communicators goes");
	ok(mask_end(&control, 0, now_ns) == 0, "and the other one");
	mask = FOREIGN; /* the library is gone */
	rounds(3, 0);
	switch_off();
	rounds(3, 0);
	ok(mask == FOREIGN, "without a communicator nobody touches the mask");
}

static void test_the_word_of_others(void)
{
	begin();
	mask = FOREIGN;
	rounds(20, 0);
	ok(mask == FOREIGN, "another one's mask stays");
	switch_on();
	rounds(1, 0);
	ok(mask == 0, "until it is disabled");
	switch_off();
	rounds(1, 0);
	ok(mask == FOREIGN, "and comes back");
	mask = 0;
	switch_on();
	rounds(2, 0);
	switch_off();
	rounds(2, 0);
	ok(mask == 0, "so does another one's nothing");
	begin();
	switch_on();
	rounds(2, 0);
	mask = FOREIGN;
	rounds(20, 0);
	ok(mask == FOREIGN, "what others write while it is disabled is not fought");
	switch_off();
	rounds(2, 0);
	ok(mask == FOREIGN, "nor when it is enabled");
}

static void test_a_late_store(void)
{
	begin();
	mask_want(&control, 0, ALL);
	mask = LIGHT;
	rounds(1, 0);
	ok(mask == ALL, "a late word of the hot path is put right");
	mask = LIGHT;
	rounds(1, 0);
	ok(mask == ALL, "and another one");
	rounds(10, 0);
	mask = LIGHT;
	rounds(1, 0);
	ok(mask == LIGHT, "long after a change it is another one's");
	begin();
	switch_on();
	rounds(1, 0);
	mask = ALL;
	rounds(1, 0);
	ok(mask == 0, "a late word does not end the silence");
	switch_off();
}

static void test_what_is_wanted(void)
{
	begin();
	mask_want(&control, 0, ALL | ABI_PROXY_STEP);
	ok(mask == (ALL | ABI_PROXY_STEP), "more may be wanted");
	switch_on();
	rounds(1, 0);
	mask_want(&control, 0, ALL);
	ok(mask == 0, "a mask of 0 wins");
	switch_off();
	rounds(1, 0);
	ok(mask == ALL, "and what is wanted by then comes back");
	mask = FOREIGN;
	mask_want(&control, 0, LIGHT);
	ok(mask == FOREIGN, "another one's word wins, too");
}

/* One NCCL is linked into a framework, another one is loaded beside it. */
static void test_two_libraries(void)
{
	int other = 0;
	unsigned number;

	begin();
	number = mask_begin(&control, &other, ALL, now_ns);
	ok(number == 1 && mask == ALL && other == ALL && track.mask == &other, "each has its mask");
	switch_on();
	rounds(1, 0);
	ok(mask == 0 && other == 0, "disabled: both are silent");
	switch_off();
	rounds(1, 0);
	ok(mask == ALL && other == ALL, "enabled: both are back");
	rounds(5, SECOND_NS / 40);
	mask = other = LIGHT; /* the hot path's word, and its late one */
	control.library[0].watch = 1;
	rounds(1, SECOND_NS / 40);
	ok(mask == ALL && other == LIGHT, "the current one's is sampled, the other's is full");
	ok(mask_end(&control, number, now_ns) == 0 && track.mask == &mask,
	   "one goes, and the other is current");
	other = FOREIGN; /* its library is gone */
	switch_on();
	rounds(20, 0);
	ok(mask == 0 && other == FOREIGN, "the living one is silent, the other is not touched");
	switch_off();
	rounds(1, 0);
	ok(mask == ALL, "and comes back");
	mask_end(&control, 0, now_ns);
	ok(!track.mask, "after the last the hot path has none");
	now_ns += 3600 * SECOND_NS;
	uint64_t sampled_ns = box.header->sampled_ns, silent_ns = box.header->silent_ns;

	rounds(1, 0);
	ok(box.header->sampled_ns == sampled_ns && box.header->silent_ns == silent_ns,
	   "a thread that comes free long after counts no time");
}

static void test_too_many_libraries(void)
{
	int others[MASK_LIBRARIES] = { 0 };
	unsigned number = 0;

	begin();
	for (unsigned i = 0; i < MASK_LIBRARIES; i++)
		number = mask_begin(&control, &others[i], ALL, now_ns);
	ok(number == MASK_LIBRARIES && !others[MASK_LIBRARIES - 1] &&
	       track.mask == &others[MASK_LIBRARIES - 2],
	   "a mask that has no place is left alone");
	mask_end(&control, 0, now_ns);
	ok(mask_begin(&control, &others[MASK_LIBRARIES - 1], ALL, now_ns) == 0 &&
	       others[MASK_LIBRARIES - 1] == ALL,
	   "until another one goes");
}

static void test_denied(void)
{
	box.header->nccl_version = 23102;
	snprintf(config.deny_nccl, sizeof(config.deny_nccl), "2.28.0-2.31.2");
	begin();
	ok(mask == 0 && mask_is_denied(&control) && strstr(message, "list"),
	   "a denied NCCL gets no mask, and one line");
	switch_on();
	mask_begin(&control, &mask, ALL, now_ns);
	switch_off();
	mask_begin(&control, &mask, ALL, now_ns);
	ok(mask == 0 && box.header->silent == BOX_SILENT_DENIED, "whatever the switch says");
	while (mask_end(&control, 0, now_ns + 7 * SECOND_NS))
		;
	ok(box.header->silent_ns == 7 * SECOND_NS, "its whole life is silence");
	box.header->nccl_version = 0;
	begin();
	ok(mask == ALL && !*message, "an NCCL of unknown version is measured");
	snprintf(config.deny_nccl, sizeof(config.deny_nccl), "2.3l.2");
	begin();
	ok(mask == ALL && strstr(message, "2.3l.2"), "a bad word denies nothing and is said");
	config.deny_nccl[0] = '\0';
}

/* As a graph that was captured before: whatever the mask is now, each replay tells of its
 * operations. */
static void *replay(void *context)
{
	void *handle = NULL;

	track_coll(&track, context,
	           &(struct abi_coll){ .func = "AllReduce",
	                               .datatype = "ncclInt8",
	                               .algo = "RING",
	                               .proto = "SIMPLE",
	                               .count = 1024,
	                               .channels = 1 },
	           &handle);
	return handle;
}

static void test_replays(void)
{
	begin();
	void *context =
	    comms_add(&track, &(struct comm_fields){ .id = 1, .nranks = 2, .name = "x" });
	uint32_t generation;
	struct box_comm *comm = &box.comms[handle_context_comm(context, &generation)];
	void *before = replay(context);
	unsigned followed = 0;

	ok(replay(context) && replay(context), "what a graph replays is followed");
	switch_on();
	rounds(1, 0);
	uint64_t untimed = comm->untimed;

	for (unsigned i = 0; i < 1000; i++)
		followed += replay(context) != NULL;
	ok(!followed, "and not while the switch is on (%u)", followed);
	sweep_count(&track);
	ok(comm->enqueued == 3 && comm->untimed == untimed, "nor counted (%llu)",
	   (unsigned long long)comm->enqueued);
	void *kernel = track_kernel_start(&track, before, 0, 1000);

	track_kernel_stop(&track, kernel, 2000);
	ok(comm->completed == 1, "what was in flight ends as it would");
	switch_off();
	rounds(1, 0);
	ok(replay(context) && replay(context), "afterwards it is followed again");
	sweep_count(&track);
	ok(comm->enqueued == 5, "and counted (%llu)", (unsigned long long)comm->enqueued);
}

static void test_rccl(void)
{
	library_says = BOX_SILENT_RCCL;
	begin();
	ok(mask == 0 && mask_is_denied(&control) && strstr(message, "RCCL is not supported yet"),
	   "RCCL gets no mask, and one line: %s", message);
	switch_on();
	rounds(1, 0);
	switch_off();
	rounds(1, 0);
	ok(mask == 0 && box.header->silent == BOX_SILENT_RCCL, "whatever the switch says");
	library_says = BOX_SILENT_NOT;
}

static void test_budget(void)
{
	begin();
	rounds(5, SECOND_NS / 40);
	mask_take_message(&control, message);
	ok(track.sample_every == 2 && box.header->sampling == 2 &&
	       strstr(message, "one operation in 2"),
	   "above the budget one in two is measured: %s", message);
	mask = LIGHT; /* as the hot path left it */
	rounds(30, SECOND_NS / 1000);
	mask_take_message(&control, message);
	ok(track.sample_every == 1 && box.header->sampling == 1 && mask == ALL,
	   "recovered, the mask is full");
	ok(box.header->sampled_ns == 30 * SECOND_NS, "the time is counted");
	ok(!*message, "two lines in a minute would be too many");
	rounds(60, 0);
	rounds(5, SECOND_NS / 40);
	mask_take_message(&control, message);
	ok(*message, "later there is one");
	mask = LIGHT;
	switch_on();
	rounds(1, 0);
	switch_off();
	rounds(1, 0);
	ok(mask == ALL && track.sample_every == 2,
	   "disabled meanwhile, sampling goes on afterwards");
	config.budget_ppm = 0;
	begin();
	rounds(60, SECOND_NS);
	ok(track.sample_every <= 1, "without a budget there is no limit");
	config.budget_ppm = 10000;
}

static _Atomic bool over;
static _Atomic uint64_t done, told;

/* Collectives at full speed, told as NCCL does: not while its mask is 0. */
static void *operations(void *context)
{
	const struct event event = { .peer = EVENT_NO_PEER,
	                             .func = "AllReduce",
	                             .datatype = "ncclFloat32",
	                             .algo = "RING",
	                             .proto = "SIMPLE",
	                             .count = 256,
	                             .channels = 1 };

	for (uint64_t gpu_ns = 1000; !atomic_load(&over); gpu_ns += 1000) {
		if (!__atomic_load_n(&mask, __ATOMIC_RELAXED)) {
			atomic_fetch_add(&done, 1);
			sched_yield();
			continue;
		}
		atomic_fetch_add(&told, 1);
		void *group = track_group_start(&track, context);
		void *op = track_operation(&track, context, &event);

		track_group_stop(&track, group);
		track_kernel_stop(&track, track_kernel_start(&track, op, 0, gpu_ns), gpu_ns + 500);
		atomic_fetch_add(&done, 1);
	}
	return NULL;
}

/* The operation that is being told is over, so no store of it can come any more. */
static void wait_for_an_operation(void)
{
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + 10 * SECOND_NS;
	uint64_t from = atomic_load(&done);

	while (atomic_load(&done) < from + 2 && clock_ns(CLOCK_MONOTONIC) < end)
		sched_yield();
}

static void test_a_racing_hot_path(void)
{
	unsigned not_full = 0, not_silent = 0, not_sampled = 0;
	pthread_t thread;

	begin();
	pthread_create(&thread, NULL, operations,
	               comms_add(&track, &(struct comm_fields){
					     .id = 1, .nranks = 2, .nnodes = 1, .name = "c" }));
	for (unsigned i = 0; i < 300; i++) {
		rounds(5, SECOND_NS / 40);
		control.budget.patience_ns = 30 * SECOND_NS; /* or it would be an hour by and by */
		wait_for_an_operation();
		not_sampled += atomic_load(&track.sample_every) != 2;
		if (i % 2) {
			switch_on();
			rounds(1, 0);
			wait_for_an_operation();
			rounds(1, 0);
			not_silent += __atomic_load_n(&mask, __ATOMIC_RELAXED) != 0;
			switch_off();
		}
		rounds(35, 0);
		wait_for_an_operation();
		rounds(1, 0);
		not_full += __atomic_load_n(&mask, __ATOMIC_RELAXED) != ALL;
	}
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	sweep_count(&track);
	ok(!not_sampled, "sampling begins while operations run (%u)", not_sampled);
	ok(!not_full, "and ends with the full mask (%u of 300)", not_full);
	ok(!not_silent, "silence is silence (%u of 150)", not_silent);
	uint64_t lost = atomic_load(&told) - box.comms[0].enqueued;

	ok(box.header->comms_created == 1 && lost <= 150,
	   "no operation is lost, but one where silence begins (%llu)", (unsigned long long)lost);
}

int main(void)
{
	int file_error;

	snprintf(dir, sizeof(dir), "/dev/shm/nccl-inspector-test-XXXXXX");
	if (!mkdtemp(dir) || box_open(&box, -1, "x", &file_error))
		return 1;
	snprintf(config.control_dir, sizeof(config.control_dir), "%s", dir);
	config.budget_ppm = 10000;
	log2_init();
	test_disabled();
	test_disabled_from_the_start();
	test_the_word_of_others();
	test_a_late_store();
	test_what_is_wanted();
	test_two_libraries();
	test_too_many_libraries();
	test_denied();
	test_rccl();
	test_budget();
	test_a_racing_hot_path();
	test_replays();
	rmdir(dir);
	return done_testing();
}
