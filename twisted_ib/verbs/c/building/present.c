/*
 * Whether registered memory of the program is still there, without ctypes.  declarations.py includes this.
 */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/*
 * Whether so many octets from the beginning of a page on are there, and may be read, or written; 0 if not, or if the
 * kernel does not say.  What is read within a page takes the least call that reads memory: rt_sigprocmask(2), which refuses
 * an operation that there is not (EINVAL) after it has read the set of signals, and before that says EFAULT.
 */
int twisted_ib_is_there(uintptr_t start, size_t length, int writes)
{
    if (!writes && length <= 4096)
        return syscall(SYS_rt_sigprocmask, -1, start, NULL, _NSIG / 8) < 0 && errno == EINVAL;
    return !madvise((void *)start, length, writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
}
