/* SPDX-License-Identifier: Apache-2.0 */
/* The box as a file: lock, collisions, places that are not tmpfs, full ones. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "box/box.h"
#include "tap.h"

static int open_place(const char *parent, char *path)
{
	snprintf(path, 64, "%s/nccl-inspector-test-XXXXXX", parent);
	return mkdtemp(path) ? open(path, O_RDONLY | O_DIRECTORY) : -1;
}

static bool is_locked(int dir_fd, const char *stem)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	char name[128];
	int status;

	snprintf(name, sizeof(name), "%s.box", stem);
	pid_t child = fork(); /* a lock is invisible to its own process */

	if (!child) {
		int fd = openat(dir_fd, name, O_RDONLY);

		_exit(fd < 0 || fcntl(fd, F_GETLK, &lock) || lock.l_type == F_UNLCK);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void remove_place(int dir_fd, const char *path, struct box *boxes, int count)
{
	char name[128];

	for (int i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s.box", boxes[i].stem);
		unlinkat(dir_fd, name, 0);
	}
	rmdir(path);
}

static void test_on_tmpfs(void)
{
	struct box boxes[2];
	struct stat st;
	char path[64], name[128];
	int error, dir_fd = open_place("/dev/shm", path);

	ok(box_open(&boxes[0], dir_fd, "3", &error) == 0 && !error && boxes[0].mapped,
	   "on tmpfs the box is mapped");
	ok(box_open(&boxes[1], dir_fd, "3", &error) == 0 && !error &&
	       strcmp(boxes[0].stem, boxes[1].stem),
	   "the second of one number has a name of its own (%s)", boxes[1].stem);
	ok(!strncmp(box_process(&boxes[1]), "3_", 2), "the process is step and number (%s)",
	   box_process(&boxes[1]));
	snprintf(name, sizeof(name), "%s.box", boxes[0].stem);
	fstatat(dir_fd, name, &st, 0);
	ok((uint64_t)st.st_size == boxes[0].header->file_bytes && st.st_blocks * 512 >= st.st_size,
	   "every page is there from the start (%lld bytes)", (long long)st.st_size);
	ok((st.st_mode & 0777) == 0400, "nobody else may read it, and nobody else may write to it");
	ok(st.st_size <= 4 << 20, "it has at most 4 MiB");
	ok(is_locked(dir_fd, boxes[0].stem), "it is locked while its process lives");
	pid_t child = fork();

	if (!child)
		_exit(0);
	waitpid(child, &error, 0);
	ok(is_locked(dir_fd, boxes[0].stem), "and a child's end does not change that");
	remove_place(dir_fd, path, boxes, 2);
}

/* Whether a line of a file of ours in /proc has the box's name. */
static bool has_name(const char *list, const char *stem)
{
	char line[512];
	bool found = false;
	FILE *file = fopen(list, "r");

	while (file && fgets(line, sizeof(line), file))
		found = found || strstr(line, stem);
	if (file)
		fclose(file);
	return found;
}

static void test_a_child_that_lives_on(void)
{
	struct box box;
	char path[64];
	int status, error, dir_fd = open_place("/dev/shm", path);

	box_open(&box, dir_fd, "4", &error);
	box.header->dropped[0] = 7;
	ok(has_name("/proc/self/maps", box.stem), "a process maps its box");
	pid_t child = fork();

	if (!child) {
		int number = box.file.fd;

		box_leave(&box);
		if (has_name("/proc/self/maps", box.stem) || fcntl(number, F_GETFD) >= 0)
			_exit(1);
		if (box.header->dropped[0] || box.header->state)
			_exit(2);
		box.header->dropped[0] = 99; /* what comes late must hit nobody */
		_exit(0);
	}
	waitpid(child, &status, 0);
	ok(WIFEXITED(status) && !WEXITSTATUS(status),
	   "a child that leaves it keeps nothing of it (%x)", status);
	ok(box.header->dropped[0] == 7 && is_locked(dir_fd, box.stem),
	   "and the parent keeps all, with its lock");
	remove_place(dir_fd, path, &box, 1);
}

static void test_elsewhere(void)
{
	struct box box;
	struct stat st;
	char path[64], name[128], magic[8] = "";
	int error, dir_fd = open_place("/var/tmp", path);

	ok(box_open(&box, dir_fd, "x", &error) == 0 && !error, "a box can lie on a disk");
	ok(!box.mapped, "but is not mapped there");
	ok(box_snapshot(&box) == 0, "a copy is written instead");
	snprintf(name, sizeof(name), "%s.box", box.stem);
	fstatat(dir_fd, name, &st, 0);
	ok(pread(box.file.fd, magic, 8, 0) == 8 && !memcmp(magic, BOX_MAGIC, 8) &&
	       (uint64_t)st.st_size == box.bytes,
	   "whole");
	remove_place(dir_fd, path, &box, 1);
}

/* The application closes what it has not opened, and its checkpoint gets the number. */
static void test_taken_descriptor(void)
{
	struct box box;
	char path[64], mine_name[96], magic[8];
	int error, dir_fd = open_place("/var/tmp", path);

	box_open(&box, dir_fd, "x", &error);
	snprintf(mine_name, sizeof(mine_name), "%s/checkpoint", path);
	int mine = open(mine_name, O_CREAT | O_RDWR, 0600), number = box.file.fd;

	ok(pwrite(mine, "weights", 8, 0) == 8 && dup2(mine, number) == number,
	   "a checkpoint has the box's descriptor");
	ok(box_snapshot(&box) == 0, "then there is nowhere to write a copy");
	box_set_state(&box, BOX_EXITED);
	ok(pread(mine, magic, 8, 0) == 8 && !strcmp(magic, "weights") &&
	       lseek(mine, 0, SEEK_END) == 8,
	   "and the checkpoint is as it was");
	ok(fcntl(number, F_GETFD) >= 0, "and open");
	close(number);
	close(mine);
	unlink(mine_name);
	remove_place(dir_fd, path, &box, 1);
}

/* As a user, not as root, who may do anything. */
static void test_truncating(void)
{
	struct box box;
	char path[64], name[256];
	int error, status, dir_fd = open_place("/dev/shm", path);

	fchmod(dir_fd, 0777);
	pid_t child = fork();

	if (!child) {
		if (setgid(65534) || setuid(65534) || box_open(&box, dir_fd, "0", &error) || error)
			_exit(1);
		snprintf(name, sizeof(name), "%s/%s.box", path, box.stem);
		if (!truncate(name, 0) || errno != EACCES)
			_exit(2);
		if (open(name, O_WRONLY | O_TRUNC) >= 0 || open(name, O_RDONLY) < 0)
			_exit(3);
		box.header->dropped[0] = 1; /* the memory is the plugin's to write */
		_exit(unlink(name) ? 4 : 0);
	}
	waitpid(child, &status, 0);
	ok(WIFEXITED(status) && !WEXITSTATUS(status),
	   "its user cannot shorten the file under the process (%x)", status);
	remove_place(dir_fd, path, NULL, 0);
}

static void test_nowhere(void)
{
	struct box box;
	int error;

	ok(box_open(&box, -1, "0", &error) == 0 && !error && box.header,
	   "without a directory memory does");
	ok(box_open(&box, open("/proc/self", O_RDONLY | O_DIRECTORY), "0", &error) == 0 && error &&
	       box.header,
	   "where no file can be made memory does, and the reason is told (%s)", strerror(-error));
	ok(box_snapshot(&box) == 0, "then there is nothing to write");
}

static void test_a_limit_on_files(void)
{
	struct box box;
	char path[64];
	int status, dir_fd = open_place("/dev/shm", path);
	pid_t child = fork();

	if (!child) {
		int error;

		setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 1024000, 1024000 });
		box_open(&box, dir_fd, "0", &error);
		_exit(error == -EFBIG && box.header ? 0 : 1);
	}
	waitpid(child, &status, 0);
	ok(WIFEXITED(status) && !WEXITSTATUS(status),
	   "a limit on file sizes is an error and not the end of the job");
	remove_place(dir_fd, path, NULL, 0);
}

static void test_closed_descriptors(void)
{
	struct box box;
	char path[64];
	int status, dir_fd = fcntl(open_place("/dev/shm", path), F_DUPFD, 10);
	pid_t child = fork();

	if (!child) {
		int error;

		for (int fd = 0; fd < 10; fd++)
			close(fd);
		box_open(&box, dir_fd, "0", &error);
		char name[128];

		snprintf(name, sizeof(name), "%s.box", box.stem);
		unlinkat(dir_fd, name, 0);
		_exit(box.file.fd > 2 ? 0 : 1);
	}
	waitpid(child, &status, 0);
	ok(WIFEXITED(status) && !WEXITSTATUS(status), "the box is never the application's stdout");
	remove_place(dir_fd, path, NULL, 0);
}

int main(void)
{
	test_on_tmpfs();
	test_a_child_that_lives_on();
	test_elsewhere();
	test_taken_descriptor();
	test_truncating();
	test_nowhere();
	test_a_limit_on_files();
	test_closed_descriptors();
	return done_testing();
}
