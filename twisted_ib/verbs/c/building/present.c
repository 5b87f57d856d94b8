/*
 * Whether registered memory of the program is still there, without ctypes.  declarations.py includes this.
 */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/*
 * Whether so many octets are there, and may be read, or written; 0 if not, or if the kernel does not say.  Within a page the
 * least call that reads memory tells, or that writes to it, as these take less than madvise(2).  The one is
 * rt_sigprocmask(2), which refuses an operation that there is not (EINVAL) after it has read the set of signals, and before
 * that says EFAULT; the other is futex(2), which sets no bits of a word here, whoever else changes it, and wakes nobody.
 */
static int twisted_ib_is_there(uintptr_t start, size_t length, int writes)
{
    static uintptr_t size;
    static uint32_t own;
    uintptr_t page;

    if (!size)
        size = sysconf(_SC_PAGESIZE);
    page = start & -size;
    length += start - page;
    if (length <= size && !writes)
        return syscall(SYS_rt_sigprocmask, -1, page, NULL, _NSIG / 8) < 0 && errno == EINVAL;
    if (length <= size && syscall(SYS_futex, &own, FUTEX_WAKE_OP_PRIVATE, 0, 0, start & -4,
                                  FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)) >= 0)
        return 1;
    return !madvise((void *)page, length, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}

static PyObject *twisted_ib_ask(PyObject *self, PyObject *arguments)
{
    unsigned long long start;
    Py_ssize_t length;
    int writes;

    (void)self;
    if (!PyArg_ParseTuple(arguments, "Kni", &start, &length, &writes))
        return NULL;
    return PyBool_FromLong(twisted_ib_is_there(start, length, writes));
}

/*
 * The same as a function of Python, a new reference to it, which asks with Python's lock held: a function of cffi gives that
 * up, and then a thread that polls has it between each question and the access.
 */
uintptr_t twisted_ib_asker(void)
{
    static PyMethodDef ask = {"isThere", twisted_ib_ask, METH_VARARGS, NULL};
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *made = PyCFunction_New(&ask, NULL);

    PyGILState_Release(state);
    return (uintptr_t)made;
}
