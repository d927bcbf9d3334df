/* SPDX-License-Identifier: Apache-2.0 */
/* A file that is replaced: whole for whoever reads it, and written over the one before. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "prom/file.h"
#include "tap.h"

#define NAME "a.prom"
#define BESIDE ".a.prom.tmp"

static int dir_fd;
static struct textbuf text;

static int replace(unsigned lines, char letter, bool keeps_room)
{
	textbuf_clear(&text);
	for (unsigned i = 0; i < lines; i++)
		textbuf_add(&text, "%c%049u\n", letter, i);
	TEXTBUF_ADD(&text, "# EOF\n");
	return promfile_replace(dir_fd, NAME, &text, keeps_room);
}

static struct stat status_of(const char *name)
{
	struct stat found = { 0 };

	if (fstatat(dir_fd, name, &found, AT_SYMLINK_NOFOLLOW))
		found.st_size = -1;
	return found;
}

/* What a reader of `fd` takes: so many lines of this letter, then blank ones, then the last. */
static bool holds(int fd, unsigned lines, char letter)
{
	static char data[1 << 20];
	ssize_t size = pread(fd, data, sizeof(data), 0);
	size_t at = lines * 51ul, end = (size_t)size - 6;

	if (size < (ssize_t)(at + 6) || memcmp(data + end, "# EOF\n", 6))
		return false;
	for (unsigned i = 0; i < lines; i++)
		if (data[i * 51ul] != letter || data[i * 51ul + 50] != '\n')
			return false;
	while (at < end && data[at] == '\n')
		at++;
	return at == end;
}

static bool now_holds(unsigned lines, char letter)
{
	int fd = openat(dir_fd, NAME, O_RDONLY);
	bool whole = fd >= 0 && holds(fd, lines, letter);

	close(fd);
	return whole;
}

static void check_room(void)
{
	struct stat first, spare;
	int reader;

	ok(!replace(100, 'a', true) && now_holds(100, 'a'), "the first text is there");
	first = status_of(NAME);
	spare = status_of(BESIDE);
	ok(first.st_size == 16384 && spare.st_size == 16384 && spare.st_blocks >= 32,
	   "it has room to grow, and so has the file for the next");
	reader = openat(dir_fd, NAME, O_RDONLY);
	ok(!replace(200, 'b', true) && now_holds(200, 'b'), "the second text is there");
	ok(status_of(NAME).st_ino == spare.st_ino && status_of(BESIDE).st_ino == first.st_ino,
	   "in the file beside, which has changed places with the first");
	ok(holds(reader, 100, 'a'), "who has opened the first file reads it to its end");
	nanosleep(&(struct timespec){ 0, 50000000 },
	          NULL); /* as an interval: beyond the grain of a file's times */
	ok(!replace(3, 'c', true) && now_holds(3, 'c'),
	   "a shorter text leaves nothing of a longer one");
	ok(status_of(NAME).st_ino == first.st_ino && status_of(NAME).st_blocks >= 32,
	   "and keeps the room");
	ok(!holds(reader, 100, 'a') && fstat(reader, &spare) == 0 &&
	       (spare.st_mtim.tv_sec != first.st_mtim.tv_sec ||
	        spare.st_mtim.tv_nsec != first.st_mtim.tv_nsec),
	   "who still reads that file can see that it was written to");
	close(reader);
	ok(!replace(3000, 'd', true) && now_holds(3000, 'd'), "a text beyond the room gets more");
	ok(!replace(3001, 'e', true) && now_holds(3001, 'e'), "and the next one, too");
	ok(!replace(11000, 'f', true) && status_of(NAME).st_size > PROMFILE_MAX_BYTES &&
	       now_holds(11000, 'f'),
	   "one beyond the agent's limit is written as it is");
	ok(!replace(10000, 'g', true) && !replace(10000, 'h', true) &&
	       status_of(NAME).st_size == PROMFILE_MAX_BYTES,
	   "one below it stays below it");
	promfile_remove(dir_fd, NAME);
	ok(status_of(NAME).st_size < 0 && status_of(BESIDE).st_size < 0,
	   "both files are gone at the end");
}

static void check_odd(void)
{
	int fd = openat(dir_fd, BESIDE, O_WRONLY | O_CREAT, 0600);

	ok(fd >= 0 && !ftruncate(fd, 100 << 20) && !replace(10, 'a', true) && now_holds(10, 'a') &&
	       status_of(NAME).st_size == 16384,
	   "a file of 100 MB beside is not used");
	close(fd);
	unlinkat(dir_fd, BESIDE, 0);
	ok(!symlinkat("target", dir_fd, BESIDE) && !replace(10, 'b', true) && now_holds(10, 'b') &&
	       status_of("target").st_size < 0,
	   "a link beside is not followed");
	unlinkat(dir_fd, BESIDE, 0);
	ok(!mkfifoat(dir_fd, BESIDE, 0600) && !replace(10, 'c', true) && now_holds(10, 'c'),
	   "a FIFO beside stops nobody");
	promfile_remove(dir_fd, NAME);
}

int main(void)
{
	char dir[] = "/tmp/test_promfile.XXXXXX";

	dir_fd = mkdtemp(dir) ? open(dir, O_RDONLY | O_DIRECTORY) : -1;
	check_room();
	check_odd();
	ok(!replace(10, 'a', false) && status_of(NAME).st_size == 10 * 51 + 6 && now_holds(10, 'a'),
	   "in a directory of the user's own a file is its text");
	ok(status_of(BESIDE).st_size < 0, "with nothing beside");
	promfile_remove(dir_fd, NAME);
	rmdir(dir);
	ok(replace(10, 'a', true) < 0 && replace(10, 'a', false) < 0,
	   "a directory that is gone is an error");
	free(text.data);
	return done_testing();
}
