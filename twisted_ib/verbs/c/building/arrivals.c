/*
 * Waiting for records and packets in C, without Python's lock: for the thread that serves peers, between its turns in
 * Python.  declarations.py includes this; waiting.py says which rings and descriptors there are, and keeps those mapped.
 */
struct twisted_ib_arrivals {
    /* Of each ring: how much its peer has published, and how much was consumed here. */
    const uint64_t **published, **consumed;
    unsigned count;
    /* Nanoseconds that looking without a pause lasts at most. */
    long spin;
    /* How often that pays, a moving average in 256ths; how often it was asked for. */
    unsigned hits, turns;
    /* The devices' descriptors, which tell of whatever else comes: new peers, packets. */
    const int *fds;
    unsigned watched;
    /* Of each ring: how much of ours its peer has consumed; NULL where the devices have more than these rings. */
    const uint64_t **read;
};

/* Looks without a pause come as seldom, while less than half of them find something. */
#define RARE 64
/* Records that lie as long are taken by no other thread: one that polls would have begun. */
#define LYING 3000L
/*
 * The shortest and longest pause between two looks: the kernel adds up to 15 microseconds to each.  So sends that were left
 * lie no longer than twice the longest, whatever the devices are.
 */
#define LEAST_NAP 10000L
#define MOST_NAP 1000000L
/* The share of a wait that each nap lasts at least, and that records lie; above SHORT, and up to MOST_NAP. */
#define PATIENCE 16
#define SHORT (2 * LEAST_NAP)
/* The shortest pause while a thread polls, which takes what comes, and has a processor that a look would take from it. */
#define POLLED_NAP (3 * LEAST_NAP)
/* The shortest slice of a processor that the kernel gives, in nanoseconds. */
#define SLICE 100000
/* The pause while another thread is to read a descriptor. */
#define READING 50000L

/*
 * Whether records wait, and no thread of the program is in Python, where it would take them.  One that polls may be about
 * to, also one whose processor this thread has just been given: where it is likely, behind a long wait, they are left to
 * it for a while, and so is the processor.
 */
static int twisted_ib_waits(const struct twisted_ib_arrivals *arrivals, long patience)
{
    for (unsigned index = 0; index < arrivals->count && !twisted_ib_busy; index++) {
        const uint64_t *consumed = arrivals->consumed[index];
        uint64_t before = __atomic_load_n(consumed, __ATOMIC_ACQUIRE);
        long began;

        if (__atomic_load_n(arrivals->published[index], __ATOMIC_ACQUIRE) == before)
            continue;
        if (patience > SHORT) {
            struct timespec pause = {.tv_nsec = patience};

            nanosleep(&pause, NULL);
            return !twisted_ib_busy && __atomic_load_n(consumed, __ATOMIC_ACQUIRE) == before;
        }
        began = twisted_ib_now();
        while (!twisted_ib_busy && __atomic_load_n(consumed, __ATOMIC_ACQUIRE) == before)
            if (twisted_ib_now() - began > LYING)
                return 1;
        return 0;
    }
    return 0;
}

/* Whether sends were left to a thread's next call.  What was taken before their thread said so is none. */
static int twisted_ib_owes(void)
{
    return __atomic_load_n(&twisted_ib_posting.owed, __ATOMIC_SEQ_CST) &&
           __atomic_load_n(&twisted_ib_posting.fill, __ATOMIC_SEQ_CST);
}

/* Whether what a thread has posted, and left to its next call, lies there so long: none has come. */
static int twisted_ib_lies(long patience)
{
    struct timespec pause = {.tv_nsec = patience};
    unsigned posts = twisted_ib_posts;

    if (!twisted_ib_owes() || twisted_ib_busy)
        return 0;
    nanosleep(&pause, NULL);
    return twisted_ib_owes() && !twisted_ib_busy && posts == twisted_ib_posts;
}

/* Whether a descriptor is readable, and no thread of the program is in Python, where it would read. */
static int twisted_ib_readable(struct pollfd *fds, unsigned count)
{
    long began = twisted_ib_now();

    while (!twisted_ib_busy && poll(fds, count, 0) > 0)
        if (twisted_ib_now() - began > LYING)
            return 1;
    return 0;
}

/* Of sched_setattr(2), for which there is no header in glibc before 2.41. */
struct twisted_ib_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/*
 * By default the kernel lets a nap last 50 microseconds longer: as long as a message takes.  And a thread that looks at
 * memory keeps its processor for a whole slice, of milliseconds, while this one waits for it: since Linux 6.12 one with a
 * shorter slice comes first.
 */
