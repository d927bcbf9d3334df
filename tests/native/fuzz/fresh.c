/* SPDX-License-Identifier: Apache-2.0 */
/* Its state is its own: only from within can it be had anew. */
#include "inspector.c"

#include "fresh.h"
#include "still.h"

#include <sys/mman.h>

static void give_back_comms(void)
{
	jsoncomms_trim(&self.json.comms); /* takes in what waits */
	for (unsigned i = 0; i < BOX_COMMS; i++) {
		struct json_comm *at = self.json.comms.known[i];

		while (at) {
			struct json_comm *next = at->next;

			free(at);
			at = next;
		}
	}
}

static void give_back_json(void)
{
	give_back_comms();
	jsonfile_close(&self.json.file);
	jsonring_free(&self.json.ring);
	if (inspector_track.traces)
		munmap(inspector_track.traces, BOX_OPS * sizeof(struct trace_op));
}

void fresh_inspector(void)
{
	if (self.json_ready)
		give_back_json();
	if (inspector_net.ops)
		munmap(inspector_net.ops, NET_OPS * sizeof(struct net_op));
	if (self.ready) {
		for (unsigned gpu = 0; gpu < BOX_GPUS; gpu++)
			free(self.beat.text[gpu].data);
		descriptor_close(&self.beat.dir);
	}
	if (self.box.header)
		munmap(self.box.header, self.box.bytes);
	memset(&self, 0, sizeof(self));
	memset(&inspector_track, 0, sizeof(inspector_track));
	atomic_store(&inspector_track.fast_ops, all_free_ops);
	memset(&inspector_net, 0, sizeof(inspector_net));
	pthread_mutex_init(&self.lock, NULL);
}

void fresh_rounds(uint64_t ns)
{
	uint64_t until_ns = still_now_ns + ns;

	if (!self.ready)
		return;
	still_run(&self.beat.thread, until_ns);
	if (self.json_ready)
		still_run(&self.json.thread, until_ns);
}

const struct box *fresh_box(void)
{
	return self.box.header ? &self.box : NULL;
}

const struct textbuf *fresh_metrics(void)
{
	return &self.beat.text[0];
}

bool fresh_writes_lines(void)
{
	return self.json_ready && self.json.thread.running;
}

uint64_t fresh_lines_missing(void)
{
	return atomic_load(&self.json.ring.head) - atomic_load(&self.json.settled);
}
