/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/page.h"

/* `head` opens the family, `name` each of its series. */
static const struct {
	const char *head, *name;
	size_t head_length, name_length;
} metrics[METRICS] = {
#define HEAD(name, type, help) "# HELP " name " " help "\n# TYPE " name " " type "\n"
#define METRIC(id, name, type, help) \
	[id] = { HEAD(name, type, help), name, sizeof(HEAD(name, type, help)) - 1, sizeof(name) - 1 },
#include "metrics_table.h"
#undef METRIC
};

bool expo_repeat(struct expo_page *page, struct expo_labels *labels)
{
	if (labels->length)
		text_repeat(page->text, labels->at, labels->length);
	else
		labels->at = page->text->length;
	return labels->length != 0;
}

void expo_rendered(struct expo_page *page, struct expo_labels *labels)
{
	labels->length = page->text->length - labels->at;
}

void expo_begin(struct expo_page *page, enum metric metric, bool *begun)
{
	if (!*begun)
		text_add_bytes(page->text, metrics[metric].head, metrics[metric].head_length);
	*begun = true;
	text_add_bytes(page->text, metrics[metric].name, metrics[metric].name_length);
}

void expo_end(struct expo_page *page, double value)
{
	TEXT_ADD(page->text, "} ");
	text_add_17g(page->text, value);
	TEXT_ADD(page->text, "\n");
}

void expo_end_time(struct expo_page *page, double unix_s)
{
	TEXT_ADD(page->text, "} ");
	text_add_3f(page->text, unix_s);
	TEXT_ADD(page->text, "\n");
}

void expo_job_labels(struct expo_page *page)
{
	const struct config *config = page->expo->config;

	text_add_label(page->text, "{cluster", config->cluster);
	text_add_label(page->text, ",slurm_job_id", config->job);
	text_add_label(page->text, ",node", config->node);
	text_add_label(page->text, ",gpu", page->expo->box->header->gpu[page->gpu].label);
}

void expo_comm_words(struct expo_page *page, const struct box_comm *comm)
{
	text_add(page->text, ",rank=\"%d\",comm=\"0x%llx\"", comm->rank, (unsigned long long)comm->id);
	text_add_label(page->text, ",comm_name", comm->name[0] ? comm->name : "unknown");
}

void expo_comm_labels(struct expo_page *page, unsigned index)
{
	if (expo_repeat(page, &page->comms[index]))
		return;
	expo_job_labels(page);
	expo_comm_words(page, &page->expo->box->comms[index]);
	expo_rendered(page, &page->comms[index]);
}
