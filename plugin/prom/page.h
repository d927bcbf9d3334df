/* SPDX-License-Identifier: Apache-2.0 */
/* prom/page.h - one text while it is written: families, series and their labels.
 *
 * Each row of a table has several series with the same labels: they are rendered for the first, and
 * the others repeat them from the text.
 */
#ifndef NCCL_INSPECTOR_PROM_PAGE_H
#define NCCL_INSPECTOR_PROM_PAGE_H

#include "base/textbuf.h"
#include "prom/window.h"

enum metric {
#define METRIC(id, name, type, help) id,
#include "metrics_table.h"
#undef METRIC
	METRICS,
};

struct prom_part {         /* a part of the text */
	size_t at, length; /* length 0: not rendered yet */
};

struct prom_page {
	struct prom *prom;
	struct textbuf *text;
	unsigned gpu;
	struct prom_part comms[BOX_COMMS];     /* of the communicator's own series */
	struct prom_part key_comms[BOX_COMMS]; /* what all keys of one communicator begin with */
	struct prom_part keys[BOX_KEYS], nets[BOX_NETS];
};

/* Repeats labels that were rendered before. Returns false if they were not: then render them and
 * call prom_rendered. */
bool prom_repeat(struct prom_page *page, struct prom_part *labels);

/* The labels have been rendered, from where prom_repeat was called to the present end of the
 * text. */
void prom_rendered(struct prom_page *page, struct prom_part *labels);

/* Writes a series up to its labels, and before the first one (`*begun` false) the head of its
 * family. */
void prom_begin(struct prom_page *page, enum metric metric, bool *begun);

/* Write what follows the labels: '}', the value (of a time: seconds since 1970, to the millisecond)
 * and the end of the line. */
void prom_end(struct prom_page *page, double value);
void prom_end_time(struct prom_page *page, double unix_s);

/* Write labels from '{' on: those of the job, of the node and of the GPU; these and those of a
 * communicator, an index of box->comms. */
void prom_job_labels(struct prom_page *page);
void prom_comm_labels(struct prom_page *page, unsigned comm);

/* Writes `,rank`, `,comm` and `,comm_name`. */
void prom_comm_identity(struct prom_page *page, const struct box_comm *comm);

#endif
