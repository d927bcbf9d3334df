/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's count of operations, at whatever instruction the threads of NCCL stand just then: it
 * only rises, so one too many would stay for ever. A signal comes between two instructions, and the
 * other side is in its handler. */
#include <signal.h>
#include <sys/time.h>

#include "hotbox.h"

#define SIGNALS 600u
#define CROWDS 300u
#define CROWD                                                                                      \
	(BOX_OPS - SLOTS_SHARED -                                                                  \
	 64u) /* more than the thread's ring: all slots pass from one communicator to the other */

static volatile unsigned signals;
static _Atomic uint64_t told;
static uint64_t most_too_many;
static void *other;

static void look_at(unsigned record, uint64_t most)
{
	uint64_t counted = box.comms[record].enqueued;

	if (counted > most && counted - most > most_too_many)
		most_too_many = counted - most;
}

/* A signal in so many microseconds; 0: none any more. */
static void come_in(unsigned us)
{
	setitimer(ITIMER_REAL, &(struct itimerval){ .it_value.tv_usec = us }, NULL);
}

static void count_here(int number)
{
	(void)number;
	sweep_count(&track);
	look_at(0, atomic_load(&told));
	signals++;
	come_in(50 + signals % 97);
}

static void interrupt_with(void (*handler)(int))
{
	signals = 0;
	most_too_many = 0;
	sigaction(SIGALRM, &(struct sigaction){ .sa_handler = handler }, NULL);
	come_in(50);
}

/* A Send alone in its call: there is much to do at its end. */
static struct box_op *a_send(void **handle)
{
	void *group = track_group_start(&track, comm);

	atomic_fetch_add(&told, 1);
	*handle = p2p(track_p2p_call(&track, comm, group), "Send", 5, 4096);
	track_group_stop(&track, group);
	return &box.ops[handle_slot(handle_bits(*handle))];
}

static void test_an_end(void)
{
	begin();
	atomic_store(&told, 0);
	interrupt_with(count_here);
	while (signals < SIGNALS) {
		void *send;

		a_send(&send);
		stop(kernel(send, 9, 1000), 2000);
	}
	come_in(0);
	ok(!most_too_many && enqueued(0) == atomic_load(&told),
	   "an operation that ends just now is not counted as over and in flight (%llu too many of "
	   "%llu)",
	   (unsigned long long)most_too_many, (unsigned long long)atomic_load(&told));
}

static void test_a_giving_up(void)
{
	begin();
	atomic_store(&told, 0);
	interrupt_with(count_here);
	while (signals < SIGNALS) {
		void *send;
		struct box_op *op = a_send(&send);

		track_expire(&track, op, op->generation, TRACK_SLOT_FREE);
		op = a_send(&send);
		track_end_untimed(&track, op, op->generation, TRACK_SLOT_FREE);
	}
	come_in(0);
	ok(!most_too_many && enqueued(0) == atomic_load(&told),
	   "nor one that is given up (%llu too many)", (unsigned long long)most_too_many);
}

static void *in_flight[CROWD];

static void begin_crowd(void *context)
{
	for (unsigned i = 0; i < CROWD; i++)
		in_flight[i] = start(context, 1, 1024);
}

static void end_crowd(void)
{
	for (unsigned i = 0; i < CROWD; i++)
		stop(kernel(in_flight[i], 0, 1000), 2000);
}

static void crowd_here(int number)
{
	(void)number;
	begin_crowd(other);
	signals++;
}

/* Free slots still name the communicator that they had last. */
static void test_a_slot_that_passes_on(void)
{
	uint64_t most = 0, worst = 0;

	begin();
	other = comms_add(&track, &(struct comm_fields){
				      .id = 8, .name = "o", .nranks = 8, .nnodes = 2, .rank = 3 });
	for (unsigned i = 0; i < CROWDS; i++) {
		begin_crowd(comm);
		end_crowd();
		most += CROWD;
		interrupt_with(crowd_here);
		while (!signals)
			sweep_count(&track);
		end_crowd();
		look_at(0, most);
		worst = most_too_many > worst ? most_too_many : worst;
	}
	ok(!worst && enqueued(1) == most,
	   "nor is one that begins just now counted for whom the slot had before (%llu too many)",
	   (unsigned long long)worst);
}

int main(void)
{
	log2_init();
	test_an_end();
	test_a_giving_up();
	test_a_slot_that_passes_on();
	return done_testing();
}
