/*
 * A library that is loaded in front of a program: it leads the paths of Linux's RDMA devices to a folder with
 * those of this package (TWISTED_IB_SYSFS), for the C library's functions that take a path.  And in a program that
 * is Python, a thread that waits for a lock of C, or for a thread's end, leaves Python's to the one that has it.
 * And functions that set a signal's handler are seen, and do what they do.
 *
 * Programs look there for devices before they call libibverbs.  No path but those below is touched, and no
 * function of a path does anything else than the C library's with another one.
 */

#define _GNU_SOURCE
#undef _FORTIFY_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define VARIABLE "TWISTED_IB_SYSFS"

static const char CLASS[] = "/sys/class/infiniband", NODES[] = "/dev/infiniband";

static int begins(const char *path, const char *with, size_t length, const char *ends)
{
    return strncmp(path, with, length) == 0 && (path[length] == '\0' || strchr(ends, path[length]) != NULL);
}

/* What the C library is to open, stat and so on; perhaps in a buffer of PATH_MAX octets. */
static const char *led(const char *path, char *buffer)
{
    const char *folder;
    int isNode;

    if (path == NULL || path[0] != '/')
        return path;
    isNode = begins(path, NODES, sizeof NODES - 1, "/");
    /* infiniband_verbs, too. */
    if (!isNode && !begins(path, CLASS, sizeof CLASS - 1, "/_"))
        return path;
    folder = getenv(VARIABLE);
    if (folder == NULL || snprintf(buffer, PATH_MAX, "%s%s", folder, path) >= PATH_MAX)
        return path;
    /* Programs ask whether it is a character device, and may open it: nothing is done with it. */
    if (isNode && strlen(path) > sizeof NODES) {
        static int (*real)(const char *, int);
        if (real == NULL)
            real = (int (*)(const char *, int))dlsym(RTLD_NEXT, "access");
        if (real(buffer, F_OK) == 0)
            return "/dev/null";
    }
    return buffer;
}

#define REAL(name) \
    static __typeof__(name) *real; \
    char buffer[PATH_MAX]; \
    if (real == NULL) \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* The mode is there if a file may be made (open(2)). */
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        MODE(flags) \
        return real(led(path, buffer), flags, mode); \
    }

#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) \
    { \
        REAL(name); \
        MODE(flags) \
        return real(at, led(path, buffer), flags, mode); \
    }

/* A function of the result, of the path and what follows it. */
#define FIRST(result, name, declared, given) \
    result name declared \
    { \
        REAL(name); \
        return real given; \
    }

#define PATH led(path, buffer)

/* What headers of this C library do not declare any more, or never did. */
extern int __open_2(const char *, int), __open64_2(const char *, int);
extern int __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
extern int __xstat(int, const char *, struct stat *), __xstat64(int, const char *, struct stat64 *);
extern int __lxstat(int, const char *, struct stat *), __lxstat64(int, const char *, struct stat64 *);
extern int __fxstatat(int, int, const char *, struct stat *, int);
extern int __fxstatat64(int, int, const char *, struct stat64 *, int);
extern char *__realpath_chk(const char *, char *, size_t);
extern ssize_t __readlink_chk(const char *, char *, size_t, size_t);
extern ssize_t __readlinkat_chk(int, const char *, char *, size_t, size_t);

OPEN(open)
OPENAT(openat)
FIRST(int, __open_2, (const char *path, int flags), (PATH, flags))
FIRST(int, __openat_2, (int at, const char *path, int flags), (at, PATH, flags))
FIRST(FILE *, fopen, (const char *path, const char *mode), (PATH, mode))
FIRST(DIR *, opendir, (const char *path), (PATH))
FIRST(int, chdir, (const char *path), (PATH))
FIRST(int, scandir, (const char *path, struct dirent ***found, int (*wanted)(const struct dirent *),
                     int (*order)(const struct dirent **, const struct dirent **)),
      (PATH, found, wanted, order))