static void twisted_ib_be_precise(void)
{
    struct twisted_ib_attributes attributes = {0};
    static __thread int done;

    if (done)
        return;
    done = 1;
    prctl(PR_SET_TIMERSLACK, 1UL);
    if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) || attributes.policy != SCHED_OTHER)
        return;
    attributes.size = sizeof attributes;
    attributes.runtime = SLICE;
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/* Look without a pause, if that pays: as polling.py does, and for its reasons. */
static int twisted_ib_spin(struct twisted_ib_arrivals *arrivals, long began, long patience)
{
    long before = began, now;
    unsigned weight;
    int found;

    if (++arrivals->turns % RARE && arrivals->hits < 128)
        return 0;
    do {
        sched_yield();
        found = twisted_ib_waits(arrivals, patience);
        now = twisted_ib_now();
        if (now - before > CROWDED)
            arrivals->hits = 0;
        before = now;
    } while (!found && now - began < arrivals->spin);
    /* Found late, another process would have had to wait no longer for a thread that sleeps. */
    weight = arrivals->hits < 128 ? 2 : 8;
    if (found && now - began < arrivals->spin)
        arrivals->hits += (256 - arrivals->hits) / weight;
    else
        arrivals->hits -= arrivals->hits / weight;
    return found;
}

/* The pause before the next look at rings, so many nanoseconds after the first, and whether a thread polls. */
long twisted_ib_nap(long passed, int polled)
{
    long nap = passed / 8, least = polled ? POLLED_NAP : LEAST_NAP;

    return nap < least ? least : nap > MOST_NAP ? MOST_NAP : nap;
}

/* Whether a thread has polled in vain while this one waited. */
static int twisted_ib_was_polled;

/*
 * Wait until something has come that no thread takes, but only so many nanoseconds: at first without a pause, if that
 * pays, then with pauses, each an eighth of the time so far.  A long wait is one behind a thread that polls: it has few
 * pauses, as each takes that thread's processor.  But between two looks none may have polled: what comes then is for one
 * that looks at its memory, or does something else.
 */
static int twisted_ib_look_out(struct twisted_ib_arrivals *arrivals, long nanoseconds)
{
    long began = twisted_ib_now(), passed;
    long patience = nanoseconds / PATIENCE < MOST_NAP ? nanoseconds / PATIENCE : MOST_NAP;
    struct pollfd fds[arrivals->watched ? arrivals->watched : 1];

    for (unsigned index = 0; index < arrivals->watched; index++)
        fds[index] = (struct pollfd){.fd = arrivals->fds[index], .events = POLLIN};
    if (arrivals->count && patience <= SHORT && twisted_ib_spin(arrivals, began, patience))
        return 1;
    twisted_ib_be_precise();
    while ((passed = twisted_ib_now() - began) < nanoseconds) {
        int polled = twisted_ib_polling;
        long nap = arrivals->count ? twisted_ib_nap(passed, polled) : MOST_NAP;
        long lying = polled || patience < SHORT ? patience : SHORT;
        struct timespec pause;

        twisted_ib_polling = 0;
        twisted_ib_was_polled |= polled;
        nap = nap < lying && lying > SHORT ? lying : nap;
        nap = nap < nanoseconds - passed ? nap : nanoseconds - passed;
        pause = (struct timespec){nap / 1000000000L, nap % 1000000000L};
        if (ppoll(fds, arrivals->watched, &pause, NULL) > 0) {
            if (twisted_ib_readable(fds, arrivals->watched))
                return 1;
            /* Another thread reads, if it has not yet. */
            pause = (struct timespec){.tv_nsec = READING};
            nanosleep(&pause, NULL);
        }
        if (twisted_ib_waits(arrivals, lying) || twisted_ib_lies(lying))
            return 1;
    }
    return 0;
}

/* What that thread watches, while it does; and threads that look there, too. */
static const struct twisted_ib_arrivals *twisted_ib_watched;
static unsigned twisted_ib_lookers;
/* How often it has begun to. */
static unsigned twisted_ib_watches;

/*
 * Yields of the processor for those that still look; and the bits of the result: what was watched is to stay for ever, and a
 * thread polls.
 */
#define LOOKING 1000
#define LOOKED 2
#define POLLED 4

/* Whether this thread makes progress since its wait has found something. */
static __thread int twisted_ib_serving;

/*
 * From now on posts are left to this thread, and polls in vain give way to it, as to one that is in a call: what a peer has
 * written to memory is answered at once, and who answers is not to wait for Python's lock.
 */
static void twisted_ib_serve(void)
{
    twisted_ib_serving = 1;
    __atomic_add_fetch(&twisted_ib_busy, 1, __ATOMIC_RELAXED);
    twisted_ib_attend();
}

/* End that: whether there are records that nobody else takes. */
int twisted_ib_serves_no_more(void)
{
    if (!twisted_ib_serving)
        return 0;
    twisted_ib_serving = 0;
    __atomic_sub_fetch(&twisted_ib_busy, 1, __ATOMIC_RELAXED);
    return twisted_ib_attends_no_more();
}

