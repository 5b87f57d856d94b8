/*
 * The start of Python and of this library before main(), in a program that is linked with it.
 *
 * Some programs give a connection a second from their first call on, in which Python started: 0.2 s of a processor,
 * more than a second of a busy one.  Nothing is opened here and no thread begins: so a program may fork after this, as
 * one does that becomes a daemon, and its child calls as if it had started anew.
 *
 * It does not come in a program that opens the library by dlopen(3), or that has it by another one, and in one that is
 * Python or has it, which starts that as it wants.
 */
#include <dlfcn.h>
#include <link.h>
#include <string.h>

extern volatile int twisted_ib_used, twisted_ib_in_python, twisted_ib_begun, twisted_ib_forked;

/* Whether a program is linked with this library and with librdmacm, and any object but these libraries with libpython. */
struct twisted_ib_links {
    int seen, verbs, cm, python;
};

static int twisted_ib_link(struct dl_phdr_info *object, size_t size, void *found)
{
    const char *name = strrchr(object->dlpi_name, '/') ? strrchr(object->dlpi_name, '/') + 1 : object->dlpi_name;
    struct twisted_ib_links *links = found;
    const ElfW(Dyn) *first = NULL;
    const char *strings = NULL;
    /* The program itself comes first: many are linked with what is linked with this, as libpcap is, and never call it. */
    int is_program = !links->seen++;

    (void)size;
    if (!strncmp(name, "libibverbs.so", 13) || !strncmp(name, "librdmacm.so", 12) || !strncmp(name, "libibumad.so", 12))
        return 0;
    for (int index = 0; index < object->dlpi_phnum; index++)
        if (object->dlpi_phdr[index].p_type == PT_DYNAMIC)
            first = (const ElfW(Dyn) *)(object->dlpi_addr + object->dlpi_phdr[index].p_vaddr);
    for (const ElfW(Dyn) *each = first; each && each->d_tag != DT_NULL; each++)
        if (each->d_tag == DT_STRTAB)
            /* glibc has added where the object is, musl has not. */
            strings = (const char *)(each->d_un.d_ptr + (each->d_un.d_ptr < object->dlpi_addr ? object->dlpi_addr : 0));
    for (const ElfW(Dyn) *each = first; strings && each->d_tag != DT_NULL; each++) {
        if (each->d_tag != DT_NEEDED)
            continue;
        links->verbs |= is_program && !strncmp(strings + each->d_un.d_val, "libibverbs.so", 13);
        links->cm |= is_program && !strncmp(strings + each->d_un.d_val, "librdmacm.so", 12);
        links->python |= !strncmp(strings + each->d_un.d_val, "libpython", 9);
    }
    return 0;
}

/* Whether the program is linked with this library, and Python is there for these libraries alone. */
static int twisted_ib_begins(struct twisted_ib_links *links)
{
    void *program;
    Dl_info python;
    int linked;

    /* An interpreter that is no library of its own is the program. */
    if (Py_IsInitialized() || !dladdr((void *)Py_IsInitialized, &python) || !strstr(python.dli_fname, "libpython"))
        return 0;
    /* What dlopen(3) opens now is not yet among the program's. */
    program = dlopen(NULL, RTLD_LAZY);
    linked = program && dlsym(program, "twisted_ib_begun");
    if (program)
        dlclose(program);
    if (linked)
        dl_iterate_phdr(twisted_ib_link, links);
    return links->verbs && !links->python;
}

/* fork(2) before the first call: Python makes itself whole in the child, as after its own. */
static __thread int twisted_ib_forks;
static __thread PyGILState_STATE twisted_ib_fork_state;

static void twisted_ib_before_fork(void)
{
    twisted_ib_forks = !twisted_ib_used && !twisted_ib_forked;
    if (twisted_ib_forks) {
        twisted_ib_fork_state = PyGILState_Ensure();
        PyOS_BeforeFork();
    }
}

static void twisted_ib_forked_parent(void)
{
    if (twisted_ib_forks) {
        PyOS_AfterFork_Parent();
        PyGILState_Release(twisted_ib_fork_state);
    }
}

static void twisted_ib_forked_child(void)
{
    if (twisted_ib_forks) {
        PyOS_AfterFork_Child();
        PyGILState_Release(twisted_ib_fork_state);
    }
}

/* Called by interpreter.c, when the library is loaded. */
void twisted_ib_begin(void)
{
    struct twisted_ib_links links = {0, 0, 0, 0};
    PyGILState_STATE state;

    if (!twisted_ib_begins(&links))
        return;
    /* Calls that the start makes are none of the program's. */
    twisted_ib_begun = twisted_ib_used = 1;
    if (cffi_start_python())
        return;
    pthread_atfork(twisted_ib_before_fork, twisted_ib_forked_parent, twisted_ib_forked_child);
    if (links.cm) {
        state = PyGILState_Ensure();
        PyRun_SimpleString("__import__('twisted_ib.verbs.c.cm.early', fromlist=['prepare']).prepare()\n");
        PyGILState_Release(state);
    }
    twisted_ib_used = 0;
}
