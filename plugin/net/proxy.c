/* SPDX-License-Identifier: Apache-2.0 */
#include "net/proxy.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "hot/atomics.h"

#define relaxed memory_order_relaxed

#define STEPS 16u /* of one operation at a time; NCCL has up to 8 */
#define ENTRY_PLACES 16u
#define SLOT_PLACES 16u
#define TURN_TRIES 4u /* only the beat thread comes in between, once a second */
#define TURN_SAMPLE 64u

/* Handles: kind (enum net_handle), number of the step, slot, generation. */
#define NUMBERS 64u

/* The most that NCCL hands to a network at once (NCCL_MAX_NET_SIZE_BYTES). */
#define STEP_BYTES_MAX (1ull << 40)

enum { STEP_OVER };

_Static_assert(TRACK_HOT_SAMPLE % TURN_SAMPLE == 0,
               "samples of turns are a part of those of operations");

int net_init(struct net *net, struct track *track, enum config_net mode, unsigned api)
{
	void *memory;

	memset(net, 0, sizeof(*net));
	net->track = track;
	net->pid = track->box->header->pid;
	if (mode == CONFIG_NET_OFF || api < 4)
		return 0;
	memory = mmap(NULL, NET_OPS * sizeof(struct net_op), PROT_READ | PROT_WRITE,
	              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED)
		return -errno;
	net->ops = memory;
	net->mode = mode;
	atomic_store(&net->every, 1);
	atomic_store(&track->box->header->net_every, 1);
	atomic_store(&net->on, mode == CONFIG_NET_ON);
	atomic_store(&track->box->header->net_on,
	             mode == CONFIG_NET_ON &&
	                 atomic_load(&track->box->header->silent) == BOX_SILENT_NOT);
	return 0;
}

void net_begin(struct net *net)
{
	net->round_tick = clock_ticks();
}

int net_events(const struct net *net)
{
	return atomic_load(&net->on) ? ABI_PROXY_OP | ABI_PROXY_STEP | ABI_NET_PLUGIN : 0;
}

static bool is_active(const struct net *net)
{
	return net->ops && atomic_load_explicit(&net->track->active, relaxed);
}

static bool is_entry_of(const struct box_net *entry, const struct box_net *wanted)
{
	return atomic_load_explicit(&entry->used, memory_order_acquire) == NET_ENTRY_VALID &&
	       entry->comm == wanted->comm && entry->comm_generation == wanted->comm_generation &&
	       entry->peer == wanted->peer && entry->is_send == wanted->is_send;
}

static uint32_t first_place(const struct box_net *wanted)
{
	return (((uint32_t)wanted->peer * 64u + wanted->comm) * 2u + wanted->is_send) *
	           2654435761u >>
	       16;
}

/* Index of the entry, BOX_NETS when there is none. */
static uint32_t look_up(const struct box *box, const struct box_net *wanted)
{
	uint32_t first = first_place(wanted);

	for (unsigned i = 0; i < ENTRY_PLACES; i++)
		if (is_entry_of(&box->nets[(first + i) % BOX_NETS], wanted))
			return (first + i) % BOX_NETS;
	return BOX_NETS;
}

/* Index of a new entry; BOX_NETS when there is no place. */
static uint32_t make_entry(struct box *box, const struct box_net *wanted)
{
	uint32_t first = first_place(wanted);

	for (unsigned i = 0; i < ENTRY_PLACES; i++) {
		struct box_net *entry = &box->nets[(first + i) % BOX_NETS];

		if (atomic_load_explicit(&entry->used, memory_order_acquire) != NET_ENTRY_FREE)
			continue;
		atomic_store_explicit(&entry->used, NET_ENTRY_TAKEN, relaxed);
		entry->comm = wanted->comm;
		entry->comm_generation = wanted->comm_generation;
		entry->peer = wanted->peer;
		entry->is_send = wanted->is_send;
		atomic_store_explicit(&entry->used, NET_ENTRY_VALID, memory_order_release);
		return (first + i) % BOX_NETS;
	}
	return BOX_NETS;
}

/* Index of the entry, a new one if need be. BOX_NETS when there is no place, or while another
 * thread makes one: two of the same peer would be one series twice. */
