/*
 * What rdma-core's librspreload.so leaves out, up to rdma-core 64 at least: epoll(7), accept4(2), ioctl(2) and others.
 * Where it leads a program's sockets to rsockets, these calls of the program and its libraries are led here.
 * declarations.py includes this.
 *
 * librspreload gives the program descriptors of its own, and only it knows which rsocket one of these is: it says so in
 * its calls of rpoll.  This library's calls of poll, accept and the others are librspreload's.
 */
int repoll_create(int flags);
int repoll_ctl(int set, int operation, int socket, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int most, int timeout);

/* Of interpreter.c: the calls of this thread that are in Python. */
extern __thread volatile int twisted_ib_inside __attribute__((tls_model("initial-exec")));

/* The kernel's own, whatever leads those of the C library. */
int twisted_ib_epoll_create(int flags)
{
    return syscall(SYS_epoll_create1, flags);
}

int twisted_ib_epoll_ctl(int set, int operation, int fd, struct epoll_event *event)
{
    return syscall(SYS_epoll_ctl, set, operation, fd, event);
}

int twisted_ib_epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
    return syscall(SYS_epoll_pwait, set, events, most, timeout, NULL, _NSIG / 8);
}

static __thread struct {
    int asks, number;
} twisted_ib_asked __attribute__((tls_model("initial-exec")));

/* A question of twisted_ib_socket_of, which no program asks: nothing is to be polled. */
static int twisted_ib_tells(const struct pollfd *fds, unsigned long count, int timeout)
{
    if (!twisted_ib_asked.asks || count != 1 || fds->events || timeout)
        return 0;
    twisted_ib_asked.number = fds->fd;
    return 1;
}

#if defined __GLIBC__ && (defined __x86_64__ || defined __aarch64__)

#ifdef __x86_64__
#define IS_LED(type) ((type) == R_X86_64_JUMP_SLOT || (type) == R_X86_64_GLOB_DAT)
#else
#define IS_LED(type) ((type) == R_AARCH64_JUMP_SLOT || (type) == R_AARCH64_GLOB_DAT)
#endif

/* Not fcntl64, which the headers make of it. */
int twisted_ib_fcntl(int fd, int command, long argument) __asm__("fcntl");

/* The rsocket that a descriptor of the program's leads to; below 0 for others. */
static int twisted_ib_socket_of(int fd)
{
    struct pollfd one = {.fd = fd};
    int before = errno;

    twisted_ib_asked.number = -1;
    twisted_ib_asked.asks = 1;
    poll(&one, 1, 0);
    twisted_ib_asked.asks = 0;
    errno = before;
    return twisted_ib_asked.number;
}

static int led_epoll_create1(int flags)
{
    /* Python's own calls, of a program that is Python; and where no rsocket can be in it, the kernel's set does. */
    int made = twisted_ib_inside || flags & ~EPOLL_CLOEXEC ? -1 : repoll_create(flags);

    return made < 0 ? twisted_ib_epoll_create(flags) : made;
}

static int led_epoll_create(int size)
{
    if (size > 0)
        return led_epoll_create1(0);
    errno = EINVAL;
    return -1;
}

static int led_epoll_ctl(int set, int operation, int fd, struct epoll_event *event)
{
    int number = twisted_ib_inside ? -1 : twisted_ib_socket_of(fd);

    return number < 0 ? twisted_ib_epoll_ctl(set, operation, fd, event) : repoll_ctl(set, operation, number, event);
}

/* Wait for a set of rsockets; whether it is none is told. */
static int twisted_ib_repolled(int set, struct epoll_event *events, int most, int timeout, int *isOther)
{
    int found = twisted_ib_inside ? -1 : repoll_wait(set, events, most, timeout);

    *isOther = twisted_ib_inside || (found < 0 && (errno == EBADF || errno == EOPNOTSUPP || errno == ENODEV));
    return found;
}

static int led_epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
    int isOther, found = twisted_ib_repolled(set, events, most, timeout, &isOther);

    return isOther ? twisted_ib_epoll_wait(set, events, most, timeout) : found;
}

/* Whether a mask lets a signal in that is pending, and has a handler: it ends the call that has the mask. */
static int twisted_ib_interrupts(const sigset_t *mask)
{
    struct sigaction action;
    sigset_t pending;

    if (!mask || sigpending(&pending))
        return 0;
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&pending, number) == 1 && !sigismember(mask, number) && !sigaction(number, NULL, &action) &&
            action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)
            return 1;
    return 0;
}

