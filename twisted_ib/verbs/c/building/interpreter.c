/*
 * The start and the end of Python in a process that is not Python, and the refusal of calls after fork(2).
 *
 * Beside the library is a folder "python", which build.py fills: libpython, the name of the interpreter, and the code
 * that it runs first.  So the library itself is the same wherever it lies.
 *
 * build.py compiles this into each library, with -DPy_InitializeEx=twisted_ib_initialize: cffi's start then
 * calls the function below instead of Python's own, which would look at the program's environment.  And with
 * -DPyImport_ImportModule=twisted_ib_import, by which cffi's start imports its backend.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The folder beside the library. */
static char beside[PATH_MAX];

static void find_beside(void)
{
    static const char name[] = "python";
    char path[PATH_MAX];
    Dl_info own;

    if (!dladdr(beside, &own) || strlen(own.dli_fname) >= sizeof path)
        return;
    strcpy(path, own.dli_fname);
    /* The library may be a link to one that is elsewhere: its own name counts, as for $ORIGIN. */
    *(strrchr(path, '/') ? strrchr(path, '/') + 1 : path) = 0;
    /* The program may have another current directory when it calls first. */
    if (!realpath(*path ? path : ".", beside) || strlen(beside) + sizeof name >= sizeof beside)
        *beside = 0;
    else
        strcat(strcat(beside, "/"), name);
}

static void check(PyStatus status)
{
    if (PyStatus_Exception(status)) {
        dprintf(2, TWISTED_IB_SONAME ": Python cannot start: %s\n", status.err_msg ? status.err_msg : "it exits");
        _exit(127);
    }
}

#define SHARED __attribute__((visibility("default")))

/*
 * Shared by the libraries, as they share Python and its devices: exported by each, and the loader takes one of
 * each name for all of them.
 *
 * Whether a function has been called, and whether the program is Python itself, which had begun before.
 */
SHARED volatile int twisted_ib_used, twisted_ib_in_python;

/* Whether Python has started before main(), by early.c, and so for these libraries alone. */
SHARED volatile int twisted_ib_begun;

/* That start; only libibverbs has it. */
void twisted_ib_begin(void) __attribute__((weak, visibility("hidden")));

/*
 * The thread that ends Python, in a program that is Python, or 0: no other enters it any more.  Python would end one that
 * waits for its lock, amid the program's own calls, and of C++ that is std::terminate().
 */
SHARED volatile int twisted_ib_over;

/* Whether this is a child, by fork(2), of a process that has called, and Python does not know. */
SHARED volatile int twisted_ib_forked;

/* How many threads are in Python for a call; and the calls but polls, ever, which may bring completions. */
SHARED volatile unsigned twisted_ib_busy, twisted_ib_posts;

/* How many calls of any kind have entered Python, ever. */
SHARED volatile unsigned twisted_ib_calls;

/* If libibverbs is here: says what was seen of the devices, or that something may be to do: see arrivals.c. */
SHARED int (*twisted_ib_seen)(uint64_t *);

/* Takes what was posted in C, if libibverbs is here: each other call comes after it. */
SHARED void (*twisted_ib_settle)(void);

/* How many calls of this thread are in Python.  A signal's handler reads it: so no memory is allocated for it. */
SHARED __thread volatile int twisted_ib_inside __attribute__((tls_model("initial-exec")));

/*
 * The sleep of a call that waits, which is here and not in Python: a signal can end it, and its handler may leave it
 * by siglongjmp(3).  waiting.py says what to sleep on, and in slept how it knows this call after that, if it must, and
 * reads that, and whether a signal has ended the sleep.  A call that is as poll(2) says in events what of each descriptor
 * it waits for, and ends with any signal that has a handler; others are NULL there, and wait for input.
 */
SHARED __thread struct twisted_ib_sleep {
    int *fds, count, milliseconds, interrupted, slept, asleep;
    short *events;
} twisted_ib_asleep __attribute__((tls_model("initial-exec")));

/* Whether this thread has Python's lock, of a program that is Python. */
int twisted_ib_has_python(void)
{
    return twisted_ib_in_python && PyGILState_Check();
}

/* Python has forked, and made its child's state whole. */
void twisted_ib_renew(void)
{
    twisted_ib_busy = twisted_ib_inside = 0;
    twisted_ib_forked = twisted_ib_over = 0;
}

struct twisted_ib_sleep *twisted_ib_own_sleep(void)
{
    return &twisted_ib_asleep;
}

/*
 * Say that the present call has not slept, or by the result of that, that the one goes on which it has interrupted: a
 * signal's handler, in Python too, may call.
 */
int twisted_ib_swap_slept(int slept)
{
    int before = twisted_ib_asleep.slept;

    twisted_ib_asleep.slept = slept;
    return before;
}