static uint32_t find_entry(struct net *net, const struct box_net *wanted)
{
	uint32_t found = look_up(net->track->box, wanted);

	if (found < BOX_NETS || atomic_exchange_explicit(&net->making, true, memory_order_acquire))
		return found;
	found = look_up(net->track->box, wanted);
	if (found == BOX_NETS)
		found = make_entry(net->track->box, wanted);
	atomic_store_explicit(&net->making, false, memory_order_release);
	return found;
}

/* A free slot, now being filled; NULL when there is none near. */
static struct net_op *take(struct net *net, uint32_t *generation)
{
	uint32_t at = atomic_load_explicit(&net->cursor, relaxed);

	for (unsigned i = 0; i < SLOT_PLACES; i++, at++) {
		struct net_op *op = &net->ops[at % NET_OPS];
		uint32_t found = atomic_load_explicit(&op->generation, relaxed);

		if ((found & BOX_OP_STATE_MASK) != BOX_OP_FREE ||
		    !atomic_compare_exchange_strong_explicit(&op->generation, &found,
		                                             found | BOX_OP_FILLING,
		                                             memory_order_acquire, relaxed))
			continue;
		*generation = found | BOX_OP_USED;
		atomic_store_explicit(&net->cursor, at + 1, relaxed);
		return op;
	}
	atomic_store_explicit(&net->cursor, at, relaxed);
	return NULL;
}

/* From now on the oldest unfinished step is in this state (+ 1; STEP_OVER: there is none). The time
 * of what was is added. */
static void turn(struct net *net, struct net_op *op, unsigned state)
{
	uint64_t old = atomic_load_explicit(&op->head, relaxed), now = clock_ticks();

	atomic_store_explicit(&op->turns, atomic_load_explicit(&op->turns, relaxed) + 1, relaxed);
	for (unsigned i = 0; i < TURN_TRIES; i++) {
		/* The beat thread may have read a later clock than we have. */
		uint64_t since = old >> NET_HEAD_BITS, until = since > now ? since : now;
		uint64_t head = state == STEP_OVER ? 0 : until << NET_HEAD_BITS | state;

		if (!atomic_compare_exchange_strong_explicit(&op->head, &old, head, relaxed,
		                                             relaxed))
			continue;
		if (old)
			net_add(net, op, old, until);
		return;
	}
}

/* One in TURN_SAMPLE of the calls about steps is timed, for the budget: all those between two
 * changes of a head. Returns when a call began that is timed, and 0 for any other. */
static inline uint64_t sample_begins(const struct net_op *op)
{
	return atomic_load_explicit(&op->turns, relaxed) % TURN_SAMPLE ? 0 : clock_ticks();
}

static inline void sample_ends(const struct net *net, uint64_t begin_tick)
{
	if (begin_tick)
		atomic_fetch_add_explicit(
		    &net->track->hot_ticks,
		    (clock_ticks() - begin_tick) / (TRACK_HOT_SAMPLE / TURN_SAMPLE), relaxed);
}

struct net_op *net_op_of(struct net *net, uint64_t bits, enum net_handle kind)
{
	unsigned slot = handle_slot(bits);

	if (handle_kind(bits) != (unsigned)kind || !is_active(net))
		return NULL;
	if (slot >= NET_OPS || !handle_is_used(bits, kind) ||
	    atomic_load_explicit(&net->ops[slot].generation, memory_order_acquire) !=
	        handle_generation(bits)) {
		track_drop(net->track, BOX_DROP_STALE);
		return NULL;
	}
	return &net->ops[slot];
}

static void *miss(struct net *net)
{
	atomic_fetch_add_explicit(&net->track->box->header->net_missed, 1, relaxed);
	return NULL;
}

