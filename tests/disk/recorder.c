/* Writes down what a process does to the files below one directory, in the order in which it does it.
 *
 * Preloaded into a process, it stands before the calls by which SQLite and Python change files. Each
 * call that succeeded becomes one record in a log: what was changed, where, and the bytes. From the
 * log the files can be made again as a loss of power would have left them (power_cut.py).
 *
 * Changes through shared memory are not seen. SQLite makes them in its -shm file alone, which it
 * never trusts after a crash.
 *
 * A record is a header, a path and data:
 *
 *   u8 kind, u8[7] 0, u64 inode, u64 offset, u64 path length, u64 data length
 *
 * O  a file or directory was opened or made   path
 * W  bytes were written                       offset, data
 * T  the length was set                       offset
 * S  everything written so far is safe
 * U  a name was removed                       path
 * R  a name was changed                       path: from NUL to
 * D  a directory was made                     path
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FILES 4096

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

struct header {
    uint8_t kind;
    uint8_t zero[7];
    uint64_t inode;
    uint64_t offset;
    uint64_t path_length;
    uint64_t data_length;
};

static char watched[PATH_MAX];
static int log_file = -1;
static volatile char is_watched[MAX_FILES];

__attribute__((constructor)) static void start(void) {
    const char *directory = getenv("RECORDER_DIRECTORY");
    const char *log = getenv("RECORDER_LOG");
    if (!directory || !log)
        return;
    snprintf(watched, sizeof watched, "%s/", directory);
    log_file = NEXT(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    /* What this process starts is none of the recorder's business. */
    unsetenv("LD_PRELOAD");
}

/* The directory itself counts: names in it are made safe by syncing it. */
static int below(const char *path) {
    size_t length = strlen(watched);
    return log_file >= 0 && path &&
           (strncmp(path, watched, length) == 0 ||
            (strncmp(path, watched, length - 1) == 0 && path[length - 1] == 0));
}

static int seen(int fd) { return fd >= 0 && fd < MAX_FILES && is_watched[fd]; }

static uint64_t inode_of(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static void record(char kind, uint64_t inode, uint64_t offset, const char *path, size_t path_length,
                   const void *data, size_t data_length) {
    struct header header = {(uint8_t)kind, {0}, inode, offset, path_length, data_length};
    struct iovec parts[3] = {
        {&header, sizeof header}, {(void *)path, path_length}, {(void *)data, data_length}};
    size_t total = sizeof header + path_length + data_length;
    if (NEXT(writev)(log_file, parts, 3) != (ssize_t)total)
        abort(); /* a log with a gap would prove nothing */
}

static int opened(int fd, const char *path) {
    if (fd < 0 || !below(path))
        return fd;
    if (fd >= MAX_FILES)
        abort();
    is_watched[fd] = 1;
    record('O', inode_of(fd), 0, path, strlen(path), NULL, 0);
    return fd;
}

static mode_t mode_in(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = mode_in(flags, rest);                                                        \
        va_end(rest);                                                                              \
        return opened(NEXT(name)(path, flags, mode), path);                                        \
    }

OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                               \
    int name(int directory, const char *path, int flags, ...) {                                    \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = mode_in(flags, rest);                                                        \
        va_end(rest);                                                                              \
        return opened(NEXT(name)(directory, path, flags, mode), path);                             \
    }

OPENAT(openat)
OPENAT(openat64)

int close(int fd) {
    if (fd >= 0 && fd < MAX_FILES)
        is_watched[fd] = 0;
    return NEXT(close)(fd);
}

static ssize_t written(int fd, const void *data, ssize_t length, off_t end) {
    if (length > 0 && seen(fd))
        record('W', inode_of(fd), (uint64_t)(end - length), NULL, 0, data, (size_t)length);
    return length;
}

ssize_t write(int fd, const void *data, size_t length) {
    ssize_t done = NEXT(write)(fd, data, length);
    return written(fd, data, done, seen(fd) ? lseek(fd, 0, SEEK_CUR) : 0);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    ssize_t done = NEXT(pwrite)(fd, data, length, offset);
    return written(fd, data, done, offset + done);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    ssize_t done = NEXT(pwrite64)(fd, data, length, offset);
    return written(fd, data, done, offset + done);
}

static int truncated(int result, int fd, off_t length) {
    if (result == 0 && seen(fd))
        record('T', inode_of(fd), (uint64_t)length, NULL, 0, NULL, 0);
    return result;
}

int ftruncate(int fd, off_t length) { return truncated(NEXT(ftruncate)(fd, length), fd, length); }

int ftruncate64(int fd, off64_t length) {
    return truncated(NEXT(ftruncate64)(fd, length), fd, length);
}

static int synced(int result, int fd) {
    if (result == 0 && seen(fd))
        record('S', inode_of(fd), 0, NULL, 0, NULL, 0);
    return result;
}

int fsync(int fd) { return synced(NEXT(fsync)(fd), fd); }

int fdatasync(int fd) { return synced(NEXT(fdatasync)(fd), fd); }

int unlink(const char *path) {
    int result = NEXT(unlink)(path);
    if (result == 0 && below(path))
        record('U', 0, 0, path, strlen(path), NULL, 0);
    return result;
}

int rename(const char *from, const char *to) {
    int result = NEXT(rename)(from, to);
    if (result == 0 && (below(from) || below(to))) {
        char both[2 * PATH_MAX];
        int length = snprintf(both, sizeof both, "%s%c%s", from, 0, to);
        record('R', 0, 0, both, (size_t)length, NULL, 0);
    }
    return result;
}

int mkdir(const char *path, mode_t mode) {
    int result = NEXT(mkdir)(path, mode);
    if (result == 0 && below(path))
        record('D', 0, 0, path, strlen(path), NULL, 0);
    return result;
}
