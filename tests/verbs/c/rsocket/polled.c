/*
 * rpoll and rselect of other descriptors than rsockets: they end as soon as another thread has written.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>
#include "../checks.h"

static int ends[2];
static struct timespec written;

static void *later(void *unused)
{
    (void)unused;
    usleep(3000);
    clock_gettime(CLOCK_MONOTONIC, &written);
    write(ends[1], "", 1);
    return NULL;
}

/* Microseconds since the write. */
static long since(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - written.tv_sec) * 1000000 + (now.tv_nsec - written.tv_nsec) / 1000;
}

static long waited(int selects)
{
    struct pollfd fds[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = -1}};
    struct timeval time = {.tv_sec = 60};
    pthread_t thread;
    fd_set set;
    char octet;
    long found;

    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    pthread_create(&thread, NULL, later, NULL);
    if (selects)
        IS(rselect(ends[0] + 1, &set, NULL, NULL, &time), 1);
    else
        IS(rpoll(fds, 2, 60000), 1);
    found = since();
    pthread_join(thread, NULL);
    read(ends[0], &octet, 1);
    return found;
}

/* Octets out of band are exceptional. */
static void urgent(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0), other;
    struct timeval time = {.tv_sec = 10};
    fd_set set;

    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    bind(listener, (struct sockaddr *)&here, sizeof here);
    listen(listener, 1);
    getsockname(listener, (struct sockaddr *)&here, &length);
    connect(one, (struct sockaddr *)&here, sizeof here);
    other = accept(listener, NULL, NULL);
    send(one, "x", 1, MSG_OOB);
    FD_ZERO(&set);
    FD_SET(other, &set);
    IS(rselect(other + 1, NULL, NULL, &set, &time), 1);
    IS(!!FD_ISSET(other, &set), 1);
    close(listener);
    close(one);
    close(other);
}

int main(void)
{
    int socket = rsocket(AF_INET, SOCK_STREAM, 0);
    struct pollfd nothing = {.events = 0};
    struct timeval time = {.tv_usec = 20000};
    struct timeval none = {.tv_sec = 0};
    clock_t begun;
    fd_set set;

    IS(socket >= 0, 1);
    pipe(ends);
    FD_ZERO(&set);
    IS(rselect(FD_SETSIZE, &set, NULL, NULL, &none), 0);
    IS(rselect(0, &set, NULL, NULL, &none), 0);
    for (int each = 0; each < 2; each++) {
        errno = 0;
        IS(rselect(each ? -1 : FD_SETSIZE + 1, &set, NULL, NULL, &none), -1);
        IS(errno, EINVAL);
    }
    for (int selects = 0; selects < 2; selects++) {
        long least = 1000000;

        for (int round = 0; round < 20; round++) {
            long found = waited(selects);

            least = found < least ? found : least;
        }
        /* The best of all: others may have the processor.  A look at times would take tens of milliseconds. */
        IS(least < 20000, 1);
    }
    /* Octets that nobody waits for do not end the sleep, time and again. */
    write(ends[1], "", 1);
    nothing.fd = ends[0];
    nothing.events = POLLPRI;
    begun = clock();
    IS(rpoll(&nothing, 1, 300), 0);
    IS(clock() - begun < CLOCKS_PER_SEC / 10, 1);
    nothing.events = 0;
    read(ends[0], &set, 1);
    /* An end that is closed is an event that nobody asks for, and readable. */
    close(ends[1]);
    nothing.fd = ends[0];
    IS(rpoll(&nothing, 1, 60000), 1);
    IS(nothing.revents, POLLHUP);
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    IS(rselect(ends[0] + 1, &set, NULL, NULL, &time), 1);
    IS(!!FD_ISSET(ends[0], &set), 1);
    FD_SET(ends[0], &set);
    clock_gettime(CLOCK_MONOTONIC, &written);
    IS(rselect(ends[0] + 1, NULL, &set, NULL, &time), 0);
    IS(since() >= 20000, 1);
    urgent();
    nothing.fd = socket;
    IS(rpoll(&nothing, 1, 20), 0);
    IS(rpoll(&nothing, 1, 0), 0);
    IS(rclose(socket), 0);
    return !!failures;
}
