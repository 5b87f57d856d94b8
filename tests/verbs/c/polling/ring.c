/*
 * The ring of completions without Python: one thread adds as fast as it can, others take.  Each completion is taken once,
 * whole, and a thread sees those that it takes in order.  The arguments are how many at most, threads, and seconds after
 * which no more are added.
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

static int twisted_ib_quiet(void)
{
    return 0;
}

int twisted_ib_has_python(void)
{
    return 0;
}

#define PLACES 64

volatile unsigned twisted_ib_busy, twisted_ib_posts;
static struct twisted_ib_ring ring;
static unsigned char *seen;
static volatile uint64_t all, taken;

static void *take(void *nothing)
{
    struct ibv_wc wc[4];
    uint64_t after = 0;

    while (taken < all && !failures) {
        int found = twisted_ib_take(&ring, 1 + after % 4, wc);

        for (int index = 0; index < found; index++) {
            IS(wc[index].wr_id >= after && wc[index].wr_id < all, 1);
            IS(wc[index].byte_len, (uint32_t)wc[index].wr_id);
            if (failures)
                return NULL;
            after = wc[index].wr_id + 1;
            __atomic_add_fetch(seen + wc[index].wr_id, 1, __ATOMIC_RELAXED);
        }
        if (found)
            __atomic_add_fetch(&taken, found, __ATOMIC_RELAXED);
        else
            sched_yield();
    }
    return nothing;
}

int main(int count, char **words)
{
    int threads = count > 2 ? atoi(words[2]) : 0;
    pthread_t takers[threads + 1];
    uint64_t place = 0, next = 0;
    int isEven = 0;
    time_t end = time(NULL) + (count > 3 ? atoi(words[3]) : 0);

    if (count < 4)
        return 2;
    all = atol(words[1]);
    ring.entries = calloc(PLACES, sizeof *ring.entries);
    ring.mask = PLACES - 1;
    seen = calloc(all, 1);
    for (int each = 0; each < threads; each++)
        pthread_create(takers + each, NULL, take, NULL);
    while (next < all && !failures) {
        if (place - __atomic_load_n(&ring.head, __ATOMIC_ACQUIRE) == PLACES) {
            /*
             * As resizes and resets do: what is taken back is added again.  But the takers get the processor while the ring
             * is full: on a busy machine they would find it empty for ever.
             */
            if (isEven = !isEven)
                sched_yield();
            else
                next -= twisted_ib_recall(&ring);
            if (time(NULL) > end)
                all = next;
            continue;
        }
        ring.entries[place & ring.mask].wr_id = ring.entries[place & ring.mask].byte_len = next++;
        __atomic_store_n(&ring.tail, ++place, __ATOMIC_RELEASE);
    }
    for (int each = 0; each < threads; each++)
        pthread_join(takers[each], NULL);
    IS(taken, all);
    for (uint64_t number = 0; number < all && !failures; number++)
        IS(seen[number], 1);
    return !!failures;
}