FIRST(int, stat, (const char *path, struct stat *found), (PATH, found))
FIRST(int, lstat, (const char *path, struct stat *found), (PATH, found))
FIRST(int, fstatat, (int at, const char *path, struct stat *found, int flags), (at, PATH, found, flags))
FIRST(int, statx, (int at, const char *path, int flags, unsigned int mask, struct statx *found),
      (at, PATH, flags, mask, found))
FIRST(int, __xstat, (int version, const char *path, struct stat *found), (version, PATH, found))
FIRST(int, __lxstat, (int version, const char *path, struct stat *found), (version, PATH, found))
FIRST(int, __fxstatat, (int version, int at, const char *path, struct stat *found, int flags),
      (version, at, PATH, found, flags))
FIRST(int, access, (const char *path, int mode), (PATH, mode))
FIRST(int, eaccess, (const char *path, int mode), (PATH, mode))
FIRST(int, euidaccess, (const char *path, int mode), (PATH, mode))
FIRST(int, faccessat, (int at, const char *path, int mode, int flags), (at, PATH, mode, flags))
FIRST(ssize_t, readlink, (const char *path, char *to, size_t size), (PATH, to, size))
FIRST(ssize_t, readlinkat, (int at, const char *path, char *to, size_t size), (at, PATH, to, size))
FIRST(ssize_t, __readlink_chk, (const char *path, char *to, size_t size, size_t room), (PATH, to, size, room))
FIRST(ssize_t, __readlinkat_chk, (int at, const char *path, char *to, size_t size, size_t room),
      (at, PATH, to, size, room))
FIRST(ssize_t, getxattr, (const char *path, const char *name, void *to, size_t size), (PATH, name, to, size))
FIRST(ssize_t, lgetxattr, (const char *path, const char *name, void *to, size_t size), (PATH, name, to, size))
FIRST(ssize_t, listxattr, (const char *path, char *to, size_t size), (PATH, to, size))
FIRST(ssize_t, llistxattr, (const char *path, char *to, size_t size), (PATH, to, size))
FIRST(char *, realpath, (const char *path, char *to), (PATH, to))
FIRST(char *, __realpath_chk, (const char *path, char *to, size_t room), (PATH, to, room))
FIRST(char *, canonicalize_file_name, (const char *path), (PATH))
#ifdef __GLIBC__
/* Others have files of 64 bits alone, and these names for the same. */
OPEN(open64)
OPENAT(openat64)
FIRST(int, __open64_2, (const char *path, int flags), (PATH, flags))
FIRST(int, __openat64_2, (int at, const char *path, int flags), (at, PATH, flags))
FIRST(FILE *, fopen64, (const char *path, const char *mode), (PATH, mode))
FIRST(int, scandir64, (const char *path, struct dirent64 ***found, int (*wanted)(const struct dirent64 *),
                       int (*order)(const struct dirent64 **, const struct dirent64 **)),
      (PATH, found, wanted, order))
FIRST(int, stat64, (const char *path, struct stat64 *found), (PATH, found))
FIRST(int, lstat64, (const char *path, struct stat64 *found), (PATH, found))
FIRST(int, fstatat64, (int at, const char *path, struct stat64 *found, int flags), (at, PATH, found, flags))
FIRST(int, __xstat64, (int version, const char *path, struct stat64 *found), (version, PATH, found))
FIRST(int, __lxstat64, (int version, const char *path, struct stat64 *found), (version, PATH, found))
FIRST(int, __fxstatat64, (int version, int at, const char *path, struct stat64 *found, int flags),
      (version, at, PATH, found, flags))
#endif

/*
 * In a program that is Python a thread may wait below with Python's lock for a thread that makes progress: mpi4py's
 * import, in UCX, for a lock of that, and its end for that thread's.  rdma-core's functions need no lock of Python's, so
 * that one goes on; here it is in such a function and waits for Python's, and neither would ever go on.
 */
static void (*back)(void *);

