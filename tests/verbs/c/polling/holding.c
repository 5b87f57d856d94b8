/*
 * Polls in vain stand back for a thread that is in Python, or wants its lock; not if the caller has that lock, as in a
 * program that is Python: then the other would wait for the caller, and the caller for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>
#include "../checks.h"
#include "looks.c"
#include "completions.c"

volatile unsigned twisted_ib_busy, twisted_ib_posts;
static int holds;

int twisted_ib_has_python(void)
{
    return holds;
}

static int twisted_ib_quiet(void)
{
    return 0;
}

int main(void)
{
    struct twisted_ib_cq own = {.ring = {.eager = 64, .seldom = 4096}};
    struct ibv_cq *cq = (struct ibv_cq *)&own;
    struct ibv_wc wc;
    int found;

    own.self = (uintptr_t)&own;
    twisted_ib_busy = 1;
    IS(twisted_ib_poll(cq, 1, &wc, &found), 1);
    holds = 1;
    IS(twisted_ib_poll(cq, 1, &wc, &found), 0);
    holds = 0;
    IS(twisted_ib_poll(cq, 1, &wc, &found), 1);
    twisted_ib_busy = 0;
    IS(twisted_ib_poll(cq, 1, &wc, &found), 0);
    return failures;
}
