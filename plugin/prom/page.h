/* SPDX-License-Identifier: Apache-2.0 */
/* prom/page.h - one text while it is written: families, series and their labels.
 *
 * Each row of a table has several series with the same labels: they are rendered for the first, and the others
 * repeat them from the text.
 */
#ifndef NCCL_INSPECTOR_PROM_PAGE_H
#define NCCL_INSPECTOR_PROM_PAGE_H

#include "prom/window.h"

enum metric {
#define METRIC(id, name, type, help) id,
#include "metrics_table.h"
#undef METRIC
	METRICS,
};

struct prom_part { /* a part of the text */
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

/* True: they were there and are repeated. False: render them, then call prom_rendered. */
bool prom_repeat(struct prom_page *page, struct prom_part *labels);
void prom_rendered(struct prom_page *page, struct prom_part *labels);

/* The beginning of a series, up to its labels; before the first one that of the family. */
void prom_begin(struct prom_page *page, enum metric metric, bool *begun);
void prom_end(struct prom_page *page, double value);
void prom_end_time(struct prom_page *page, double unix_s);

/* From '{' on. */
void prom_job_labels(struct prom_page *page);
void prom_comm_labels(struct prom_page *page, unsigned comm);
/* `,rank`, `,comm` and `,comm_name`. */
void prom_comm_identity(struct prom_page *page, const struct box_comm *comm);

/* prom/labels.c */
void prom_labels(struct prom_page *page);

/* prom/keys.c: the means of the window, and what was counted. */
void prom_key_gauges(struct prom_page *page);
void prom_key_counters(struct prom_page *page);

#endif