static int led_epoll_pwait(int set, struct epoll_event *events, int most, int timeout, const sigset_t *mask)
{
    sigset_t before;
    int found, error, interrupts = twisted_ib_interrupts(mask);

    if (!mask)
        return led_epoll_wait(set, events, most, timeout);
    pthread_sigmask(SIG_SETMASK, mask, &before);
    if (interrupts) {
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        errno = EINTR;
        return -1;
    }
    found = led_epoll_wait(set, events, most, timeout);
    error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return found;
}

/* A time of these as milliseconds, of which a part counts as one. */
static int twisted_ib_milliseconds(const struct timespec *most)
{
    if (!most)
        return -1;
    return most->tv_sec < INT_MAX / 1000 ? most->tv_sec * 1000 + (most->tv_nsec + 999999) / 1000000 : INT_MAX;
}

/* Linux 5.11; the number is that of all architectures. */
#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

static int led_epoll_pwait2(int set, struct epoll_event *events, int most, const struct timespec *time,
                            const sigset_t *mask)
{
    int isOther, found = twisted_ib_repolled(set, events, most, 0, &isOther);

    if (isOther)
        return syscall(SYS_epoll_pwait2, set, events, most, time, mask, _NSIG / 8);
    return found ? found : led_epoll_pwait(set, events, most, twisted_ib_milliseconds(time), mask);
}

static int led_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *most, const sigset_t *mask)
{
    struct timespec left;
    sigset_t before;
    nfds_t index = 0;
    int found, error;

    while (index < count && twisted_ib_socket_of(fds[index].fd) < 0)
        index++;
    if (index == count) {
        /* The kernel's alone.  It writes how much time is left. */
        if (most)
            left = *most;
        return syscall(SYS_ppoll, fds, count, most ? &left : NULL, mask, _NSIG / 8);
    }
    found = twisted_ib_interrupts(mask);
    if (mask)
        pthread_sigmask(SIG_SETMASK, mask, &before);
    errno = EINTR;
    found = found ? -1 : poll(fds, count, twisted_ib_milliseconds(most));
    error = errno;
    if (mask)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return found;
}

static int twisted_ib_is_in(int fd, const fd_set *set)
{
    return set && FD_ISSET(fd, set);
}

static int led_pselect(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, const struct timespec *most,
                       const sigset_t *mask)
{
    struct {
        const sigset_t *mask;
        size_t size;
    } given = {mask, _NSIG / 8};
    struct timespec left;
    struct timeval time;
    sigset_t before;
    int found, error, fd = 0;

    if (most)
        left = *most;
    while (fd < count && fd < FD_SETSIZE &&
           !((twisted_ib_is_in(fd, readable) || twisted_ib_is_in(fd, writable) || twisted_ib_is_in(fd, exceptional)) &&
             twisted_ib_socket_of(fd) >= 0))
        fd++;
    if (fd >= count || fd >= FD_SETSIZE)
        return syscall(SYS_pselect6, count, readable, writable, exceptional, most ? &left : NULL, &given);
    if (most)
        time = (struct timeval){most->tv_sec, (most->tv_nsec + 999) / 1000};
    found = twisted_ib_interrupts(mask);
    if (mask)
        pthread_sigmask(SIG_SETMASK, mask, &before);
    errno = EINTR;
    found = found ? -1 : select(count, readable, writable, exceptional, most ? &time : NULL);
    error = errno;
    if (mask)
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return found;
}

/* As the C library's own do where memory is too small. */
extern void __chk_fail(void) __attribute__((noreturn));

static int led_poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t room)
{
    if (room / sizeof *fds < count)
        __chk_fail();
    return poll(fds, count, timeout);
}

static int led_ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *most, const sigset_t *mask, size_t room)
{
    if (room / sizeof *fds < count)
        __chk_fail();
    return led_ppoll(fds, count, most, mask);
}

static ssize_t led_read_chk(int fd, void *to, size_t length, size_t room)
{
    if (length > room)
        __chk_fail();
    return read(fd, to, length);
}

static ssize_t led_recv_chk(int fd, void *to, size_t length, size_t room, int flags)
{
    if (length > room)
        __chk_fail();
    return recv(fd, to, length, flags);
}

