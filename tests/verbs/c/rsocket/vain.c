/*
 * Calls of rsockets in vain: nearly none of them enters Python, and each sees at once what comes, a change of its socket by
 * another call, and its end.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <unistd.h>
#include "../checks.h"

#define ROUND 1000
#define ROUNDS 100

static char room[4096];
static volatile unsigned *calls, *busy;
static int caller, peer;

/* Nobody else's processes have a slice at each look: the call behind it would enter Python, as so much time has passed. */
int sched_yield(void)
{
    return 0;
}

/* The calls so far, when no other thread is in Python. */
static unsigned begun(void)
{
    while (*busy)
        usleep(100);
    return *calls;
}

/*
 * Whether nearly all such calls, each of which is in vain, stay out of Python.  Those do not that meet the thread which
 * serves peers in Python, where it may wait for a processor: of many rounds one meets none.
 */
static void stays(int sends)
{
    unsigned least = ROUND;

    for (int rounds = 0; rounds < ROUNDS && least >= ROUND / 4; rounds++) {
        unsigned before = begun();

        for (int index = 0; index < ROUND; index++) {
            errno = 0;
            IS(sends ? rsend(caller, room, sizeof room, MSG_DONTWAIT) : rrecv(caller, room, sizeof room, MSG_DONTWAIT), -1);
            IS(errno, EAGAIN);
        }
        if (*calls - before < least)
            least = *calls - before;
    }
    IS(least < ROUND / 4, 1);
}

/* Whether nearly all such calls of rpoll do, beside a pipe, whose first octet the next one sees. */
static void polls(short events)
{
    struct pollfd fds[3] = {{.fd = caller, .events = events}, {.fd = -1, .revents = 1}, {.events = POLLIN}};
    unsigned least = ROUND;
    int ends[2];

    IS(pipe(ends), 0);
    fds[2].fd = ends[0];
    for (int rounds = 0; rounds < ROUNDS && least >= ROUND / 4; rounds++) {
        unsigned before = begun();

        for (int index = 0; index < ROUND; index++) {
            fds[index % 3].revents = 1;
            IS(rpoll(fds, 3, 0), 0);
            IS(fds[0].revents | fds[1].revents | fds[2].revents, 0);
        }
        if (*calls - before < least)
            least = *calls - before;
    }
    IS(least < ROUND / 4, 1);
    IS(write(ends[1], "", 1), 1);
    IS(rpoll(fds, 3, 0), 1);
    IS(fds[2].revents, POLLIN);
    close(ends[1]);
    close(ends[0]);
    /* And that it is closed. */
    IS(rpoll(fds, 3, 0), 1);
    IS(fds[2].revents, POLLNVAL);
}

/* Ask rpoll until there is something. */
static short asked(int socket, short events)
{
    struct pollfd one = {.fd = socket, .events = events};

    while (!rpoll(&one, 1, 0))
        ;
    return one.revents;
}

/* Poll for octets. */
static long polled(int socket)
{
    long found;

    while ((found = rrecv(socket, room, sizeof room, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        ;
    return found;
}

static void *later(void *socket)
{
    usleep(2000);
    IS(rsend(*(int *)socket, "later", 5, 0), 5);
    return NULL;
}

static void *closes(void *socket)
{
    usleep(2000);
    IS(rclose(*(int *)socket), 0);
    return NULL;
}

int main(void)
{
    int listener = rsocket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof here;
    pthread_t thread;
    long sent = 0, found, got = 0;

    calls = MADE(dlsym(RTLD_DEFAULT, "twisted_ib_calls"));
    busy = MADE(dlsym(RTLD_DEFAULT, "twisted_ib_busy"));
    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    IS(rbind(listener, (struct sockaddr *)&here, sizeof here), 0);
    IS(rlisten(listener, 1), 0);
    IS(rgetsockname(listener, (struct sockaddr *)&here, &length), 0);
    caller = rsocket(AF_INET, SOCK_STREAM, 0);
    IS(rfcntl(caller, F_SETFL, O_NONBLOCK), 0);
    rconnect(caller, (struct sockaddr *)&here, sizeof here);
    peer = raccept(listener, NULL, NULL);
    while (rconnect(caller, (struct sockaddr *)&here, sizeof here) && errno != EISCONN)
        ;
    stays(0);
    /* What another thread sends comes. */
    pthread_create(&thread, NULL, later, &peer);
    IS(polled(caller), 5);
    pthread_join(thread, NULL);
    IS(memcmp(room, "later", 5), 0);
    polls(POLLIN);
    /* As is a call for something else than the last one, which there is. */
    for (int index = 0; index < ROUND; index++) {
        struct pollfd one = {.fd = caller, .events = index % 2 ? POLLOUT : POLLIN};

        IS(rpoll(&one, 1, 0), index % 2);
    }
    pthread_create(&thread, NULL, later, &peer);
    IS(asked(caller, POLLIN), POLLIN);
    IS(asked(caller, POLLIN | POLLOUT), POLLIN | POLLOUT);
    IS(polled(caller), 5);
    pthread_join(thread, NULL);
    /* What is not asked for, or wrong, is said as ever. */
    stays(0);
    IS(rrecv(caller, room, 0, MSG_DONTWAIT), 0);
    IS(rrecv(caller, NULL, 1, MSG_DONTWAIT), -1);
    IS(errno, EINVAL);
    /* As long as there is no room, and no longer. */
    while ((found = rsend(caller, room, sizeof room, MSG_DONTWAIT)) > 0)
        sent += found;
    while (rsend(caller, room, sizeof room, MSG_DONTWAIT) > 0)
        sent += sizeof room;
    stays(1);
    polls(POLLOUT);
    while (got < sent)
        got += polled(peer);
    IS(asked(caller, POLLOUT), POLLOUT);
    while ((found = rsend(caller, room, sizeof room, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        ;
    IS(found > 0, 1);
    while (found > 0)
        found -= polled(peer);
    /* A call that waits does so, though the one before has not. */
    stays(0);
    pthread_create(&thread, NULL, later, &peer);
    IS(rfcntl(caller, F_SETFL, 0), 0);
    IS(rrecv(caller, room, sizeof room, 0), 5);
    pthread_join(thread, NULL);
    /* The peer's end; and one that another thread closes. */
    stays(0);
    pthread_create(&thread, NULL, closes, &peer);
    IS(polled(caller), 0);
    /* A program that tells an end from a call in vain by errno alone, as rstream, does not poll for ever. */
    IS(errno, ECONNRESET);
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, closes, &listener);
    while (rrecv(listener, room, 1, MSG_DONTWAIT) < 0 && errno != EBADF)
        ;
    pthread_join(thread, NULL);
    IS(rclose(caller), 0);
    return failures;
}
