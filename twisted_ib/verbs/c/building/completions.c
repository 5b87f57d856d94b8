/*
 * Polling in C: the completions of a queue are in a ring of its structure, which the thread that makes progress fills,
 * and a program's threads take them from there without Python's lock.  declarations.py includes this.
 *
 * The ring has the oldest completions of the queue that Python knows, and Python learns later how many are gone: see
 * rings.py.  One thread at a time, with the hub's lock, adds; any number take, and a signal's handler or siglongjmp(3)
 * amid that does no harm, as nothing is locked.
 */
struct twisted_ib_ring {
    /* How many were taken, and added, ever. */
    uint64_t head, tail;
    /* Whether the queue has more than the ring. */
    uint64_t more;
    struct ibv_wc *entries;
    uint64_t mask;
    /* Polls in vain that make progress before there are pauses, and the longest pause, in polls. */
    unsigned eager, seldom;
};

struct twisted_ib_cq {
    struct ibv_cq_ex cq;
    /* The address of this structure, if it has a ring. */
    uint64_t self;
    struct twisted_ib_ring ring;
    /* Of an extended queue: the present completion, between start_poll and end_poll. */
    struct ibv_wc present;
    int polling;
    /* Whether the program has said that one thread polls it; else the thread between start_poll and end_poll, or none. */
    int single;
    uintptr_t owner;
};

/* Of interpreter.c: threads that are in Python for a call, and posts. */
extern volatile unsigned twisted_ib_busy, twisted_ib_posts;
int twisted_ib_has_python(void);

/* Whether a thread has polled in vain since the thread that serves peers has looked: that clears it. */
volatile unsigned twisted_ib_polling;

/* Polls in a row that take completions without making progress, as hub.py has it for Python's. */
#define TAKEN 16

/* Polls of a pause after which the thread yields the processor: the one that is to bring a completion may need it. */
#define YIELDING 64

/*
 * Of a thread: what it has polled, of all queues, as they make progress together.
 *
 * posts: what twisted_ib_posts was; taken: polls since its last progress that found something; vain: its progress in
 * vain since something was found or posted; pause, left: the length of its pause in polls, and what is left of it;
 * stood: polls that left progress to another thread; found: whether the last poll has found something, and calls:
 * what twisted_ib_posts was then; tick: the clock's; owes: whether sends were left to its next poll; burst, bursts, ended:
 * see postings.c; over: whether it has polled since; read, progress: what twisted_ib_quiet saw, and when, before its
 * last progress; looks: how often that was spared; turns: of posts.
 */
static __thread struct {
    unsigned posts, taken, vain, pause, left, stood, found, calls, owes, burst, bursts[2], over;
    struct twisted_ib_looks looks;
    struct twisted_ib_turns turns;
    long tick, ended, progress;
    uint64_t read;
} twisted_ib_polled __attribute__((tls_model("initial-exec")));

static struct twisted_ib_ring *twisted_ib_ring_of(struct ibv_cq *cq)
{
    struct twisted_ib_cq *own = (struct twisted_ib_cq *)cq;

    return own && __atomic_load_n(&own->self, __ATOMIC_ACQUIRE) == (uintptr_t)own ? &own->ring : NULL;
}