static ssize_t led_recvfrom_chk(int fd, void *to, size_t length, size_t room, int flags, struct sockaddr *addr,
                                socklen_t *size)
{
    if (length > room)
        __chk_fail();
    return recvfrom(fd, to, length, flags, addr, size);
}

static int led_fcntl64(int fd, int command, long argument)
{
    return twisted_ib_fcntl(fd, command, argument);
}

static int led_accept4(int fd, struct sockaddr *addr, socklen_t *length, int flags)
{
    int made;

    if (twisted_ib_socket_of(fd) < 0)
        return accept4(fd, addr, length, flags);
    made = accept(fd, addr, length);
    if (made >= 0 && flags & SOCK_NONBLOCK)
        twisted_ib_fcntl(made, F_SETFL, O_NONBLOCK);
    if (made >= 0 && flags & SOCK_CLOEXEC)
        syscall(SYS_fcntl, made, F_SETFD, FD_CLOEXEC);
    return made;
}

static int led_ioctl(int fd, unsigned long request, void *argument)
{
    socklen_t length = sizeof(int);
    int number = request == FIONBIO || request == FIONREAD ? twisted_ib_socket_of(fd) : -1;

    if (number < 0)
        return syscall(SYS_ioctl, fd, request, argument);
    if (request == FIONREAD)
        return rgetsockopt(number, SOL_RDMA, FIONREAD, argument, &length);
    return rfcntl(number, F_SETFL, *(int *)argument ? (long)O_NONBLOCK : 0L);
}

/* librspreload maps the file with neither MAP_SHARED nor MAP_PRIVATE, which mmap(2) refuses. */
static ssize_t led_sendfile(int to, int from, off_t *offset, size_t count)
{
    /* Not of the stack: threads have some of 16 KiB. */
    size_t most = 1 << 16;
    ssize_t n, sent;
    char *octets;

    if (twisted_ib_socket_of(to) < 0)
        return syscall(SYS_sendfile, to, from, offset, count);
    if (count > most)
        count = most;
    octets = malloc(most);
    if (!octets)
        return -1;
    n = offset ? pread(from, octets, count, *offset) : read(from, octets, count);
    sent = n > 0 ? send(to, octets, n, 0) : n;
    if (n > 0 && offset)
        *offset += sent > 0 ? sent : 0;
    else if (n > 0)
        lseek(from, (sent > 0 ? sent : 0) - n, SEEK_CUR);
    free(octets);
    return sent;
}

struct twisted_ib_led {
    const char *name;
    void *function;
    /* Whether it is led if librspreload leads it, too. */
    int always;
};

static const struct twisted_ib_led twisted_ib_program[] = {
    {"epoll_create", led_epoll_create}, {"epoll_create1", led_epoll_create1}, {"epoll_ctl", led_epoll_ctl},
    {"epoll_wait", led_epoll_wait}, {"epoll_pwait", led_epoll_pwait}, {"epoll_pwait2", led_epoll_pwait2},
    {"ppoll", led_ppoll}, {"pselect", led_pselect}, {"__poll_chk", led_poll_chk}, {"__ppoll_chk", led_ppoll_chk},
    {"__read_chk", led_read_chk}, {"__recv_chk", led_recv_chk}, {"__recvfrom_chk", led_recvfrom_chk},
    {"fcntl64", led_fcntl64}, {"accept4", led_accept4}, {"ioctl", led_ioctl}, {"sendfile", led_sendfile, 1},
    {"sendfile64", led_sendfile, 1}, {NULL},
};

/* Of Python here, where librspreload leads epoll(7): the devices' sets are the kernel's. */
static const struct twisted_ib_led twisted_ib_python[] = {
    {"epoll_create", twisted_ib_epoll_create, 1}, {"epoll_create1", twisted_ib_epoll_create, 1},
    {"epoll_ctl", twisted_ib_epoll_ctl, 1}, {"epoll_wait", twisted_ib_epoll_wait, 1}, {NULL},
};

/* Whether librspreload has the function that programs find by this name. */
static int twisted_ib_is_led(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    Dl_info where;

    return found && dladdr(found, &where) && strstr(where.dli_fname, "/librspreload.so");
}

