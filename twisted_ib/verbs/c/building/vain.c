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
enum twisted_ib_asking { ASKS_NOTHING, ASKS_OCTETS, ASKS_ROOM };

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

/* The call has returned: whether it was in vain. */
static int twisted_ib_was_vain(enum twisted_ib_asking asking, int socket, int flags, const void *buffer, size_t length,
                               long result)
{
    if (result >= 0 || errno != EAGAIN) {
        twisted_ib_saw(&twisted_ib_vain.looks);
        return 0;
    }
    twisted_ib_vain.posts = twisted_ib_posts;
    twisted_ib_vain.socket = socket;
    twisted_ib_vain.flags = flags;
    if (twisted_ib_vain.alone && twisted_ib_vain.seen[1])
        twisted_ib_vain.asking = asking;
    return 1;
}
