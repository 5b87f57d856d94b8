/*
 * When a thread that polls yields the processor: sooner after its peer has answered behind a yield, later after it has not
 * needed one, and as late as at first behind a yield that took long.
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

int main(void)
{
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