static int twisted_ib_take(struct twisted_ib_ring *ring, int count, struct ibv_wc *wc)
{
    uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE), n;

    do {
        n = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) - head;
        if ((int64_t)n <= 0 || count <= 0)
            return 0;
        if (n > (unsigned)count)
            n = count;
        for (uint64_t index = 0; index < n; index++)
            wc[index] = ring->entries[(head + index) & ring->mask];
        /* If another thread took them meanwhile, what was copied may be newer ones, half written: it does not count. */
    } while (!__atomic_compare_exchange_n(&ring->head, &head, head + n, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return n;
}

/* Take back what is still in the ring; the queue has it, too. */
uint64_t twisted_ib_recall(struct twisted_ib_ring *ring)
{
    uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE), tail = ring->tail;

    while (!__atomic_compare_exchange_n(&ring->head, &head, tail, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        ;
    return tail - head;
}

/* For a processor that does not keep stores in their order. */
void twisted_ib_fence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/*
 * Whether a poll in vain returns without Python.  The first ones make progress each; then come pauses, each an eighth of
 * what was polled in vain, up to a bound.  They end with the clock's tick: a thread that polls now and then makes
 * progress each time.  While another thread is in Python, for a bounded number of polls, this one stays out: the other
 * makes progress, or it wants Python's lock, and perhaps the processor.  Not if this thread has that lock, as one of mpi4py
 * in MPI: the other would wait for it, and on a busy machine, where each yield takes milliseconds, no peer had an answer.
 */
static int twisted_ib_pauses(const struct twisted_ib_ring *ring)
{
    struct timespec now;

    if (twisted_ib_polled.posts != twisted_ib_posts) {
        twisted_ib_polled.posts = twisted_ib_posts;
        twisted_ib_polled.vain = twisted_ib_polled.pause = twisted_ib_polled.left = 0;
    }
    if (twisted_ib_polled.left) {
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
        if (now.tv_nsec == twisted_ib_polled.tick) {
            if (!(twisted_ib_polled.left-- % YIELDING))
                sched_yield();
            return 1;
        }
        twisted_ib_polled.tick = now.tv_nsec;
        twisted_ib_polled.left = 0;
    }
    if (twisted_ib_busy && twisted_ib_polled.stood < ring->seldom && !twisted_ib_has_python()) {
        twisted_ib_polled.stood++;
        sched_yield();
        return 1;
    }
    return 0;
}

/* Of arrivals.c. */
static int twisted_ib_quiet(void);

static void twisted_ib_found(int count)
{
    twisted_ib_polled.found = count > 0;
    if (count)
        twisted_ib_saw(&twisted_ib_polled.looks);
    twisted_ib_polled.calls = twisted_ib_posts;
}

/* Poll: whether that is done, and its result. */
static int twisted_ib_poll(struct ibv_cq *cq, int count, struct ibv_wc *wc, int *result)
{
    struct twisted_ib_ring *ring = twisted_ib_ring_of(cq);

    twisted_ib_polled.over = 1;
    if (!ring || count < 0 || twisted_ib_polled.taken >= TAKEN || twisted_ib_polled.owes)
        return 0;
    *result = twisted_ib_take(ring, count, wc);
    twisted_ib_found(*result);
    if (*result) {
        twisted_ib_polled.taken++;
        twisted_ib_polled.vain = twisted_ib_polled.pause = twisted_ib_polled.left = 0;
        return 1;
    }
    if (!twisted_ib_polling)
        twisted_ib_polling = 1;
    return !ring->more && (twisted_ib_pauses(ring) || twisted_ib_quiet());
}

/* Go on after progress was made. */
static int twisted_ib_poll_again(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    struct twisted_ib_ring *ring = twisted_ib_ring_of(cq);
    int n = ring ? twisted_ib_take(ring, count, wc) : 0;

    twisted_ib_found(n);
    twisted_ib_polled.taken = twisted_ib_polled.stood = twisted_ib_polled.owes = 0;
    if (n || !ring)
        twisted_ib_polled.vain = twisted_ib_polled.pause = 0;
    else if (++twisted_ib_polled.vain > ring->eager) {
        twisted_ib_polled.pause += 1 + twisted_ib_polled.pause / 8;
        if (twisted_ib_polled.pause > ring->seldom)
            twisted_ib_polled.pause = ring->seldom;
    }
    twisted_ib_polled.left = twisted_ib_polled.pause;
    return n;
}

/* The present completion of an extended queue; none without start_poll. */
static struct ibv_wc *twisted_ib_present(struct ibv_cq_ex *cq)
{
    struct twisted_ib_cq *own = (struct twisted_ib_cq *)cq;

    return twisted_ib_ring_of((struct ibv_cq *)cq) && own->polling ? &own->present : NULL;
}

/* The result of start_poll and next_poll, after a poll for one. */
static int twisted_ib_go(struct ibv_cq_ex *cq, int found)
{
    struct twisted_ib_cq *own = (struct twisted_ib_cq *)cq;

    if (!found)
        return ENOENT;
    cq->wr_id = own->present.wr_id;
    cq->status = own->present.status;
    own->polling = 1;
    return 0;
}

/*
 * What one thread polls no other does meanwhile, as with the providers of rdma-core, which lock from start_poll to
 * end_poll: for Python's progress nothing is locked, and a thread that has left a batch by siglongjmp(3) begins another.
 */
static void twisted_ib_claim(struct ibv_cq_ex *cq)
{
    struct twisted_ib_cq *own = (struct twisted_ib_cq *)cq;
    uintptr_t self = (uintptr_t)&twisted_ib_polled, owner = 0;

    if (!twisted_ib_ring_of((struct ibv_cq *)cq) || own->single)
        return;
    while (!__atomic_compare_exchange_n(&own->owner, &owner, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED) &&
           owner != self) {
        sched_yield();
        owner = 0;
    }
}

static int twisted_ib_release(struct ibv_cq_ex *cq, int result)
{
    if (result && twisted_ib_ring_of((struct ibv_cq *)cq))
        __atomic_store_n(&((struct twisted_ib_cq *)cq)->owner, 0, __ATOMIC_RELEASE);
    return result;
}

static int twisted_ib_next(struct ibv_cq_ex *cq, int *result)
{
    int found;

    if (!twisted_ib_poll((struct ibv_cq *)cq, 1, &((struct twisted_ib_cq *)cq)->present, &found))
        return 0;
    *result = twisted_ib_go(cq, found);
    return 1;
}

static int twisted_ib_next_again(struct ibv_cq_ex *cq)
{
    return twisted_ib_go(cq, twisted_ib_poll_again((struct ibv_cq *)cq, 1, &((struct twisted_ib_cq *)cq)->present));
}

static int twisted_ib_start(struct ibv_cq_ex *cq, int *result)
{
    int done;

    twisted_ib_claim(cq);
    done = twisted_ib_next(cq, result);
    twisted_ib_release(cq, done ? *result : ENOENT);
    return done;
}

static int twisted_ib_start_again(struct ibv_cq_ex *cq)
{
    twisted_ib_claim(cq);
    return twisted_ib_release(cq, twisted_ib_next_again(cq));
}

static int twisted_ib_end(struct ibv_cq_ex *cq)
{
    if (!twisted_ib_present(cq))
        return 0;
    ((struct twisted_ib_cq *)cq)->polling = 0;
    return twisted_ib_release(cq, 1);
}