/* Have an object call a function, which it has found already: where the loader put its address. */
static void twisted_ib_put(const struct dl_phdr_info *object, void **at, void *function)
{
    long size = sysconf(_SC_PAGESIZE);
    uintptr_t page = (uintptr_t)at & -size;
    int sealed = 0;

    for (int index = 0; index < object->dlpi_phnum; index++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[index];
        uintptr_t start = object->dlpi_addr + part->p_vaddr;

        /* Read only, once that is done: the pages of this but the last, if other data share it (dl-reloc.c). */
        if (part->p_type == PT_GNU_RELRO && page >= (start & -size) && page < ((start + part->p_memsz) & -size))
            sealed = 1;
    }
    if (sealed && mprotect((void *)page, size, PROT_READ | PROT_WRITE))
        return;
    *at = function;
    if (sealed)
        mprotect((void *)page, size, PROT_READ);
}

static void twisted_ib_lead_object(const struct dl_phdr_info *object, const struct twisted_ib_led *led)
{
    const ElfW(Dyn) *entry = NULL;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) *tables[2] = {NULL};
    size_t sizes[2] = {0};
    const char *names = NULL;
    ElfW(Addr) base = 0;

    for (int index = 0; index < object->dlpi_phnum; index++)
        if (object->dlpi_phdr[index].p_type == PT_DYNAMIC) {
            entry = (void *)(object->dlpi_addr + object->dlpi_phdr[index].p_vaddr);
            /* The loader has written addresses into it, if it could (-z rodynamic). */
            base = object->dlpi_phdr[index].p_flags & PF_W ? 0 : object->dlpi_addr;
        }
    for (; entry && entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_SYMTAB: symbols = (void *)(base + entry->d_un.d_ptr); break;
        case DT_STRTAB: names = (void *)(base + entry->d_un.d_ptr); break;
        case DT_JMPREL: tables[0] = (void *)(base + entry->d_un.d_ptr); break;
        case DT_PLTRELSZ: sizes[0] = entry->d_un.d_val; break;
        case DT_RELA: tables[1] = (void *)(base + entry->d_un.d_ptr); break;
        case DT_RELASZ: sizes[1] = entry->d_un.d_val; break;
        }
    for (int table = 0; table < 2 && symbols && names; table++)
        for (size_t index = 0; tables[table] && index < sizes[table] / sizeof(ElfW(Rela)); index++) {
            const ElfW(Rela) *each = &tables[table][index];
            const char *name = names + symbols[ELF64_R_SYM(each->r_info)].st_name;

            if (!IS_LED(ELF64_R_TYPE(each->r_info)))
                continue;
            for (const struct twisted_ib_led *one = led; one->name; one++)
                if (!strcmp(name, one->name) && (one->always || !twisted_ib_is_led(name)))
                    twisted_ib_put(object, (void **)(object->dlpi_addr + each->r_offset), one->function);
        }
}

static int twisted_ib_is(const char *path, const char *const *names)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;

    for (; *names; names++)
        if (!strncmp(name, *names, strlen(*names)))
            return 1;
    return 0;
}

static int twisted_ib_lead_program(struct dl_phdr_info *object, size_t size, void *unused)
{
    static const char *const others[] = {"libc.so", "ld-linux", "linux-vdso", "librspreload.so", "libibverbs.so",
                                         "librdmacm.so", "libibumad.so", "libpython", NULL};

    if (!twisted_ib_is(object->dlpi_name, others))
        twisted_ib_lead_object(object, twisted_ib_program);
    return 0;
}

static int twisted_ib_lead_python(struct dl_phdr_info *object, size_t size, void *unused)
{
    static const char *const python[] = {"libpython", "select.", NULL};

    if (twisted_ib_is(object->dlpi_name, python))
        twisted_ib_lead_object(object, twisted_ib_python);
    return 0;
}

void twisted_ib_own_calls(void)
{
    if (twisted_ib_is_led("epoll_wait"))
        dl_iterate_phdr(twisted_ib_lead_python, NULL);
}

/* errno stays as it is, as in interpreter.c. */
__attribute__((constructor)) static void twisted_ib_lead(void)
{
    int before = errno;

    if (twisted_ib_is_led("socket")) {
        /* librspreload finds the C library's functions in some of its calls: others before these would be of none. */
        poll(NULL, 0, 0);
        dl_iterate_phdr(twisted_ib_lead_program, NULL);
    }
    errno = before;
}

#else

void twisted_ib_own_calls(void)
{
}

#endif
