/*
 * When a thread that polls yields the processor: sooner after its peer has answered behind a yield, later after it has not
 * needed one, and as late as at first behind a yield that took long.  And when one that posts does: behind a pause, while
 * others want the processor.
 */
#include <time.h>
#include "../checks.h"

static long clock_now, yields, lasts;

static int yield(void)
{
    yields++;
    clock_now += lasts;
    return 0;
}

static int told(struct timespec *time)
{
    *time = (struct timespec){.tv_nsec = clock_now};
    return 0;
}

#define sched_yield yield
#define clock_gettime(kind, time) told(time)
#include "looks.c"

static struct twisted_ib_looks own;

/* Looks before the first yield, if that is waited for; then something is found. */
static int waits(int looks)
{
    int before = 0;

    yields = 0;
    for (int index = 0; index < looks; index++) {
        twisted_ib_looked(&own);
        before += !yields;
    }
    twisted_ib_saw(&own);
    return before;
}

static struct twisted_ib_turns turns;

/* Yields of so many posts, each that long after the one before. */
static int given(int posts, long pause)
{
    yields = 0;
    for (int index = 0; index < posts; index++) {
        twisted_ib_comes(&turns, pause);
        clock_now += pause;
        twisted_ib_goes(&turns);
    }
    return yields;
}

static void check_turns(void)
{
    lasts = 50000;
    /* A peer that answers soon runs on another processor. */
    IS(given(100, 100000), 0);
    /* Each pause is another's slice: now the peer answers meanwhile. */
    IS(given(1, 3000000), 1);
    IS(given(100, 100000), 15);
    IS(given(5, 3000000), 5);
    /* Nobody else wants it. */
    lasts = 300;
    IS(given(1, 100000), 1);
    IS(given(100, 100000), 0);
    IS(given(3, 3000000), 3);
    IS(given(100, 100000), 0);
    lasts = 0;
}

int main(void)
{
    check_turns();
    IS(waits(1000), 512);
    IS(waits(1000), 256);
    for (int index = 0; index < 5; index++)
        waits(1000);
    IS(waits(1000), 16);
    /* What is there at once says nothing, what comes soon that it needs no yield. */
    IS(waits(1), 1);
    IS(waits(1000), 16);
    own.halved = 2;
    waits(100);
    IS(waits(1000), 256);
    lasts = 2000000;
    waits(600);
    lasts = 0;
    IS(waits(1000), 256);
    return failures;
}