static void *follow(struct net *net, void *context, const struct abi_proxy_op *told)
{
	struct box_net wanted = { .peer = told->peer, .is_send = told->is_send != 0 };
	uint32_t entry, generation;

	/* PXN: another process' operation. Its context is as valid here, and means something
	 * else. */
	if ((uint32_t)told->pid != net->pid)
		return NULL;
	wanted.comm = handle_context_comm(context, &wanted.comm_generation);
	if (wanted.comm == UINT32_MAX)
		return NULL;
	const struct box_comm *comm = &net->track->box->comms[wanted.comm];

	/* CollNet's peer is the switch, by the number behind the last rank's
	 * (src/graph/connect.cc): NCCL calls all of it receives, and tells of no step. */
	if (atomic_load_explicit(&comm->generation, relaxed) != wanted.comm_generation ||
	    told->peer < 0 || (comm->nranks > 0 && told->peer >= comm->nranks))
		return NULL;
	entry = find_entry(net, &wanted);
	if (entry == BOX_NETS)
		return NULL;
	struct net_op *op = take(net, &generation);

	if (!op)
		return NULL;
	atomic_store_explicit(&op->entry, entry, relaxed);
	atomic_store_explicit(&op->head, 0, relaxed);
	atomic_store_explicit(&op->states, 0, relaxed);
	atomic_store_explicit(&op->first, 0, relaxed);
	atomic_store_explicit(&op->next, 0, relaxed);
	atomic_store_explicit(&op->generation, generation, memory_order_release);
	return (void *)(uintptr_t)((uint64_t)generation << HANDLE_GENERATION_SHIFT |
	                           (uint64_t)(op - net->ops) << HANDLE_SLOT_SHIFT | NET_HANDLE_OP);
}

/* Spreads numbers that follow each other, or differ in a few bits, over all 64. */
static inline uint64_t spread(uint64_t number)
{
	number *= 0x9e3779b97f4a7c15ull;
	number ^= number >> 32;
	return number * 0x9e3779b97f4a7c15ull >> 32;
}

/* Whether this one is followed, if one in `every` is. Of a task with as many channels some are in
 * any case, so that one that hangs says whom it waits for; which of them is chance. */
static bool is_chosen(void *task, const struct abi_proxy_op *told, uint32_t every)
{
	/* Without a task: a step of the clock is as good. */
	uint64_t number = handle_bits(task) ? handle_bits(task) : clock_ticks();

	return ((uint32_t)spread(number) + told->channel) % every == 0;
}

void *net_op_start(struct net *net, void *context, void *task, const struct abi_proxy_op *told)
{
	uint32_t every = atomic_load_explicit(&net->every, relaxed);

	if (!is_active(net) || (every > 1 && !is_chosen(task, told, every)))
		return NULL;
	void *handle = follow(net, context, told);

	if (!handle)
		return miss(net);
	atomic_fetch_add_explicit(&net->followed, 1, relaxed);
	if (every > 1)
		atomic_fetch_add_explicit(&net->track->box->header->net_left_out, every - 1,
		                          relaxed);
	return handle;
}

static unsigned state_of(const struct net_op *op, uint32_t number)
{
	return (unsigned)(atomic_load_explicit(&op->states, relaxed) >> 4 * (number % STEPS)) & 0xf;
}

static void set_state(struct net_op *op, uint32_t number, unsigned state)
{
	uint64_t states = atomic_load_explicit(&op->states, relaxed);
	unsigned shift = 4 * (number % STEPS);

	states = (states & ~(0xfull << shift)) | (uint64_t)state << shift;
	atomic_store_explicit(&op->states, states, relaxed);
}

void *net_step_start(struct net *net, void *parent)
{
	uint64_t bits = (uintptr_t)parent;
	struct net_op *op = net_op_of(net, bits, NET_HANDLE_OP);

	if (!op)
		return NULL;
	struct box_net *entry = net_entry(net, op);
	uint32_t first = atomic_load_explicit(&op->first, relaxed);
	uint32_t number = atomic_load_explicit(&op->next, relaxed);
	/* NCCL says so at once. */
	unsigned state = 1u + (entry->is_send ? BOX_NET_GPU : BOX_NET_WIRE);

	if (number - first >= STEPS)
		return miss(net);
	uint64_t begin_tick = sample_begins(op);

	owned_add(&entry->steps, 1);
	set_state(op, number, state);
	atomic_store_explicit(&op->next, number + 1, relaxed);
	if (number == first)
		turn(net, op, state);
	sample_ends(net, begin_tick);
	return (void *)(uintptr_t)((bits & ~(uint64_t)HANDLE_KIND_MASK) |
	                           (uint64_t)(number % NUMBERS) << HANDLE_CHANNEL_SHIFT |
	                           NET_HANDLE_STEP);
}

