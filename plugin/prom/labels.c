/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/labels.h"

#include "box/names.h"
#include "hot/labels.h"
#include "prom/rounding.h"

#define relaxed memory_order_relaxed

struct sums {
	uint64_t ops, bytes, busy_ns;
};

/* Where NCCL tells of calls only, these are the operations. */
static void add_up(struct sums *sums, const struct box_label *label)
{
	uint64_t ops = atomic_load_explicit(&label->ops, relaxed);

	sums->ops += ops ? ops : atomic_load_explicit(&label->called_ops, relaxed);
	sums->bytes += atomic_load_explicit(ops ? &label->bytes : &label->called_bytes, relaxed);
	sums->busy_ns += atomic_load_explicit(&label->busy_ns, relaxed);
}

/* Two threads may have taken two places for one label: one series has what both have. */
static struct sums sums_of(const struct box *box, unsigned index)
{
	const struct box_label *label = &box->labels[index];
	struct sums sums = { 0 };

	for (unsigned i = index; i < BOX_LABELS; i++)
		if (i == index || labels_are_same(&box->labels[i], label))
			add_up(&sums, &box->labels[i]);
	return sums;
}

static void add_labels(struct prom_page *page, const struct box_label *label)
{
	if (label->kind == BOX_LABEL_ROOT) {
		prom_comm_labels(page, atomic_load_explicit(&label->comm, relaxed));
		textbuf_add_label(page->text, ",collective", box_func_name(label->func));
		textbuf_add(page->text, ",root=\"%llu\"", (unsigned long long)label->value);
		return;
	}
	prom_job_labels(page);
	textbuf_add_label(page->text, ",process", box_process(page->prom->box));
	textbuf_add_label(page->text, ",label",
	                  label->kind == BOX_LABEL_KERNEL ? "kernel" : "user_tag");
	if (label->value == BOX_LABEL_OTHERS)
		TEXTBUF_ADD(page->text, ",value=\"other\"");
	else if (label->kind == BOX_LABEL_KERNEL)
		textbuf_add_label(page->text, ",value", label->text);
	else
		textbuf_add(page->text, ",value=\"%llu\"", (unsigned long long)label->value);
}

static double operations(const struct sums *sums)
{
	return (double)sums->ops;
}

static double bytes(const struct sums *sums)
{
	return (double)sums->bytes;
}

static double busy_seconds(const struct sums *sums)
{
	return rounding_seconds(sums->busy_ns);
}

static const struct {
	enum metric label, root;
	double (*value)(const struct sums *sums);
} families[] = {
	{ METRIC_NCCL_LABEL_OPERATIONS_TOTAL, METRIC_NCCL_ROOT_OPERATIONS_TOTAL, operations },
	{ METRIC_NCCL_LABEL_BYTES_TOTAL, METRIC_NCCL_ROOT_BYTES_TOTAL, bytes },
	{ METRIC_NCCL_LABEL_BUSY_SECONDS_TOTAL, METRIC_NCCL_ROOT_BUSY_SECONDS_TOTAL, busy_seconds },
};

static void write_family(struct prom_page *page, unsigned family, bool roots)
{
	const struct prom_rows *rows = &page->prom->labels;
	const struct box *box = page->prom->box;
	bool begun = false;

	for (unsigned n = 0; n < rows->count; n++) {
		const struct box_label *label = &box->labels[rows->row[n]];
		const struct sums sums = sums_of(box, rows->row[n]);

		if ((label->kind == BOX_LABEL_ROOT) != roots)
			continue;
		prom_begin(page, roots ? families[family].root : families[family].label, &begun);
		add_labels(page, label);
		prom_end(page, families[family].value(&sums));
	}
}

void prom_labels(struct prom_page *page)
{
	for (unsigned roots = 0; roots < 2; roots++)
		for (unsigned family = 0; family < sizeof(families) / sizeof(*families); family++)
			write_family(page, family, roots);
}
