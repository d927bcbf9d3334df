/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads of the application in one communicator, as when CUDA's replays a graph: each
 * operation is in its own kind and there once, whichever words the threads had before, and TSan
 * must find nothing. */
#include <pthread.h>
#include <sched.h>

#include "box/names.h"
#include "hot/memo.h"
#include "hotbox.h"

#define THREADS 3u
#define OPERATIONS 30000u
#define KINDS 12u
#define AT_ONCE 200u
#define LOOKS 100000u /* of some microseconds: then they are not coming back */

static const char *const funcs[] = { "AllReduce", "AllGather", "ReduceScatter" };
static const char *const algos[] = { "RING", "TREE" };
static uint64_t told[THREADS][KINDS];
static pthread_mutex_t kernels = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool over;

static struct abi_coll coll_of(unsigned kind)
{
	return (struct abi_coll){ .func = funcs[kind % 3],
	                          .algo = algos[kind / 3 % 2],
	                          .proto = "LL",
	                          .datatype = "ncclFloat32",
	                          .count = kind < 6 ? 1024 : 16384,
	                          .channels = 2 };
}

/* A writer that loses the processor while it has the communicator leaves all that ends meanwhile to
 * its next round: at a million a second that would be more than there are slots. No GPU runs so far
 * ahead. */
static void await_room(void)
{
	unsigned used = BOX_OPS;

	for (unsigned looks = 0; used > BOX_OPS / 8 && looks < LOOKS; looks++) {
		used = 0;
		for (unsigned i = 0; i < BOX_OPS; i++)
			used += track_in_use(
			    atomic_load_explicit(&box.ops[i].generation, memory_order_relaxed));
		sched_yield();
	}
}

/* Kernels of a communicator are told by one thread at a time. */
static void *application(void *argument)
{
	uint64_t *mine = argument;
	uint64_t random = 1 + (uint64_t)(mine - told[0]);

	for (unsigned i = 0; i < OPERATIONS; i++) {
		random = random * 6364136223846793005ull + 1442695040888963407ull;
		unsigned kind = (unsigned)(random >> 60) % KINDS;
		struct abi_coll coll = coll_of(kind);
		void *op, *channels[2];

		track_coll(&track, comm, &coll, &op);
		pthread_mutex_lock(&kernels);
		uint64_t now = track_now_ns(&track);

		for (unsigned c = 0; c < 2; c++)
			channels[c] = track_kernel_start(&track, op, c, now);
		for (unsigned c = 0; c < 2; c++)
			track_kernel_stop(&track, channels[c], now + 1000);
		pthread_mutex_unlock(&kernels);
		mine[kind]++;
		if (i % AT_ONCE == 0)
			await_room();
	}
	return NULL;
}

static void *rounds(void *argument)
{
	(void)argument;
	while (!atomic_load(&over))
		sweep_round(&sweep, &track, clock_ticks());
	return NULL;
}

/* Operations and bytes of a kind as the box has them. */
static bool is_told(unsigned kind)
{
	struct abi_coll coll = coll_of(kind);
	uint64_t ops = 0;

	for (unsigned i = 0; i < THREADS; i++)
		ops += told[i][kind];
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		const struct box_key *key = &box.keys[i];

		if (key->used == 1 && !strcmp(box_func_name(key->func), coll.func) &&
		    !strcmp(box_algo_name(key->algo), coll.algo) &&
		    key->size_class == (kind < 6 ? 12 : 16))
			return key->ops + key->untimed_ops == ops &&
			       key->bytes + key->untimed_bytes == ops * 4 * coll.count;
	}
	return false;
}

int main(void)
{
	pthread_t threads[THREADS], writer;
	bool all = true;

	log2_init();
	begin();
	pthread_create(&writer, NULL, rounds, NULL);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, application, told[i]);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&over, true);
	pthread_join(writer, NULL);
	sweep_round(&sweep, &track, clock_ticks());
	/* A thread that loses the processor before its kernel's start, while the others go on, may
	 * be given up: counted. */
	uint64_t untimed = box.comms[0].untimed;

	ok(completed() + untimed == THREADS * OPERATIONS && enqueued(0) == THREADS * OPERATIONS &&
	       !box.comms[0].lost,
	   "no operation is lost or there twice (%llu)", (unsigned long long)completed());
	for (unsigned kind = 0; kind < KINDS; kind++)
		all &= is_told(kind);
	ok(all, "each is in its own kind");
	for (unsigned reason = 0; reason < BOX_DROPS; reason++)
		ok(untimed || !dropped(reason), "nothing is dropped for reason %u", reason);
	return done_testing();
}
