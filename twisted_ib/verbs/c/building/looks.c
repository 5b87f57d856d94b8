/*
 * Looks without a pause, of a thread that polls: when it yields the processor.  The peer may need that, which would have
 * answered by then.  Where it did so after a yield it is likely to run on the same processor: next time the thread yields
 * sooner.  declarations.py includes this.
 */

/* Looks before the first yield, and how often they are halved at most; as few are no wait. */
#define MOST_LOOKS 512
#define MOST_HALVED 5
#define LEAST_LOOKS (MOST_LOOKS >> MOST_HALVED)
/* A yield that lasts as long went to another busy process, which may be the one that is to answer. */
#define CROWDED 1000000L

static long twisted_ib_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* Looks in vain since something was found, and how often their bound is halved. */
struct twisted_ib_looks {
    unsigned looks, halved;
};

static void twisted_ib_looked(struct twisted_ib_looks *own)
{
    long before;

    if (++own->looks <= MOST_LOOKS >> own->halved)
        return;
    before = twisted_ib_now();
    sched_yield();
    if (twisted_ib_now() - before > CROWDED)
        own->halved = 0;
}

static void twisted_ib_saw(struct twisted_ib_looks *own)
{
    if (own->looks > MOST_LOOKS >> own->halved)
        own->halved += own->halved < MOST_HALVED;
    else if (own->looks > LEAST_LOOKS)
        own->halved -= own->halved > 0;
    own->looks = 0;
}

/*
 * Turns of a thread that posts and then looks at its memory, without a call.  One that was away for long has shared its
 * processor, perhaps with the peer that is to answer, and would look in vain until the kernel takes it away.  So it yields
 * behind its next posts, the first of each burst, until a yield returns at once: then nobody else wants the processor.  Nor
 * more often in a row: of a stream's posts none waits for the peer.
 */
#define AWAY 1000000L
#define MOST_TURNS 16
#define AT_ONCE 2000L

struct twisted_ib_turns {
    unsigned left, due;
};

static void twisted_ib_comes(struct twisted_ib_turns *own, long passed)
{
    if (passed > AWAY)
        own->left = MOST_TURNS;
    own->due = own->left > 0;
}

/* The present time, after the yield if one is due. */
static long twisted_ib_goes(struct twisted_ib_turns *own)
{
    long before = twisted_ib_now(), now;

    if (!own->due)
        return before;
    own->due = 0;
    own->left--;
    sched_yield();
    now = twisted_ib_now();
    if (now - before < AT_ONCE)
        own->left = 0;
    return now;
}
