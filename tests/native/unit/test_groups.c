/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and Recvs by peer and by group, what a kernel's phases tell, and measuring one group in so
 * many. */
#include <pthread.h>

#include "nccl/abi.h"
#include "hotbox.h"

static void test_peers(void)
{
	begin();
	stop(kernel(p2p(NULL, "Send", 1, 4000), 3, 1000), 2000);
	stop(kernel(p2p(NULL, "Send", 1, 4000), 3, 1000), 5000);
	stop(kernel(p2p(NULL, "Send", 2, 4000), 3, 1000), 3000);
	struct box_peer *one = NULL;

	for (unsigned i = 0; i < BOX_PEERS; i++)
		if (box.peers[i].used == 1 && box.peers[i].peer == 1)
			one = &box.peers[i];
	ok(one && one->ops == 2 && one->bytes == 8000 && one->busy_ns == 5000 &&
	       one->func == BOX_FUNC_SEND,
	   "Sends are counted by peer");
	ok(one && one->best_rate_q20 == 2 * LOG2_ONE,
	   "the best one's rate is kept (4000 bytes in 1000 ns: 2^2)");
}

static unsigned groups_in_use(void)
{
	unsigned open = 0;

	for (unsigned i = 0; i < GROUPS; i++)
		open += track.groups.group[i].token != 0;
	return open;
}

static void test_all_to_all(void)
{
	begin();
	void *group = track_group_start(&track, comm);
	void *parts[16], *call = p2p_calls(comm, group, 16);
	unsigned count = 0;

	for (int peer = 0; peer < 8; peer++) {
		parts[count++] = p2p(call, "Send", peer, 1000);
		parts[count++] = p2p(call, "Recv", peer, 1000);
	}
	for (unsigned i = 0; i < count; i++)
		if (parts[i])
			stop(kernel(parts[i], i, 1000 + i), i % 8 == 3 ? 90000 : 50000);
	ok(!key_of(BOX_FUNC_ALLTOALL), "a group is not over before its call has returned");
	track_group_stop(&track, group);
	struct box_key *key = key_of(BOX_FUNC_ALLTOALL);

	ok(key && key->ops == 1 && key->bytes == 8000 && key->busy_ns == 89000,
	   "Sends and Recvs with all others are one all-to-all, from first start to last stop "
	   "(%llu)",
	   key ? (unsigned long long)key->busy_ns : 0);
	ok(key_of(BOX_FUNC_SEND)->ops == 7 && key_of(BOX_FUNC_SEND)->untimed_ops == 1,
	   "its parts are counted as before");
	ok(key_of(BOX_FUNC_ALLTOALL)->algo == BOX_ALGO_GROUP, "and it says what it is");
	void *late = p2p(call, "Send", 4, 1);

	ok(late && dropped(BOX_DROP_NO_GROUP) == 1,
	   "to NCCL 2.27 a part that comes after the call is counted apart");
	group = track_group_start(&track, comm);
	void *send = p2p(group, "Send", 4, 5000), *receive = p2p(group, "Recv", 2, 7000);

	track_group_stop(&track, group);
	stop(kernel(send, 1, 200000), 201000);
	stop(kernel(receive, 2, 200000), 204000);
	ok(key_of(BOX_FUNC_SENDRECV)->bytes == 7000 && key_of(BOX_FUNC_SENDRECV)->busy_ns == 4000,
	   "a pipeline's exchange is a SendRecv, on NCCL 2.27 under its Group");
	group = track_group_start(&track, comm);
	stop(kernel(p2p(group, "Send", 4, 5000), 1, 300000), 301000);
	track_group_stop(&track, group);
	ok(key_of(BOX_FUNC_SENDRECV)->ops == 1, "a lone Send is not a group");
	ok(!groups_in_use(), "all groups are over");
}