/* Whether the step of a handle is unfinished. */
static bool find_step(struct net *net, const struct net_op *op, uint64_t bits, uint32_t *number)
{
	uint32_t first = atomic_load_explicit(&op->first, relaxed);
	uint32_t next = atomic_load_explicit(&op->next, relaxed);
	uint32_t ahead = ((uint32_t)(bits >> HANDLE_CHANNEL_SHIFT) - first) % NUMBERS;

	*number = first + ahead;
	if (ahead < next - first && state_of(op, *number) != STEP_OVER)
		return true;
	track_drop(net->track, BOX_DROP_STALE);
	return false;
}

/* Bytes that were on the network: as the step is sent, or has come. */
static void add_bytes(const struct net *net, const struct net_op *op, int state,
                      const union abi_state_args *args)
{
	struct box_net *entry = net_entry(net, op);

	if (state != (entry->is_send ? ABI_STATE_SEND_WAIT : ABI_STATE_RECV_FLUSH_WAIT) || !args)
		return;
	if (args->transferred <= STEP_BYTES_MAX)
		owned_add(&entry->bytes, args->transferred);
	else
		atomic_fetch_add_explicit(&entry->refused, 1, relaxed);
}

void net_step_state(struct net *net, void *step, int told, const union abi_state_args *args)
{
	static const uint8_t states[] = {
		[ABI_STATE_SEND_GPU_WAIT] = BOX_NET_GPU + 1,
		[ABI_STATE_SEND_PEER_WAIT] = BOX_NET_PEER + 1,
		[ABI_STATE_SEND_WAIT] = BOX_NET_WIRE + 1,
		[ABI_STATE_RECV_WAIT] = BOX_NET_WIRE + 1,
		[ABI_STATE_RECV_FLUSH_WAIT] = BOX_NET_FLUSH + 1,
		[ABI_STATE_RECV_GPU_WAIT] = BOX_NET_GPU + 1,
	};
	uint64_t bits = (uintptr_t)step;
	unsigned state = told >= 0 && (size_t)told < sizeof(states) ? states[told] : 0;
	struct net_op *op = state ? net_op_of(net, bits, NET_HANDLE_STEP) : NULL;
	uint32_t number;

	/* While a peer gives no credit NCCL tells so each time that it looks. */
	if (!op || !find_step(net, op, bits, &number) || state_of(op, number) == state)
		return;
	uint64_t begin_tick = sample_begins(op);

	set_state(op, number, state);
	add_bytes(net, op, told, args);
	if (number == atomic_load_explicit(&op->first, relaxed))
		turn(net, op, state);
	sample_ends(net, begin_tick);
}

static void stop_step(struct net *net, struct net_op *op, uint64_t bits)
{
	uint32_t first = atomic_load_explicit(&op->first, relaxed);
	uint32_t next = atomic_load_explicit(&op->next, relaxed), number;

	if (!find_step(net, op, bits, &number))
		return;
	set_state(op, number, STEP_OVER);
	if (number != first)
		return;
	while (first != next && state_of(op, first) == STEP_OVER) /* STEPS at most */
		first++;
	atomic_store_explicit(&op->first, first, relaxed);
	turn(net, op, first == next ? STEP_OVER : state_of(op, first));
}

static void stop_op(struct net *net, struct net_op *op, uint64_t bits)
{
	uint32_t entry = atomic_load_explicit(&op->entry, relaxed);

	if (atomic_load_explicit(&op->head, relaxed))
		turn(net, op, STEP_OVER);
	atomic_fetch_add_explicit(&net->ended[entry % BOX_NETS], 1, relaxed);
	net_give_back(op, handle_generation(bits));
}

void net_stop(struct net *net, void *handle)
{
	uint64_t bits = (uintptr_t)handle;
	enum net_handle kind = (enum net_handle)handle_kind(bits);
	struct net_op *op = net_is_handle(handle) ? net_op_of(net, bits, kind) : NULL;

	if (!op)
		return;
	uint64_t begin_tick = sample_begins(op);

	if (kind == NET_HANDLE_STEP)
		stop_step(net, op, bits);
	else
		stop_op(net, op, bits);
	sample_ends(net, begin_tick);
}