/* Block all signals but those that the thread brings upon itself: a blocked one of these would end the process. */
void twisted_ib_block(sigset_t *program)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    static volatile int isMade;
    static sigset_t all;
    sigset_t made;

    /* Once: two threads, or a signal's handler, may write the same. */
    if (!isMade) {
        sigfillset(&made);
        for (unsigned index = 0; index < sizeof own / sizeof *own; index++)
            sigdelset(&made, own[index]);
        all = made;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        isMade = 1;
    }
    pthread_sigmask(SIG_BLOCK, &all, program);
}

/* Of the library in front of the program, view.c, if there is one. */
extern volatile int twisted_ib_handles __attribute__((weak, visibility("default")));
void twisted_ib_handled(int number, void (*set)(int)) __attribute__((weak, visibility("default")));

/* Whether a handler of the program's signals may run now. */
int twisted_ib_may_handle(void)
{
    return !&twisted_ib_handles || twisted_ib_handles;
}

/* Look for handlers that the library in front has not seen. */
void twisted_ib_look_for_handlers(void)
{
    struct sigaction action;

    if (twisted_ib_may_handle())
        return;
    for (int number = 1; number < NSIG; number++)
        if (!sigaction(number, NULL, &action))
            twisted_ib_handled(number, action.sa_handler);
}

/* The end of a sleep that the call does not go on from: its thread was cancelled, or a handler has left. */
static void get_up(void)
{
    PyGILState_STATE state;
    sigset_t program;

    twisted_ib_block(&program);
    twisted_ib_asleep.asleep = 0;
    twisted_ib_inside++;
    state = PyGILState_Ensure();
    /* It leaves no name in the program's module __main__. */
    PyRun_SimpleString("__import__('twisted_ib.verbs.c.waiting', fromlist=['getUp']).getUp()\n");
    PyGILState_Release(state);
    twisted_ib_inside--;
    pthread_sigmask(SIG_SETMASK, &program, NULL);
}

static void cancelled(void *program)
{
    pthread_sigmask(SIG_SETMASK, program, NULL);
    get_up();
}

/*
 * Whether calls go on after a signal, as read(2) does: if each handler that may have run has SA_RESTART.  The kernel
 * does not tell which signal it was; a program with both kinds hears of it, as it must be ready to.
 */
static int restarts(const sigset_t *blocked)
{
    struct sigaction action;

    for (int number = 1; number < NSIG; number++)
        if (!sigismember(blocked, number) && !sigaction(number, NULL, &action) && action.sa_handler != SIG_DFL &&
            action.sa_handler != SIG_IGN && !(action.sa_flags & SA_RESTART))
            return 0;
    return 1;
}

/* Signals of the program, blocked until here, come in the sleep: so none is lost that comes just before. */
void twisted_ib_wait(const sigset_t *program)
{
    struct twisted_ib_sleep *sleep = &twisted_ib_asleep;
    struct pollfd fds[sleep->count];
    struct timespec most = {sleep->milliseconds / 1000, sleep->milliseconds % 1000 * 1000000L};
    /* A handler's calls may sleep here, too, and it may leave them. */
    int slept = sleep->slept;

    for (int index = 0; index < sleep->count; index++)
        fds[index] = (struct pollfd){sleep->fds[index], sleep->events ? sleep->events[index] : POLLIN};
    sleep->asleep = 1;
    pthread_cleanup_push(cancelled, (void *)program);
    if (ppoll(fds, sleep->count, &most, program) < 0 && errno == EINTR && (sleep->events || !restarts(program)))
        sleep->interrupted = 1;
    pthread_cleanup_pop(0);
    sleep->asleep = 0;
    sleep->slept = slept;
}

/* The end of the process: Python's own, which would close what the program has left open, does not come. */
static void finish(void)
{
    PyGILState_STATE state;

    /* Not in a child; nor in a signal's handler that has interrupted a call of this thread. */
    if (twisted_ib_forked || twisted_ib_inside || !Py_IsInitialized() || PyGILState_Check())
        return;
    state = PyGILState_Ensure();
    PyRun_SimpleString("from twisted_ib.verbs.c.attend import end\nend()\n");
    PyGILState_Release(state);
}

/*
 * Python's module of signals takes SIGINT when it is first imported, whatever install_signal_handlers says: Ctrl-C
 * would end no program any more.  So it is imported here, if no file of site-packages has done so, and the signal
 * is given back.
 */
static void import_signals(void)
{
    PyObject *module = PyImport_ImportModule("_signal");

    if (!module)
        PyErr_Clear();
    Py_XDECREF(module);
}