static void test_a_lone_call_has_no_group(void)
{
	begin();
	void *group = track_group_start(&track, comm), *call = p2p_calls(comm, group, 1),
	     *lone = p2p(call, "Send", 4, 5000);

	ok(lone && !groups_in_use(), "of a single call no group is made");
	track_group_stop(&track, group);
	stop(kernel(lone, 1, 1000), 2000);
	ok(key_of(BOX_FUNC_SEND)->ops == 1 && !dropped(BOX_DROP_NO_GROUP),
	   "it is counted as what it is");
	group = track_group_start(&track, comm);
	lone = p2p(p2p_calls(comm, group, 1), "Send", 4, 5000);
	void *second = p2p(p2p_calls(comm, group, 1), "Recv", 4, 5000),
	     *third = p2p(p2p_calls(comm, group, 1), "Recv", 5, 5000);

	track_group_stop(&track, group);
	stop(kernel(lone, 1, 3000), 4000);
	stop(kernel(second, 1, 3000), 4000);
	stop(kernel(third, 1, 3000), 4000);
	ok(dropped(BOX_DROP_NO_GROUP) == 2 && !groups_in_use() && !key_of(BOX_FUNC_SENDRECV),
	   "a call after the first was told, which NCCL never makes, gives no group without its "
	   "first member");
	ok(completed() == 4, "and all are counted");
}

static void *part_of(void *context, void *call, void *plan, const char *func, int peer)
{
	return track_operation(&track, context,
	                       &(struct event){ .peer = peer,
	                                        .func = func,
	                                        .datatype = "ncclInt8",
	                                        .count = 1000,
	                                        .parent = call,
	                                        .plan = plan,
	                                        .channels = 1 });
}

/* An all-to-all of eight ranks in the one plan of its kernel, as src/plugin/profiler.cc tells it:
 * Group, P2ps, their stops. */
static void all_to_all_in_plan(void *context, void *call, void *parts[14])
{
	void *plan = track_plan_start(&track, context);

	for (unsigned i = 0; i < 7; i++) {
		int peer = (int)(i + (i >= 3)); /* all but oneself */

		parts[2 * i] = part_of(context, call, plan, "Send", peer);
		parts[2 * i + 1] = part_of(context, call, plan, "Recv", peer);
	}
	track_plan_stop(&track, plan);
}

static void run_parts(void *parts[14])
{
	for (unsigned i = 0; i < 14; i++)
		stop(kernel(parts[i], i, 1000 + i), 5000 + i);
}

static void *replay(void *call)
{
	void *parts[14];

	all_to_all_in_plan(comm, call, parts);
	run_parts(parts);
	return NULL;
}

static uint64_t all_to_alls(unsigned index)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		if (box.keys[i].used == 1 && box.keys[i].func == BOX_FUNC_ALLTOALL &&
		    box.keys[i].comm == index)
			sum += box.keys[i].ops;
	return sum;
}

static void test_tasks_after_the_call(void)
{
	void *parts[14];

	begin();
	void *group = track_group_start(&track, comm), *call = p2p_calls(comm, group, 14);

	track_group_stop(&track, group); /* it does not block */
	all_to_all_in_plan(comm, call, parts);
	run_parts(parts);
	ok(all_to_alls(0) == 1 && !dropped(BOX_DROP_NO_GROUP),
	   "what is told after the call has returned is its plan's group");
	pthread_t cuda;

	for (unsigned i = 0; i < 100; i++) {
		group = track_group_start(&track, comm); /* an eager call beside it */
		pthread_create(&cuda, NULL, replay, call);
		pthread_join(cuda, NULL);
		track_group_stop(&track, group);
	}
	ok(all_to_alls(0) == 101 && !dropped(BOX_DROP_NO_GROUP),
	   "a graph's replays are, too (%llu)", (unsigned long long)all_to_alls(0));
	group = track_group_start(&track, comm);
	ok(!track_plan_start(&track, comm),
	   "in the thread of the call the plan needs no group of its own");
	all_to_all_in_plan(comm, p2p_calls(comm, group, 14), parts);
	run_parts(parts);
	track_group_stop(&track, group);
	ok(all_to_alls(0) == 102, "what is told while it lasts is the call's");
	void *plan = track_plan_start(&track, comm), *lone = part_of(comm, NULL, plan, "Send", 4);

	track_plan_stop(&track, plan);
	stop(kernel(lone, 1, 1000), 2000);
	ok(!key_of(BOX_FUNC_SENDRECV) && !dropped(BOX_DROP_NO_GROUP),
	   "a lone Send is no group of its plan, either");
}

