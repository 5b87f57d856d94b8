/*
 * Checks of the programs beside it: a line for each that fails.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define IS(call, expected) is(#call, (long long)(call), (expected))
#define MADE(pointer) made(#pointer, (pointer))

static inline void is(const char *subject, long long found, long long expected)
{
    if (found != expected) {
        printf("%s: %lld, not %lld\n", subject, found, expected);
        failures++;
    }
}

/* A program cannot go on without it. */
static inline void *made(const char *subject, void *pointer)
{
    if (!pointer) {
        printf("%s: %s\n", subject, strerror(errno));
        exit(1);
    }
    return pointer;
}
