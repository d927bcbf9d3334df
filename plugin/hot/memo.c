/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/memo.h"

#include "nccl/strings.h"

#define relaxed memory_order_relaxed

static void memorize(struct track_comm *app, const struct event *event, const struct kind *kind)
{
	struct track_memo *memo = memo_place(app, event->func, event->count);
	uint32_t turn = atomic_load_explicit(&memo->turn, relaxed);

	if (event->symmetric || kind->key == KEYS_NONE || turn & 1 ||
	    !atomic_compare_exchange_strong(&memo->turn, &turn, turn + 1))
		return;
	atomic_store_explicit(&memo->key, kind->key, memory_order_release);
	atomic_store_explicit(&memo->datatype_bytes, kind->datatype_bytes, memory_order_release);
	atomic_store_explicit(&memo->kind, memo_pack(&kind->fields, kind->fields.size_class),
	                      memory_order_release);
	atomic_store_explicit(&memo->func, event->func, memory_order_release);
	atomic_store_explicit(&memo->datatype, event->datatype, memory_order_release);
	atomic_store_explicit(&memo->algo, event->algo, memory_order_release);
	atomic_store_explicit(&memo->proto, event->proto, memory_order_release);
	atomic_store_explicit(&memo->turn, turn + 2, memory_order_release);
}

struct key_fields memo_fields(unsigned comm, const struct event *event, uint64_t bytes)
{
	return (struct key_fields){
		.comm = comm,
		.func = strings_number(STRINGS_FUNC, event->func),
		.size_class = (uint8_t)bandwidth_size_class(bytes),
		.algo = event->symmetric ? BOX_ALGO_SYM : strings_number(STRINGS_ALGO, event->algo),
		.proto = strings_number(STRINGS_PROTO, event->proto),
	};
}

void memo_mark_seen(struct track_comm *app, unsigned func)
{
	uint32_t seen = atomic_load_explicit(&app->seen_funcs, relaxed);

	if (!(seen & 1u << func))
		atomic_fetch_or_explicit(&app->seen_funcs, 1u << func, relaxed);
}

struct kind memo_find(struct track *track, unsigned comm, struct event event)
{
	struct track_comm *app = &track->comms[comm];
	struct kind kind = { .datatype_bytes = strings_datatype_bytes(event.datatype) };

	kind.fields = memo_fields(comm, &event, event.count * kind.datatype_bytes);
	kind.key = keys_find(&track->keys, track->box, &kind.fields);
	memorize(app, &event, &kind);
	memo_mark_seen(app, kind.fields.func);
	return kind;
}