static void test_a_group_of_several_communicators(void)
{
	void *parts[8][14], *comms[8] = { 0 };

	begin();
	for (unsigned i = 0; i < 8; i++)
		comms[i] = i ? comms_add(&track,
		                         &(struct comm_fields){
					     .id = 70 + i, .name = "d", .nranks = 8, .rank = 3 })
		             : comm;
	for (unsigned turn = 0; turn < 500; turn++) {
		void *group = track_group_start(&track, comm), *calls[8];

		for (unsigned i = 0; i < 8; i++)
			calls[i] = p2p_calls(comms[i], group, 14);
		for (unsigned i = 0; i < 8; i++)
			all_to_all_in_plan(comms[i], calls[i], parts[i]);
		track_group_stop(&track, group);
		for (unsigned i = 0; i < 8; i++)
			run_parts(parts[i]);
	}
	for (unsigned i = 0; i < 8; i++)
		ok(all_to_alls(i) == 500, "communicator %u of the eight has its own (%llu)", i,
		   (unsigned long long)all_to_alls(i));
	ok(!dropped(BOX_DROP_NO_GROUP), "and none is without a group");
}

static void test_many_groups_at_a_time(void)
{
	static void *parts[GROUPS / 2][14];

	begin();
	for (unsigned turn = 0; turn < 20; turn++) {
		for (unsigned i = 0; i < GROUPS / 2; i++) {
			void *group = track_group_start(&track, comm);

			all_to_all_in_plan(comm, p2p_calls(comm, group, 14), parts[i]);
			track_group_stop(&track, group);
		}
		for (unsigned i = 0; i < GROUPS / 2; i++)
			run_parts(parts[i]);
	}
	ok(all_to_alls(0) == 20 * GROUPS / 2 && !dropped(BOX_DROP_NO_GROUP),
	   "half as many as there are entries (%llu)", (unsigned long long)all_to_alls(0));
}

#define MANY 3000u /* ranks of an all-to-all: its parts are more than the slots */

static void all_to_all_of_many(void *parts[2 * MANY])
{
	void *group = track_group_start(&track, comm), *call = p2p_calls(comm, group, 2 * MANY);
	unsigned count = 0;

	for (int peer = 0; peer < (int)MANY; peer++) {
		if (peer == 3)
			continue;
		parts[count++] = p2p(call, "Send", peer, 10);
		parts[count++] = p2p(call, "Recv", peer, 10);
	}
	track_group_stop(&track, group);
}

static void begin_with_many_ranks(void)
{
	begin();
	comms_remove(&track, comm);
	comm = comms_add(&track,
	                 &(struct comm_fields){
			     .id = 8, .name = "m", .nranks = MANY, .nnodes = MANY / 8, .rank = 3 });
}

static uint64_t parts_counted(void)
{
	return key_of(BOX_FUNC_SEND)->ops + key_of(BOX_FUNC_SEND)->untimed_ops +
	       key_of(BOX_FUNC_RECV)->ops + key_of(BOX_FUNC_RECV)->untimed_ops;
}

