/* SPDX-License-Identifier: Apache-2.0 */
/* player.c - the library, its log, and communicators. */
#include "player.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>

#include "start.h"

static player_log on_log;

void player_on_log(player_log log)
{
	on_log = log;
}

static void log_line(int level, unsigned long subsystem, const char *file, int line,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void log_line(int level, unsigned long subsystem, const char *file, int line,
                     const char *fmt, ...)
{
	char text[2048];
	va_list args;

	(void)file;
	(void)line;
	if (!on_log)
		return;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	on_log(level, subsystem, text);
}

static const void *find_table(void *library, int version)
{
	char symbol[32];

	snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", version);
	return dlsym(library, symbol);
}

bool player_open(struct player *player, const char *path, int version)
{
	static void (*const starts[])(const struct player_start *, void **) = {
		NULL,
		player_start_v1,
		player_start_v2,
		player_start_v3,
		player_start_v4,
		player_start_v5,
		player_start_v5,
		player_start_v7,
	};
	const void *table;

	*player = (struct player){ .version = version ? version : PLAYER_VERSIONS };
	player->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!player->library) {
		fprintf(stderr, "player: %s\n", dlerror());
		return false;
	}
	table = find_table(player->library, player->version);
	while (!table && !version && player->version > 1)
		table = find_table(player->library, --player->version);
	if (!table) {
		fprintf(stderr, "player: %s: no table of version %d\n", path, version);
		player_close(player);
		return false;
	}
	player->v1 = table;
	player->start = starts[player->version];
	return true;
}

void player_close(struct player *player)
{
	dlclose(player->library);
	player->library = NULL;
}

void player_init(struct player *player, struct player_comm *comm)
{
	comm->player = player;
	comm->context = PLAYER_LEFT_OVER;
	if (player->version < 4)
		comm->result = player->v1->init(&comm->context, &player->mask);
	else if (player->version == 4)
		comm->result = player->v4->init(&comm->context, &player->mask, comm->name, comm->id,
		                                comm->n_nodes, comm->n_ranks, comm->rank, log_line);
	else
		comm->result = player->v5->init(&comm->context, comm->id, &player->mask, comm->name,
		                                comm->n_nodes, comm->n_ranks, comm->rank, log_line);
}

void player_finalize(struct player_comm *comm)
{
	if (comm->context || comm->player->version < 5)
		comm->player->v5->finalize(comm->context);
}
