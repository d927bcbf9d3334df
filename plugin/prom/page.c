/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/page.h"

/* `head` opens the family, `name` each of its series. */
static const struct {
	const char *head, *name;
	size_t head_length, name_length;
} metrics[METRICS] = {
#define HEAD(name, type, help) "# HELP " name " " help "\n# TYPE " name " " type "\n"
#define METRIC(id, name, type, help)                                                               \
	[id] = { HEAD(name, type, help), name, sizeof(HEAD(name, type, help)) - 1,                 \
	         sizeof(name) - 1 },
#include "metrics_table.h"
#undef METRIC
};

bool prom_repeat(struct prom_page *page, struct prom_part *labels)
{
	if (labels->length)
		textbuf_repeat(page->text, labels->at, labels->length);
	else
		labels->at = page->text->length;
	return labels->length != 0;
}

void prom_rendered(struct prom_page *page, struct prom_part *labels)
{
	labels->length = page->text->length - labels->at;
}

void prom_begin(struct prom_page *page, enum metric metric, bool *begun)
{
	if (!*begun)
		textbuf_add_bytes(page->text, metrics[metric].head, metrics[metric].head_length);
	*begun = true;
	textbuf_add_bytes(page->text, metrics[metric].name, metrics[metric].name_length);
}

void prom_end(struct prom_page *page, double value)
{
	TEXTBUF_ADD(page->text, "} ");
	textbuf_add_17g(page->text, value);
	TEXTBUF_ADD(page->text, "\n");
}

void prom_end_time(struct prom_page *page, double unix_s)
{
	TEXTBUF_ADD(page->text, "} ");
	textbuf_add_3f(page->text, unix_s);
	TEXTBUF_ADD(page->text, "\n");
}

void prom_job_labels(struct prom_page *page)
{
	const struct config *config = page->prom->config;

	textbuf_add_label(page->text, "{cluster", config->cluster);
	textbuf_add_label(page->text, ",slurm_job_id", config->job);
	textbuf_add_label(page->text, ",node", config->node);
	textbuf_add_label(page->text, ",gpu", page->prom->box->header->gpu[page->gpu].label);
}

void prom_comm_identity(struct prom_page *page, const struct box_comm *comm)
{
	textbuf_add(page->text, ",rank=\"%d\",comm=\"0x%llx\"", comm->rank,
	            (unsigned long long)comm->id);
	textbuf_add_label(page->text, ",comm_name", comm->name[0] ? comm->name : "unknown");
}

void prom_comm_labels(struct prom_page *page, unsigned index)
{
	if (prom_repeat(page, &page->comms[index]))
		return;
	prom_job_labels(page);
	prom_comm_identity(page, &page->prom->box->comms[index]);
	prom_rendered(page, &page->comms[index]);
}
