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
