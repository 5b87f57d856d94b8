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

/* Of a region, which is the tuple that the function was made of: an offset, how many octets, whether they are written to. */
static PyObject *twisted_ib_ask(PyObject *region, PyObject *const *arguments, Py_ssize_t count)
{
    unsigned long long address = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(region, 0));
    Py_ssize_t size = PyLong_AsSsize_t(PyTuple_GET_ITEM(region, 1)), most = PyLong_AsSsize_t(PyTuple_GET_ITEM(region, 2));
    Py_ssize_t offset, length;
    int writes;

    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "an offset, a length and whether it is written to");
    offset = PyLong_AsSsize_t(arguments[0]);
    length = PyErr_Occurred() ? 0 : PyLong_AsSsize_t(arguments[1]);
    if (PyErr_Occurred()) {
        /* No region is as large. */
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return NULL;
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    writes = PyObject_IsTrue(arguments[2]);
    if (writes < 0)
        return NULL;
    if (offset < 0 || length < 0 || offset > size || length > size - offset)
        Py_RETURN_FALSE;
    if (length <= most && twisted_ib_is_there(address + offset, length, writes))
        Py_RETURN_TRUE;
    return PyObject_Vectorcall(PyTuple_GET_ITEM(region, 3), arguments, count, NULL);
}

static PyObject *twisted_ib_ask_of(PyObject *self, PyObject *region)
{
    static PyMethodDef ask = {"isThere", (PyCFunction)(void (*)(void))twisted_ib_ask, METH_FASTCALL, NULL};
    unsigned long long address;
    Py_ssize_t size, most;
    PyObject *other;

    (void)self;
    return PyArg_ParseTuple(region, "KnnO", &address, &size, &most, &other) ? PyCFunction_New(&ask, region) : NULL;
}

/*
 * Makes such functions of Python, of an address, its octets, of how many it may be asked, and who is asked about more: a new
 * reference.  They ask with Python's lock held: a function of cffi gives that up, and then a thread that polls has it between
 * each question and the access.
 */
uintptr_t twisted_ib_asker(void)
{
    static PyMethodDef ask = {"presence", twisted_ib_ask_of, METH_VARARGS, NULL};
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *made = PyCFunction_New(&ask, NULL);

    PyGILState_Release(state);
    return (uintptr_t)made;
}
