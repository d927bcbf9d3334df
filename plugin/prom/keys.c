/* SPDX-License-Identifier: Apache-2.0 */
/* prom/keys.c - the series of a kind of operation: its values and labels. */
#include "base/log2.h"
#include "box/bandwidth.h"
#include "prom/page.h"
#include "prom/rounding.h"

#define SCHEMA 1

static void add_comm_labels(struct expo_page *page, unsigned index)
{
	const struct box_comm *comm = &page->expo->box->comms[index];
	const struct config *config = page->expo->config;

	if (expo_repeat(page, &page->key_comms[index]))
		return;
	text_add(page->text, "{version=\"v%u.%u\"", page->expo->api, SCHEMA);
	text_add_label(page->text, ",cluster", config->cluster);
	text_add_label(page->text, ",slurm_job_id", config->job);
	text_add_label(page->text, ",slurm_nodelist", config->nodelist);
	text_add_label(page->text, ",node", config->node);
	text_add_label(page->text, ",gpu", page->expo->box->header->gpu[comm->gpu].label);
	expo_comm_words(page, comm);
	text_add(page->text, ",n_nodes=\"%d\",nranks=\"%d\"", comm->nnodes, comm->nranks);
	expo_rendered(page, &page->key_comms[index]);
}

static void add_algorithm(struct expo_page *page, const struct box_key *key)
{
	/* These two are ours and have no protocol. */
	bool alone = !key->proto && (key->algo == BOX_ALGO_GROUP || key->algo == BOX_ALGO_CE);

	text_add(page->text, ",algo_proto=\"%s%s%s\"", box_algo_name(key->algo), alone ? "" : "_",
		 alone ? "" : box_proto_name(key->proto));
}

static void add_labels(struct expo_page *page, unsigned index)
{
	const struct box_key *key = &page->expo->box->keys[index];
	char size[24];

	if (expo_repeat(page, &page->keys[index]))
		return;
	add_comm_labels(page, key->comm);
	bandwidth_size_label(key->size_class, size, sizeof(size));
	text_add_label(page->text, box_func_is_p2p(key->func) ? ",p2p_operation" : ",collective",
		       box_func_name(key->func));
	text_add_label(page->text, ",message_size", size);
	if (!box_func_is_p2p(key->func))
		add_algorithm(page, key);
	expo_rendered(page, &page->keys[index]);
}

/* Values of a key. Each is false where the key has none: a mean of nothing is not 0. */

static bool mean_rate(const struct expo *expo, unsigned i, double *value)
{
	const struct box_key *key = &expo->box->keys[i];
	double ops = (double)(expo->now[i].ops - expo->before[i].ops);
	double log2_rates = (double)(expo->now[i].log2_rate_q20 - expo->before[i].log2_rate_q20) / LOG2_ONE;
	double factor = bandwidth_bus_factor(key->func, expo->box->comms[key->comm].nranks);

	if (ops <= 0 || factor <= 0)
		return false;
	*value = round_binary(factor * round_exp2(log2_rates / ops), 9);
	return true;
}

static bool mean_time(const struct expo *expo, unsigned i, double *value)
{
	double ops = (double)(expo->now[i].ops - expo->before[i].ops);

	if (ops <= 0)
		return false;
	*value = round_binary((double)(expo->now[i].busy_ns - expo->before[i].busy_ns) / ops / 1e3, 11);
	return true;
}

static bool operations(const struct expo *expo, unsigned i, double *value)
{
	*value = (double)expo->now[i].ops;
	return expo->now[i].ops;
}

static bool bytes(const struct expo *expo, unsigned i, double *value)
{
	*value = (double)expo->now[i].bytes;
	return expo->now[i].ops;
}

static bool busy_seconds(const struct expo *expo, unsigned i, double *value)
{
	*value = round_seconds(expo->now[i].busy_ns);
	return expo->now[i].ops;
}

static bool untimed_operations(const struct expo *expo, unsigned i, double *value)
{
	*value = (double)expo->more[i].untimed_ops;
	return expo->more[i].untimed_ops;
}

static bool untimed_bytes(const struct expo *expo, unsigned i, double *value)
{
	*value = (double)expo->more[i].untimed_bytes;
	return expo->more[i].untimed_ops;
}

static bool wait_operations(const struct expo *expo, unsigned i, double *value)
{
	*value = (double)expo->more[i].phased_ops;
	return expo->more[i].phased_ops;
}

static bool wait_seconds(const struct expo *expo, unsigned i, double *value)
{
	*value = round_seconds(expo->more[i].wait_ns);
	return expo->more[i].phased_ops;
}

struct family {
	enum metric collective, p2p;
	bool (*value)(const struct expo *expo, unsigned key, double *value);
};
#define FAMILY(value, collective, p2p) { METRIC_NCCL_##collective, METRIC_NCCL_##p2p, value }

static const struct family gauges[] = {
	FAMILY(mean_rate, BUS_BANDWIDTH_GBS, P2P_BUS_BANDWIDTH_GBS),
	FAMILY(mean_time, COLLECTIVE_EXEC_TIME_MICROSECONDS, P2P_EXEC_TIME_MICROSECONDS),
};
static const struct family counters[] = {
	FAMILY(operations, COLLECTIVE_OPERATIONS_TOTAL, P2P_OPERATIONS_TOTAL),
	FAMILY(bytes, COLLECTIVE_BYTES_TOTAL, P2P_BYTES_TOTAL),
	FAMILY(busy_seconds, COLLECTIVE_BUSY_SECONDS_TOTAL, P2P_BUSY_SECONDS_TOTAL),
	FAMILY(untimed_operations, COLLECTIVE_UNTIMED_OPERATIONS_TOTAL, P2P_UNTIMED_OPERATIONS_TOTAL),
	FAMILY(untimed_bytes, COLLECTIVE_UNTIMED_BYTES_TOTAL, P2P_UNTIMED_BYTES_TOTAL),
	FAMILY(wait_operations, COLLECTIVE_WAIT_OPERATIONS_TOTAL, P2P_WAIT_OPERATIONS_TOTAL),
	FAMILY(wait_seconds, COLLECTIVE_WAIT_SECONDS_TOTAL, P2P_WAIT_SECONDS_TOTAL),
};
#define COUNT(table) (sizeof(table) / sizeof(*(table)))

static void write_family(struct expo_page *page, const struct family *family, bool p2p)
{
	const struct expo *expo = page->expo;
	bool begun = false;
	double value;

	for (unsigned n = 0; n < expo->keys.count; n++) {
		unsigned i = expo->keys.row[n];

		if (box_func_is_p2p(expo->box->keys[i].func) != p2p || !family->value(expo, i, &value))
			continue;
		expo_begin(page, p2p ? family->p2p : family->collective, &begun);
		add_labels(page, i);
		expo_end(page, value);
	}
}

static void write_families(struct expo_page *page, const struct family *families, size_t count)
{
	for (unsigned p2p = 0; p2p < 2; p2p++)
		for (size_t i = 0; i < count; i++)
			write_family(page, &families[i], p2p);
}

void expo_key_gauges(struct expo_page *page)
{
	write_families(page, gauges, COUNT(gauges));
}

void expo_key_counters(struct expo_page *page)
{
	write_families(page, counters, COUNT(counters));
}
