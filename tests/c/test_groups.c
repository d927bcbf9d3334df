/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and Recvs by peer and by group, what a kernel's phases tell, and measuring one group in so many. */
#include "abi.h"
#include "trackbox.h"

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
	ok(one && one->ops == 2 && one->bytes == 8000 && one->busy_ns == 5000 && one->func == BOX_FUNC_SEND,
	   "Sends are counted by peer");
	ok(one && one->best_rate_q20 == 2 * LOG2_ONE, "the best one's rate is kept (4000 bytes in 1000 ns: 2^2)");
}

static void test_all_to_all(void)
{
	begin();
	void *group = track_group_start(&track, comm);
	void *parts[16];
	unsigned count = 0;

	for (int peer = 0; peer < 8; peer++) {
		parts[count++] = p2p(track_p2p_call(&track, group), "Send", peer, 1000);
		parts[count++] = p2p(track_p2p_call(&track, group), "Recv", peer, 1000);
	}
	for (unsigned i = 0; i < count; i++)
		if (parts[i])
			stop(kernel(parts[i], i, 1000 + i), i % 8 == 3 ? 90000 : 50000);
	ok(!key_of(BOX_FUNC_ALLTOALL), "a group is not over before its call has returned");
	track_group_stop(&track, group);
	struct box_key *key = key_of(BOX_FUNC_ALLTOALL);

	ok(key && key->ops == 1 && key->bytes == 8000 && key->busy_ns == 89000,
	   "Sends and Recvs with all others are one all-to-all, from first start to last stop (%llu)",
	   key ? (unsigned long long)key->busy_ns : 0);
	ok(key_of(BOX_FUNC_SEND)->ops == 7 && key_of(BOX_FUNC_SEND)->untimed_ops == 1,
	   "its parts are counted as before");
	ok(key_of(BOX_FUNC_ALLTOALL)->algo == BOX_ALGO_GROUP, "and it says what it is");
	void *late = p2p(track_p2p_call(&track, group), "Send", 4, 1);

	ok(late && dropped(BOX_DROP_NO_GROUP) == 1, "a part that comes after the call is counted apart (a replay)");
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
	unsigned open = 0;

	for (unsigned i = 0; i < GROUPS; i++)
		open += track.groups.group[i].token != 0;
	ok(!open, "all groups are over");
}

static void test_phases(void)
{
	begin();
	void *op = start(comm, 2, 1024);
	void *one = kernel(op, 0, 1000), *two = kernel(op, 1, 1100);
	void *waits = track_phase_start(&track, one, ABI_PHASE_SYNC);

	ok(waits && !track_phase_start(&track, one, ABI_PHASE_COMPUTE), "only the waiting for peers is followed");
	track_phase_stop(&track, track_phase_start(&track, two, ABI_PHASE_SYNC), gpu_ns + 6000);
	track_phase_stop(&track, waits, gpu_ns + 5000);
	stop(one, 9000);
	stop(two, 9500);
	ok(box.keys[0].phased_ops == 1 && box.keys[0].wait_ns == 4000 && box.keys[0].busy_ns == 8500,
	   "waiting ends when the first channel has its peers");
	whole_operation(10000, 11000);
	ok(box.keys[0].ops == 2 && box.keys[0].phased_ops == 1, "an operation without phases tells nothing of it");
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
	ok(with_steps >= 99 && with_steps <= 102, "one in ten has its network steps (%u)", with_steps);
	ok(timed >= 3 * 99 && timed <= 3 * 102 && box.keys[0].ops == timed, "one in ten has kernel events (%u)", timed);
	ok(!wrong, "a group has those of all its operations or of none (%u)", wrong);
	ok(odd >= 45 && odd <= 55, "every other one has its share (%u)", odd);
	ok(box.keys[0].untimed_ops == 3000 - timed && enqueued(0) == 3000, "the others are counted");
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
	test_phases();
	test_sampling();
	return done_testing();
}