static void initialize(void)
{
    char name[PATH_MAX], executable[PATH_MAX] = "";
    PyPreConfig before;
    PyConfig config;

    snprintf(name, sizeof name, "%s/executable", beside);
    if (readlink(name, executable, sizeof executable - 1) < 0) {
        dprintf(2, TWISTED_IB_SONAME ": there is no %s: start the program with ib-run\n", name);
        _exit(127);
    }

    /* Isolated: PYTHONHOME and others in the environment are for the program and its children. */
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    check(Py_PreInitialize(&before));
    PyConfig_InitIsolatedConfig(&config);
    config.install_signal_handlers = 0;
    /* The interpreter that made the folder, and so its packages. */
    check(PyConfig_SetBytesString(&config, &config.program_name, executable));
    check(PyConfig_SetBytesString(&config, &config.executable, executable));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
    import_signals();
}

void twisted_ib_initialize(int signals)
{
    /* The kernel's structure, opaque: sigaction(3) would set a flag of its own. */
    unsigned long program[16];
    sigset_t interrupt, before;

    (void)signals;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    /* One that comes meanwhile is for the program. */
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    syscall(SYS_rt_sigaction, SIGINT, NULL, program, _NSIG / 8);
    initialize();
    syscall(SYS_rt_sigaction, SIGINT, program, NULL, _NSIG / 8);
    /* Python's own handler, which is gone again, was seen. */
    if (&twisted_ib_handles)
        twisted_ib_handles = 0;
    twisted_ib_look_for_handlers();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!twisted_ib_begun)
        atexit(finish);
}

/*
 * A program that is Python has its own path: what is missing there, perhaps cffi's backend, comes behind it from
 * where the folder was made.  The code leaves no name in the program's module __main__.
 */
PyObject *twisted_ib_import(const char *name)
{
    static const char start[] =
        "with open(folder + '/start.py', encoding='ascii') as file:\n    exec(file.read(), {})\n";
    PyObject *text = NULL, *found = NULL, *folder, *names = PyDict_New(), *done;

    /* Another library's start may come before this one's constructor. */
    if (!*beside)
        find_beside();
    folder = PyUnicode_DecodeFSDefault(beside);

    if (folder && names && !PyDict_SetItemString(names, "folder", folder) &&
        !PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins())) {
        done = PyRun_String(start, Py_file_input, names, names);
        text = done ? PyUnicode_FromString(name) : NULL;
        found = text ? PyImport_Import(text) : NULL;
        Py_XDECREF(done);
    }
    Py_XDECREF(text);
    Py_XDECREF(names);
    Py_XDECREF(folder);
    return found;
}

static void in_child(void)
{
    twisted_ib_forked = twisted_ib_forked || twisted_ib_used;
}

/*
 * Python's modules, cffi's backend the first of them, take its symbols from the process.  In one that keeps this
 * library's to itself, as dlopen(3) does by default, they are none of it until libpython is loaded once more.
 */
static void show_python(void)
{
    Dl_info python;

    if (dladdr((void *)Py_IsInitialized, &python))
        dlopen(python.dli_fname, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
}

/* errno stays as it is: programs rely on 0 at their start (C11 7.5), as tgtd, which looks at it after strtoull(3). */
__attribute__((constructor)) static void watch(void)
{
    int before = errno;

    find_beside();
    show_python();
    pthread_atfork(NULL, NULL, in_child);
    if (twisted_ib_begin)
        twisted_ib_begin();
    errno = before;
}

/*
 * Whether a call is refused.
 *
 * In a fork of a process that has called a function before, of any library: the thread that attends is not in it, and
 * another may have held Python's lock; where Python itself forks, its child calls anew (library.py).  And in a signal's handler that has interrupted a call of its thread: Python
 * is amid something, or waits for a lock that the same thread would wait for again.  A handler in Python runs between
 * two of its instructions, and may call.
 *
 * And in a program that is Python when that ends, of other threads, and when it has ended: functions of C that exit(3)
 * calls then may call.
 */
int twisted_ib_refused(const char *name, int nested)
{
    static int said;

    if (!twisted_ib_forked) {
        if (!twisted_ib_used) {
            twisted_ib_in_python = Py_IsInitialized() && !twisted_ib_begun;
            /* What the program gave to atexit(3) before it comes after it. */
            if (!__atomic_exchange_n(&twisted_ib_used, 1, __ATOMIC_SEQ_CST) && twisted_ib_begun)
                atexit(finish);
        }
        /* A handler has left the sleep, or it runs in it, and that ends: poll(2) does whatever the handler. */
        if (twisted_ib_asleep.asleep)
            get_up();
        if (twisted_ib_over && twisted_ib_over != syscall(SYS_gettid))
            return ENODEV;
        /* While it ends, this thread still has a state. */
        if (twisted_ib_in_python && !Py_IsInitialized() && !PyGILState_GetThisThreadState())
            return ENODEV;
        if (nested || !twisted_ib_inside || twisted_ib_in_python)
            return 0;
        return EDEADLK;
    }
    if (!said) {
        said = 1;
        dprintf(2, TWISTED_IB_SONAME ": %s is refused: process %d was made by fork() after its parent had used "
                "RDMA; fork first, or exec a program\n", name, (int)getpid());
    }
    return EOPNOTSUPP;
}
