/*
 * Calls in vain: a program that polls an rsocket asks a thousand times before its peer has answered.  A call that has
 * failed with EAGAIN fails so again, without Python and its lock, while no other has entered Python, nothing has come, and
 * the peers have consumed nothing: only these make room, or bring octets, events and ends.  Timers and descriptors are
 * looked at now and then, by a call that makes progress.  declarations.py includes this.
 */

/* Nanoseconds without progress at most, as hub.py has it. */
#define ATTENTION 50000L
/* The same while another thread's call is in Python: it makes progress, and may want the lock. */
#define MOST_STOOD 1000000L

/* Of interpreter.c. */
extern volatile unsigned twisted_ib_busy, twisted_ib_posts, twisted_ib_calls;
extern volatile int twisted_ib_in_python;
extern int (*twisted_ib_seen)(uint64_t *);

/* What a call asks for, for its socket. */
enum twisted_ib_asking { ASKS_NOTHING, ASKS_OCTETS, ASKS_ROOM, ASKS_EVENTS };

/*
 * The last call of this thread that was in vain, if any, and what there was before it: see arrivals.c; calls: of all
 * threads, with its own; progress: when it entered Python; looks: calls in vain since.
 */
static __thread struct {
    enum twisted_ib_asking asking;
    int socket, flags, alone;
    unsigned calls, posts;
    struct twisted_ib_looks looks;
    uint64_t seen[2];
    long progress;
} twisted_ib_vain __attribute__((tls_model("initial-exec")));

/* Whether a call is in vain, as the last one of its thread was. */
static int twisted_ib_is_vain(enum twisted_ib_asking asking, int socket, int flags, const void *buffer, size_t length)
{
    int same = twisted_ib_vain.asking == asking && twisted_ib_vain.socket == socket && twisted_ib_vain.flags == flags;
    uint64_t seen[2] = {0, 0};
    long passed;

    if (!twisted_ib_seen || twisted_ib_in_python || !buffer || !length) {
        twisted_ib_vain.asking = ASKS_NOTHING;
        return 0;
    }
    passed = twisted_ib_now() - twisted_ib_vain.progress;
    if (same && twisted_ib_busy && twisted_ib_vain.posts == twisted_ib_posts && passed < MOST_STOOD) {
        sched_yield();
        return 1;
    }
    if (twisted_ib_seen(seen) && same && seen[0] == twisted_ib_vain.seen[0] && seen[1] == twisted_ib_vain.seen[1] &&
        twisted_ib_vain.calls == twisted_ib_calls && passed < ATTENTION) {
        twisted_ib_looked(&twisted_ib_vain.looks);
        return 1;
    }
    twisted_ib_vain.asking = ASKS_NOTHING;
    if (!same)
        twisted_ib_vain.looks.looks = 0;
    memcpy(twisted_ib_vain.seen, seen, sizeof seen);
    twisted_ib_vain.progress += passed;
    return 0;
}

/*
 * The call enters Python.  If another thread is there already, nothing here tells what that does, so the next call enters,
 * too; one that comes later is seen by its call.
 */
static void twisted_ib_asks(void)
{
    twisted_ib_vain.asking = ASKS_NOTHING;
    twisted_ib_vain.calls = __atomic_load_n(&twisted_ib_calls, __ATOMIC_SEQ_CST);
    twisted_ib_vain.alone = __atomic_load_n(&twisted_ib_busy, __ATOMIC_SEQ_CST) == 1;
}

/* The call has returned, and was in vain: the next one may be so. */
static void twisted_ib_keeps(enum twisted_ib_asking asking, int socket, int flags)
{
    twisted_ib_vain.posts = twisted_ib_posts;
    twisted_ib_vain.socket = socket;
    twisted_ib_vain.flags = flags;
    if (twisted_ib_vain.alone && twisted_ib_vain.seen[1])
        twisted_ib_vain.asking = asking;
}

/* The call has returned: whether it was in vain. */
static int twisted_ib_was_vain(enum twisted_ib_asking asking, int socket, int flags, const void *buffer, size_t length,
                               long result)
{
    if (result >= 0 || errno != EAGAIN) {
        twisted_ib_saw(&twisted_ib_vain.looks);
        return 0;
    }
    twisted_ib_keeps(asking, socket, flags);
    return 1;
}

/* The descriptors of one call of rpoll that may be in vain, at most. */
#define MOST_POLLED 16

/*
 * Those of the last call of this thread that was: what was asked, and those of them that the kernel is asked for, as they
 * are no rsockets: the others' numbers are below 0 there.
 */
static __thread struct {
    struct {
        int fd;
        short events;
    } asked[MOST_POLLED];
    struct pollfd others[MOST_POLLED];
    unsigned long count, left;
} twisted_ib_polls __attribute__((tls_model("initial-exec")));

/* Of the call of rpoll that is in Python: those that are no rsockets, a bit each. */
void twisted_ib_polls_others(unsigned bits)
{
    twisted_ib_polls.left = bits;
}

static int twisted_ib_polls_same(const struct pollfd *fds, unsigned long count)
{
    if (count != twisted_ib_polls.count)
        return 0;
    for (unsigned long index = 0; index < count; index++)
        if (fds[index].fd != twisted_ib_polls.asked[index].fd || fds[index].events != twisted_ib_polls.asked[index].events)
            return 0;
    return 1;
}

/* Whether a call of rpoll that does not wait is in vain: other descriptors than rsockets are looked at each time. */
static int twisted_ib_polls_in_vain(struct pollfd *fds, unsigned long count, int timeout)
{
    static const struct timespec now;
    int differs;

    if (timeout || !fds || !count || count > MOST_POLLED) {
        twisted_ib_vain.asking = ASKS_NOTHING;
        return 0;
    }
    differs = !twisted_ib_polls_same(fds, count) ||
              (twisted_ib_polls.left && syscall(SYS_ppoll, twisted_ib_polls.others, count, &now, NULL, _NSIG / 8));
    if (!twisted_ib_is_vain(ASKS_EVENTS, differs, 0, fds, count))
        return 0;
    for (unsigned long index = 0; index < count; index++)
        fds[index].revents = 0;
    return 1;
}

/* A call of rpoll has returned. */
static void twisted_ib_polled_in_vain(const struct pollfd *fds, unsigned long count, int timeout, int result)
{
    twisted_ib_polls.count = 0;
    if (timeout || result || !count || count > MOST_POLLED) {
        twisted_ib_saw(&twisted_ib_vain.looks);
        return;
    }
    for (unsigned long index = 0; index < count; index++) {
        int isOther = twisted_ib_polls.left >> index & 1;

        twisted_ib_polls.asked[index].fd = fds[index].fd;
        twisted_ib_polls.asked[index].events = fds[index].events;
        twisted_ib_polls.others[index] = (struct pollfd){.fd = isOther ? fds[index].fd : -1, .events = fds[index].events};
    }
    twisted_ib_polls.count = count;
    twisted_ib_keeps(ASKS_EVENTS, 0, 0);
}
