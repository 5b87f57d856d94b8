/*
 * What threads of C that poll in vain take from a thread of Python: polling.py compiles and runs it.
 *
 * Arguments: how many threads, and millions of rounds of Python's loop.  One line for the loop alone, one beside them:
 * its seconds by the clock and of a processor, polls, entries into Python, and processor seconds of these.
 */
#include "../tests/verbs/c/pairs.h"
#include <time.h>

static volatile int polls_go_on;
static long polls;
static long inside;
static __thread long entered;
static __thread int polling;

static long nanoseconds(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void begin(void)
{
    entered = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
}

static void end(void)
{
    if (polling)
        __atomic_add_fetch(&inside, nanoseconds(CLOCK_THREAD_CPUTIME_ID) - entered, __ATOMIC_RELAXED);
}

static void *poll_in_vain(void *cq)
{
    struct ibv_wc wc;
    long own = 0;

    polling = 1;
    for (; polls_go_on; own++)
        IS(ibv_poll_cq(cq, 1, &wc), 0);
    __atomic_add_fetch(&polls, own, __ATOMIC_RELAXED);
    return NULL;
}

static void measure(const char *name, int threads, const char *loop)
{
    int (*python)(const char *) = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    pthread_t pollers[threads + 1];
    long clock, processor, before;
    int state;

    polls = inside = 0;
    polls_go_on = 1;
    before = entries;
    for (int each = 0; each < threads; each++)
        pthread_create(pollers + each, NULL, poll_in_vain, queue(8, NULL));
    clock = nanoseconds(CLOCK_MONOTONIC);
    processor = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    state = PyGILState_Ensure();
    IS(python(loop), 0);
    PyGILState_Release(state);
    processor = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - processor;
    clock = nanoseconds(CLOCK_MONOTONIC) - clock;
    polls_go_on = 0;
    for (int each = 0; each < threads; each++)
        pthread_join(pollers[each], NULL);
    /* Its own entry, and those that made the queues. */
    printf("%s %.6f %.6f %ld %ld %.6f\n", name, clock / 1e9, processor / 1e9, polls, entries - before - 1 - threads,
           inside / 1e9);
}

int main(int count, char **words)
{
    char loop[64];

    if (count < 3)
        return 2;
    snprintf(loop, sizeof loop, "for _ in range(%ld): pass\n", atol(words[2]) * 1000000);
    open_device();
    entering = begin;
    leaving = end;
    measure("alone", 0, loop);
    measure("beside", atoi(words[1]), loop);
    return !!failures;
}