/* Leave Python's lock, which may be taken again with the result; NULL if this thread does not have it. */
static void *left(void)
{
    static void *(*own)(void), *(*running)(void), *(*leave)(void);
    static int known;
    void *state;

    if (!__atomic_load_n(&known, __ATOMIC_ACQUIRE)) {
        own = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
        /* Public from Python 3.13 on; before, by its name of then. */
        running = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyThreadState_GetUnchecked");
        if (running == NULL)
            running = (void *(*)(void))dlsym(RTLD_DEFAULT, "_PyThreadState_UncheckedGet");
        leave = (void *(*)(void))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
        back = (void (*)(void *))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
        __atomic_store_n(&known, 1, __ATOMIC_RELEASE);
    }
    if (own == NULL || running == NULL || leave == NULL || back == NULL)
        return NULL;
    state = own();
    return state != NULL && state == running() ? leave() : NULL;
}

/*
 * Python's lock is left between two looks at this one, and that alone: a lock that is free is taken as ever.  Nobody
 * waits for Python's with this one: where Python ends such a thread never goes on, and would keep it.
 */
int pthread_spin_lock(pthread_spinlock_t *lock)
{
    int (*real)(pthread_spinlock_t *);
    void *state;

    while (pthread_spin_trylock(lock) != 0) {
        state = left();
        if (state == NULL) {
            real = (int (*)(pthread_spinlock_t *))dlsym(RTLD_NEXT, "pthread_spin_lock");
            return real(lock);
        }
        sched_yield();
        back(state);
    }
    return 0;
}

/* A thread that has ended is joined as ever. */
int pthread_join(pthread_t thread, void **result)
{
    int (*real)(pthread_t, void **), error = pthread_tryjoin_np(thread, result);
    void *state;

    if (error != EBUSY)
        return error;
    real = (int (*)(pthread_t, void **))dlsym(RTLD_NEXT, "pthread_join");
    state = left();
    error = real(thread, result);
    if (state != NULL)
        back(state);
    return error;
}

/*
 * Whether the program has ever set a signal's handler.  While it has none, nothing leaves a function of rdma-core's by
 * siglongjmp(3), and none need block signals, which are two calls of the kernel for each that posts or polls.
 *
 * A library that asks for the next sigaction() behind its own is not seen, nor is the kernel's own call: for those
 * interpreter.c looks when Python starts, and when a queue is made.
 */
volatile int twisted_ib_handles;

typedef void (*handler)(int);

/*
 * Before the handler is there, as it may run at once, and after: the start of Python looks for handlers, and has none to
 * be seen before.  Signals that a thread brings upon itself are never blocked, so theirs do not count.
 */
void twisted_ib_handled(int number, handler set)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};

    if (set == SIG_DFL || set == SIG_IGN || set == SIG_HOLD)
        return;
    for (unsigned index = 0; index < sizeof own / sizeof *own; index++)
        if (own[index] == number)
            return;
    __atomic_store_n(&twisted_ib_handles, 1, __ATOMIC_SEQ_CST);
}

/* A signal's handler may set one: so the real ones are found before. */
#define HANDLED(result, name, parameters, given, handler_of) \
    static result(*real_##name) parameters; \
    __attribute__((constructor)) static void find_##name(void) \
    { \
        real_##name = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
    } \
    result name parameters \
    { \
        handler set = handler_of; \
        result found; \
        twisted_ib_handled(number, set); \
        if (real_##name == NULL) \
            find_##name(); \
        found = real_##name given; \
        twisted_ib_handled(number, set); \
        return found; \
    }

#define ACTION(name) \
    HANDLED(int, name, (int number, const struct sigaction *action, struct sigaction *before), \
            (number, action, before), action != NULL ? action->sa_handler : SIG_DFL)

#define SIGNAL(name) HANDLED(handler, name, (int number, handler action), (number, action), action)

ACTION(sigaction)
ACTION(__sigaction)
SIGNAL(signal)
SIGNAL(bsd_signal)
SIGNAL(sysv_signal)
SIGNAL(__sysv_signal)
SIGNAL(ssignal)
SIGNAL(sigset)

#include "carried.c"
