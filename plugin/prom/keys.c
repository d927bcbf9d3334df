/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/keys.h"

#include "base/log2.h"
#include "box/bandwidth.h"
#include "box/names.h"
#include "prom/rounding.h"

#define SCHEMA 1

static void add_comm_labels(struct prom_page *page, unsigned index)
{
	const struct box_comm *comm = &page->prom->box->comms[index];
	const struct config *config = page->prom->config;

	if (prom_repeat(page, &page->key_comms[index]))
		return;
	textbuf_add(page->text, "{version=\"v%u.%u\"", page->prom->api, SCHEMA);
	textbuf_add_label(page->text, ",cluster", config->cluster);
	textbuf_add_label(page->text, ",slurm_job_id", config->job);
	textbuf_add_label(page->text, ",slurm_nodelist", config->nodelist);
	textbuf_add_label(page->text, ",node", config->node);
	textbuf_add_label(page->text, ",gpu", page->prom->box->header->gpu[comm->gpu].label);
	prom_comm_identity(page, comm);
	textbuf_add(page->text, ",n_nodes=\"%d\",nranks=\"%d\"", comm->nnodes, comm->nranks);
	prom_rendered(page, &page->key_comms[index]);
}

static void add_algorithm(struct prom_page *page, const struct box_key *key)
{
	/* These two are ours and have no protocol. */
	bool alone = !key->proto && (key->algo == BOX_ALGO_GROUP || key->algo == BOX_ALGO_CE);

	textbuf_add(page->text, ",algo_proto=\"%s%s%s\"", box_algo_name(key->algo),
	            alone ? "" : "_", alone ? "" : box_proto_name(key->proto));
}

static void add_labels(struct prom_page *page, unsigned index)
{
	const struct box_key *key = &page->prom->box->keys[index];
	char size[24];

	if (prom_repeat(page, &page->keys[index]))
		return;
	add_comm_labels(page, key->comm);
	bandwidth_size_label(key->size_class, size, sizeof(size));
	textbuf_add_label(page->text, box_func_is_p2p(key->func) ? ",p2p_operation" : ",collective",
	                  box_func_name(key->func));
	textbuf_add_label(page->text, ",message_size", size);
	if (!box_func_is_p2p(key->func))
		add_algorithm(page, key);
	prom_rendered(page, &page->keys[index]);
}

/* Values of a key. Each is false where the key has none: a mean of nothing is not 0. */

static bool mean_rate(const struct prom *prom, unsigned i, double *value)
{
	const struct box_key *key = &prom->box->keys[i];
	double ops = (double)(prom->now[i].ops - prom->before[i].ops);
	double log2_rates =
	    (double)(prom->now[i].log2_rate_q20 - prom->before[i].log2_rate_q20) / LOG2_ONE;
	double factor = bandwidth_bus_factor(key->func, prom->box->comms[key->comm].nranks);

	if (ops <= 0 || factor <= 0)
		return false;
	*value = rounding_binary(factor * rounding_exp2(log2_rates / ops), 9);
	return true;
}

static bool mean_time(const struct prom *prom, unsigned i, double *value)
{
	double ops = (double)(prom->now[i].ops - prom->before[i].ops);

	if (ops <= 0)
		return false;
	*value = rounding_binary(
	    (double)(prom->now[i].busy_ns - prom->before[i].busy_ns) / ops / 1e3, 11);
	return true;
}

static bool operations(const struct prom *prom, unsigned i, double *value)
{
	*value = (double)prom->now[i].ops;
	return prom->now[i].ops;
}

static bool bytes(const struct prom *prom, unsigned i, double *value)
{
	*value = (double)prom->now[i].bytes;
	return prom->now[i].ops;
}

static bool busy_seconds(const struct prom *prom, unsigned i, double *value)
{
	*value = rounding_seconds(prom->now[i].busy_ns);
	return prom->now[i].ops;
}

static bool untimed_operations(const struct prom *prom, unsigned i, double *value)
{
	*value = (double)prom->more[i].untimed_ops;
	return prom->more[i].untimed_ops;
}

static bool untimed_bytes(const struct prom *prom, unsigned i, double *value)
{
	*value = (double)prom->more[i].untimed_bytes;
	return prom->more[i].untimed_ops;
}

static bool wait_operations(const struct prom *prom, unsigned i, double *value)
{
	*value = (double)prom->more[i].phased_ops;
	return prom->more[i].phased_ops;
}

static bool wait_seconds(const struct prom *prom, unsigned i, double *value)
{
	*value = rounding_seconds(prom->more[i].wait_ns);
	return prom->more[i].phased_ops;
}

struct family {
	enum metric collective, p2p;
	bool (*value)(const struct prom *prom, unsigned key, double *value);
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
	FAMILY(untimed_operations, COLLECTIVE_UNTIMED_OPERATIONS_TOTAL,
	       P2P_UNTIMED_OPERATIONS_TOTAL),
	FAMILY(untimed_bytes, COLLECTIVE_UNTIMED_BYTES_TOTAL, P2P_UNTIMED_BYTES_TOTAL),
	FAMILY(wait_operations, COLLECTIVE_WAIT_OPERATIONS_TOTAL, P2P_WAIT_OPERATIONS_TOTAL),
	FAMILY(wait_seconds, COLLECTIVE_WAIT_SECONDS_TOTAL, P2P_WAIT_SECONDS_TOTAL),
};
#define COUNT(table) (sizeof(table) / sizeof(*(table)))

static void write_family(struct prom_page *page, const struct family *family, bool p2p)
{
	const struct prom *prom = page->prom;
	bool begun = false;
	double value;

	for (unsigned n = 0; n < prom->keys.count; n++) {
		unsigned i = prom->keys.row[n];

		if (box_func_is_p2p(prom->box->keys[i].func) != p2p ||
		    !family->value(prom, i, &value))
			continue;
		prom_begin(page, p2p ? family->p2p : family->collective, &begun);
		add_labels(page, i);
		prom_end(page, value);
	}
}

static void write_families(struct prom_page *page, const struct family *families, size_t count)
{
	for (unsigned p2p = 0; p2p < 2; p2p++)
		for (size_t i = 0; i < count; i++)
			write_family(page, &families[i], p2p);
}

void prom_key_gauges(struct prom_page *page)
{
	write_families(page, gauges, COUNT(gauges));
}

void prom_key_counters(struct prom_page *page)
{
	write_families(page, counters, COUNT(counters));
}
