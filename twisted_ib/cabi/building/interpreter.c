/*
 * The start and the end of Python in a process that is not Python, and the refusal of calls after fork(2).
 *
 * build.py compiles this into each library, with -DPy_InitializeEx=twisted_ib_initialize: cffi's start then
 * calls the function below instead of Python's own, which would look at the program's environment.  And with
 * -DPyImport_ImportModule=twisted_ib_import, by which cffi's start imports its backend.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(PyStatus status)
{
    if (PyStatus_Exception(status)) {
        dprintf(2, TWISTED_IB_SONAME ": Python cannot start: %s\n", status.err_msg ? status.err_msg : "it exits");
        _exit(127);
    }
}

static volatile int forked;

/* The end of the process: Python's own, which would close what the program has left open, does not come. */
static void finish(void)
{
    PyGILState_STATE state;

    /* Not in a child; nor in a signal's handler that has interrupted Python in this thread. */
    if (forked || !Py_IsInitialized() || PyGILState_Check())
        return;
    state = PyGILState_Ensure();
    PyRun_SimpleString("from twisted_ib.cabi.attend import end\nend()\n");
    PyGILState_Release(state);
}

void twisted_ib_initialize(int signals)
{
    PyPreConfig before;
    PyConfig config;

    (void)signals;
    /* Isolated: PYTHONHOME and others in the environment are for the program and its children. */
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    check(Py_PreInitialize(&before));
    PyConfig_InitIsolatedConfig(&config);
    config.install_signal_handlers = 0;
    /* The interpreter that built this library, and so its packages. */
    check(PyConfig_SetBytesString(&config, &config.program_name, TWISTED_IB_EXECUTABLE));
    check(PyConfig_SetBytesString(&config, &config.executable, TWISTED_IB_EXECUTABLE));
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
    atexit(finish);
}

/*
 * A program that is Python has its own path: what is missing there, perhaps cffi's backend, comes behind it from
 * where the library was built.
 */
PyObject *twisted_ib_import(const char *name)
{
    PyObject *text, *found;

    if (PyRun_SimpleString(TWISTED_IB_PATH))
        return NULL;
    text = PyUnicode_FromString(name);
    found = text ? PyImport_Import(text) : NULL;
    Py_XDECREF(text);
    return found;
}

/*
 * Whether a function of any of the libraries has been called: exported by each, and the loader takes one for all
 * of them, as they share Python and its devices.
 */
__attribute__((visibility("default"))) volatile int twisted_ib_used;

static void in_child(void)
{
    forked = forked || twisted_ib_used;
}

__attribute__((constructor)) static void watch(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/*
 * Whether this process is a fork of one that has called a function before, of any library: the thread that attends is not in
 * it, and another may have held Python's lock.
 */
int twisted_ib_refused(const char *name)
{
    static int said;

    if (!forked) {
        twisted_ib_used = 1;
        return 0;
    }
    if (!said) {
        said = 1;
        dprintf(2, TWISTED_IB_SONAME ": %s is refused: process %d was made by fork() after its parent had used "
                "RDMA; fork first, or exec a program\n", name, (int)getpid());
    }
    errno = EOPNOTSUPP;
    return 1;
}