static void test_more_members_than_slots(void)
{
	static void *parts[2 * MANY], *channels[2 * MANY];
	const unsigned last = 2 * (MANY - 1);

	begin_with_many_ranks();
	for (unsigned turn = 0; turn < 20; turn++) {
		all_to_all_of_many(parts);
		for (unsigned i = 0; i < last; i++)
			channels[i] = kernel(parts[i], i % 64, 1000 + i);
		for (unsigned i = 0; i < last; i++)
			stop(channels[i],
			     i == last - 1 ? 77000 : 50000); /* the last one has no slot */
	}
	struct box_key *key = key_of(BOX_FUNC_ALLTOALL);

	ok(key && key->ops == 20 && key->bytes == 20ull * 10 * (MANY - 1) &&
	       key->busy_ns == 20ull * 76000,
	   "an all-to-all with more parts than slots has its count, bytes and time (%llu ns)",
	   key ? (unsigned long long)key->busy_ns : 0);
	ok(parts_counted() == 20ull * last && !dropped(BOX_DROP_NO_SLOT) &&
	       !box.comms[key->comm].lost,
	   "no part is lost (%llu)", (unsigned long long)parts_counted());
	ok(enqueued(key->comm) == 20ull * last, "nor counted twice");
}

static void test_members_without_slots_that_say_little(void)
{
	static void *parts[2 * MANY];
	const unsigned last = 2 * (MANY - 1);

	begin_with_many_ranks();
	all_to_all_of_many(parts);
	for (unsigned i = 0; i < last; i++)
		if (i != last - 3) /* NCCL announces more channels of a Send than come */
			stop(kernel(parts[i], i % 64, 1000 + i), 50000);
	ok(!key_of(BOX_FUNC_ALLTOALL), "a channel may yet come");
	for (unsigned round = 1; round <= 5; round++)
		sweep_round(&sweep, &track, clock_ticks() + round * ticks_a_second());
	ok(key_of(BOX_FUNC_ALLTOALL) && key_of(BOX_FUNC_ALLTOALL)->ops == 1,
	   "what is still with all channels ended is over");
	begin_with_many_ranks();
	all_to_all_of_many(parts);
	void *stuck = kernel(parts[last - 1], 1, 90000);

	for (unsigned i = 0; i + 1 < last; i++)
		stop(kernel(parts[i], i % 64, 91000 + i), 95000);
	for (unsigned round = 1; round <= 7; round++)
		sweep_round(&sweep, &track, clock_ticks() + round * ticks_a_second());
	ok(!key_of(BOX_FUNC_ALLTOALL), "one that has not ended keeps the group open");
	stop(stuck, 99000);
	stop(stuck, 99500);
	ok(key_of(BOX_FUNC_ALLTOALL) && key_of(BOX_FUNC_ALLTOALL)->busy_ns == 99000 - 90000,
	   "and its end, told twice, is the group's");
}

static void test_members_without_slots_of_hostile_clocks_and_dead_communicators(void)
{
	static void *parts[2 * MANY];
	const unsigned last = 2 * (MANY - 1);

	begin_with_many_ranks();
	all_to_all_of_many(parts);
	stop(kernel(parts[last - 1], 1, 1000), 3600000000000ull);
	for (unsigned i = 0; i + 1 < last; i++)
		stop(kernel(parts[i], i % 64, 1000), 2000);
	ok(!key_of(BOX_FUNC_ALLTOALL) && dropped(BOX_DROP_IMPLAUSIBLE),
	   "an hour in a second is no time");
	all_to_all_of_many(parts);
	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS + 1; i++) /* until the record serves another one */
		comms_remove(&track,
		             comms_add(&track, &(struct comm_fields){
						   .id = 90 + i, .name = "o", .nranks = 8 }));
	sweep_round(&sweep, &track, clock_ticks() + 20 * ticks_a_second());
	sweep_round(&sweep, &track, clock_ticks() + 21 * ticks_a_second());
	unsigned open = 0;

	for (unsigned i = 0; i < GROUPS; i++)
		open += track.groups.group[i].token != 0;
	ok(!open, "a communicator that is gone leaves no group behind (%u)", open);
	stop(kernel(parts[last - 1], 1, 1000), 2000);
	ok(dropped(BOX_DROP_STALE), "nor does a late event reach one");
}

