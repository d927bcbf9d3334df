/* SPDX-License-Identifier: Apache-2.0 */
/* one_of_each.c LIBRARY VERSION - plays one operation of each kind, for the test of the player. */
#include <stdio.h>
#include <stdlib.h>

#include "player.h"

int main(int argc, char **argv)
{
	struct player player;
	struct player_comm comm = { .name = "tp", .id = 7, .n_nodes = 2, .n_ranks = 8, .rank = 3 };
	struct player_op coll = player_coll(PLAYER_ALLREDUCE, 4096);
	struct player_op pair[] = { player_p2p(PLAYER_SEND, 4, 64),
	                            player_p2p(PLAYER_RECV, 2, 64) };
	struct player_op broadcast = player_coll(PLAYER_BROADCAST, 256);
	struct player_op gather = player_coll(PLAYER_ALLGATHER, 512);

	if (argc != 3 || !player_open(&player, argv[1], atoi(argv[2])))
		return 1;
	player_init(&player, &comm);
	coll.channels = 2;
	coll.first_channel = 62;
	player_enqueue(&comm, &coll);
	player_kernel(&comm, &coll, 1000, 2000);
	player_enqueue_group(&comm, pair, 2);
	for (unsigned i = 0; i < 2; i++)
		player_kernel(&comm, &pair[i], 3000, 4000);
	player_enqueue_api_only(&comm, &broadcast);
	player_enqueue_ce(&comm, &gather);
	player_finalize(&comm);
	player_close(&player);
	printf("%d %d %u\n", player.version, comm.result, player.unwritten);
	return 0;
}