/*
 * The same, for the thread that also takes sends that were left: also where a post meets the end of the wait.  Threads that
 * poll see meanwhile what it watches.  If it finds something, this thread serves until it is called again, or serves no
 * more.
 */
int twisted_ib_await(struct twisted_ib_arrivals *arrivals, long nanoseconds)
{
    int found, shown;

    if (twisted_ib_serves_no_more()) {
        twisted_ib_serve();
        return 1;
    }
    /* Not while one still looks at what was watched before: a signal's handler may have left it by siglongjmp(3). */
    shown = !__atomic_load_n(&twisted_ib_lookers, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&twisted_ib_watches, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&twisted_ib_watched, shown ? arrivals : NULL, __ATOMIC_SEQ_CST);
    __atomic_store_n(&twisted_ib_posting.watching, 1, __ATOMIC_SEQ_CST);
    twisted_ib_was_polled = 0;
    found = twisted_ib_look_out(arrivals, nanoseconds);
    __atomic_store_n(&twisted_ib_posting.watching, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&twisted_ib_watched, NULL, __ATOMIC_SEQ_CST);
    for (int yields = 0; shown && yields < LOOKING && __atomic_load_n(&twisted_ib_lookers, __ATOMIC_SEQ_CST); yields++)
        sched_yield();
    shown = shown && __atomic_load_n(&twisted_ib_lookers, __ATOMIC_SEQ_CST);
    found |= twisted_ib_owes();
    if (found)
        twisted_ib_serve();
    return found | (shown ? LOOKED : 0) | (twisted_ib_was_polled ? POLLED : 0);
}

/* In a child of fork(2): records, threads that were here, rings and the process's number are the parent's. */
void twisted_ib_forget(void)
{
    twisted_ib_own = 0;
    twisted_ib_posting.fill = twisted_ib_posting.lock = twisted_ib_posting.attending = 0;
    twisted_ib_posting.watching = twisted_ib_posting.owed = 0;
    twisted_ib_watched = NULL;
    twisted_ib_lookers = 0;
}

/* How much the peers have consumed of all rings that are watched; 0 if something lies in one of them, or none is. */
uint64_t twisted_ib_read(void)
{
    const struct twisted_ib_arrivals *arrivals;
    uint64_t sum = 0;

    if (!__atomic_load_n(&twisted_ib_watched, __ATOMIC_RELAXED))
        return 0;
    __atomic_add_fetch(&twisted_ib_lookers, 1, __ATOMIC_SEQ_CST);
    arrivals = __atomic_load_n(&twisted_ib_watched, __ATOMIC_SEQ_CST);
    for (unsigned index = 0; arrivals && arrivals->read && index < arrivals->count; index++) {
        if (*arrivals->published[index] != *arrivals->consumed[index]) {
            sum = 0;
            break;
        }
        sum += 1 + *arrivals->read[index];
    }
    __atomic_sub_fetch(&twisted_ib_lookers, 1, __ATOMIC_SEQ_CST);
    return sum;
}

/* Nanoseconds without progress at most, as hub.py has it: descriptors and timers are looked at then. */
#define ATTENTION 50000L

/*
 * Whether a poll has nothing to do: the last progress of its thread has found nothing, no call was made since, and
 * neither has anything come nor have the peers consumed more.
 */
static int twisted_ib_quiet(void)
{
    uint64_t read = twisted_ib_read();
    long now;

    if (!read) {
        twisted_ib_polled.read = 0;
        return 0;
    }
    now = twisted_ib_now();
    if (read == twisted_ib_polled.read && twisted_ib_polled.vain && !twisted_ib_posting.fill &&
        now - twisted_ib_polled.progress < ATTENTION) {
        twisted_ib_looked(&twisted_ib_polled.looks);
        return 1;
    }
    twisted_ib_polled.read = read;
    twisted_ib_polled.progress = now;
    return 0;
}

/*
 * The same for vain.c: what was seen, which changes when something comes, when the peers consume more, and when the thread
 * that serves peers may have done something.  0 if there is something to do, or nobody can say.
 */
static int twisted_ib_see(uint64_t *seen)
{
    if (!twisted_ib_polling)
        twisted_ib_polling = 1;
    seen[0] = __atomic_load_n(&twisted_ib_watches, __ATOMIC_SEQ_CST);
    seen[1] = twisted_ib_read();
    return seen[1] && !__atomic_load_n(&twisted_ib_posting.fill, __ATOMIC_SEQ_CST);
}

extern int (*twisted_ib_seen)(uint64_t *);

__attribute__((constructor)) static void twisted_ib_let_see(void)
{
    twisted_ib_seen = twisted_ib_see;
}