static void test_plans_without_sends(void)
{
	begin();
	ok(!track_plan_start(&track, comm), "where no Send was called a plan costs nothing");
	void *group = track_group_start(&track, comm);

	track_p2p_call(&track, comm, group);
	track_group_stop(&track, group);
	void *plan = track_plan_start(&track, comm);

	ok(plan != NULL, "from the first call on it has a handle");
	track_plan_stop(&track, plan);
	ok(!track_plan_start(&track, NULL) && !track_plan_start(&track, (void *)0x123456789abc),
	   "of no communicator, or one that is not ours, there is none");
	track_plan_stop(&track, (void *)0x123456789ab8);
	unsigned open = 0;

	for (unsigned i = 0; i < GROUPS; i++)
		open += track.groups.group[i].token != 0;
	ok(!open, "and no entry");
}

static void test_phases(void)
{
	begin();
	void *op = start(comm, 2, 1024);
	void *one = kernel(op, 0, 1000), *two = kernel(op, 1, 1100);
	void *waits = track_phase_start(&track, one, ABI_PHASE_SYNC);

	ok(waits && !track_phase_start(&track, one, ABI_PHASE_COMPUTE),
	   "only the waiting for peers is followed");
	track_phase_stop(&track, track_phase_start(&track, two, ABI_PHASE_SYNC), gpu_ns + 6000);
	track_phase_stop(&track, waits, gpu_ns + 5000);
	stop(one, 9000);
	stop(two, 9500);
	ok(box.keys[0].phased_ops == 1 && box.keys[0].wait_ns == 4000 &&
	       box.keys[0].busy_ns == 8500,
	   "waiting ends when the first channel has its peers");
	whole_operation(10000, 11000);
	ok(box.keys[0].ops == 2 && box.keys[0].phased_ops == 1,
	   "an operation without phases tells nothing of it");
}

static void test_sampling(void)
{
	int mask = 0;
	unsigned timed = 0, with_steps = 0, wrong = 0, odd = 0;

	begin();
	mask = ABI_COLL | ABI_KERNEL_CH | ABI_PROXY_OP | ABI_PROXY_STEP;
	track.mask = &mask;
	track.mask_all = mask;
	track.sample_every = 10;
	for (unsigned i = 0; i < 1000; i++) {
		void *group = track_group_start(&track, comm);
		bool asked = mask & ABI_KERNEL_CH;

		for (unsigned j = 0; j < 3; j++) {
			void *op = start(comm, 1, 1024);

			stop(kernel(op, 0, 1000 * i), 1000 * i + 500);
			timed += op != NULL;
			wrong += (op != NULL) != asked;
		}
		track_group_stop(&track, group);
		odd += asked && i % 2;
		with_steps += (mask & (ABI_PROXY_OP | ABI_PROXY_STEP)) != 0;
	}
	ok(with_steps >= 99 && with_steps <= 102, "one in ten has its network steps (%u)",
	   with_steps);
	ok(timed >= 3 * 99 && timed <= 3 * 102 && box.keys[0].ops == timed,
	   "one in ten has kernel events (%u)", timed);
	ok(!wrong, "a group has those of all its operations or of none (%u)", wrong);
	ok(odd >= 45 && odd <= 55, "every other one has its share (%u)", odd);
	ok(box.keys[0].untimed_ops == 3000 - timed && enqueued(0) == 3000,
	   "the others are counted");
	ok(track.hot_ticks, "and so is their cost");
	mask = 0;
	track_group_stop(&track, track_group_start(&track, comm));
	ok(mask == 0, "a mask that somebody has cleared stays");
	mask = 0x302;
	track_group_stop(&track, track_group_start(&track, comm));
	ok(mask == 0x302, "and so does any other word");
}

int main(void)
{
	log2_init();
	test_peers();
	test_all_to_all();
	test_a_lone_call_has_no_group();
	test_tasks_after_the_call();
	test_a_group_of_several_communicators();
	test_many_groups_at_a_time();
	test_more_members_than_slots();
	test_members_without_slots_that_say_little();
	test_members_without_slots_of_hostile_clocks_and_dead_communicators();
	test_plans_without_sends();
	test_phases();
	test_sampling();
	return done_testing();
}
