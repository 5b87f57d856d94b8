/*
 * repoll_create, repoll_ctl and repoll_wait: an rsocket that accepts, its peer's data, and a pipe.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#include "../checks.h"

/* Of limits.py. */
#define RSOCKET_POLLS 256

int repoll_create(int flags);
int repoll_ctl(int set, int operation, int socket, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int most, int timeout);

static void fails(int result, int expected)
{
    IS(result, -1);
    IS(errno, expected);
}

static void add(int set, int descriptor, unsigned events)
{
    struct epoll_event event = {.events = events, .data.u64 = 0x1234567800000000 + descriptor};

    IS(repoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event), 0);
}

/* One event, which is this one. */
static void comes(int set, int descriptor, unsigned events)
{
    struct epoll_event found[4];

    IS(repoll_wait(set, found, 4, 60000), 1);
    IS(found[0].data.u64 == 0x1234567800000000 + descriptor, 1);
    IS(found[0].events, events);
}

/* What a program may not do. */
static void refused(int set, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN};

    fails(repoll_ctl(descriptor, EPOLL_CTL_ADD, descriptor, &event), EBADF);
    fails(repoll_wait(descriptor, &event, 1, 0), EBADF);
    fails(repoll_wait(set, &event, 0, 0), EINVAL);
    fails(repoll_wait(set, NULL, 1, 0), EINVAL);
    fails(repoll_ctl(set, EPOLL_CTL_ADD, 9999, &event), EBADF);
    fails(repoll_ctl(set, 9, descriptor, &event), EINVAL);
    fails(repoll_ctl(set, EPOLL_CTL_MOD, descriptor, &event), ENOENT);
    fails(repoll_ctl(set, EPOLL_CTL_DEL, descriptor, &event), ENOENT);
    fails(repoll_ctl(set, EPOLL_CTL_ADD, descriptor, NULL), EINVAL);
    add(set, descriptor, EPOLLIN);
    fails(repoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event), EEXIST);
    IS(repoll_ctl(set, EPOLL_CTL_DEL, descriptor, NULL), 0);
}

/* As epoll_create1(2): without flags it is open in programs that are started, too. */
static void flagged(int flags, int expected)
{
    int set = repoll_create(flags);

    IS(set >= 0, 1);
    IS(fcntl(set, F_GETFD), expected);
    close(set);
}

/* A pipe: once only, then again; and no more when it is closed. */
static void pipes(int set)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
    int ends[2];

    pipe(ends);
    refused(set, ends[0]);
    write(ends[1], "", 1);
    add(set, ends[0], EPOLLIN | EPOLLONESHOT);
    comes(set, ends[0], EPOLLIN);
    IS(repoll_wait(set, &event, 1, 0), 0);
    event.events = EPOLLIN;
    event.data.u64 = 7;
    IS(repoll_ctl(set, EPOLL_CTL_MOD, ends[0], &event), 0);
    IS(repoll_wait(set, &event, 1, 60000), 1);
    IS(event.data.u64, 7);
    close(ends[0]);
    close(ends[1]);
    IS(repoll_wait(set, &event, 1, 0), 0);
}

/* Two that are ready take turns. */
static void turns(int set)
{
    struct epoll_event event;
    int one[2], other[2];
    unsigned long first;

    pipe(one);
    pipe(other);
    write(one[1], "", 1);
    write(other[1], "", 1);
    add(set, one[0], EPOLLIN);
    add(set, other[0], EPOLLIN);
    IS(repoll_wait(set, &event, 1, 0), 1);
    first = event.data.u64;
    IS(repoll_wait(set, &event, 1, 0), 1);
    IS(event.data.u64 != first, 1);
    IS(repoll_ctl(set, EPOLL_CTL_DEL, one[0], NULL), 0);
    IS(repoll_ctl(set, EPOLL_CTL_DEL, other[0], NULL), 0);
}

/* The number of a file that was closed comes back without a wait between: the set does not have the new one. */
static void again(int set)
{
    struct epoll_event event = {.events = EPOLLIN};
    int first = rsocket(AF_INET, SOCK_STREAM, 0), second, ends[2];

    add(set, first, EPOLLIN);
    IS(rclose(first), 0);
    IS(second = rsocket(AF_INET, SOCK_STREAM, 0), first);
    fails(repoll_ctl(set, EPOLL_CTL_DEL, second, NULL), ENOENT);
    add(set, second, EPOLLIN);
    IS(repoll_ctl(set, EPOLL_CTL_DEL, second, NULL), 0);
    rclose(second);

    pipe(ends);
    first = ends[0];
    add(set, first, EPOLLIN);
    close(ends[0]);
    close(ends[1]);
    pipe(ends);
    IS(ends[0], first);
    write(ends[1], "", 1);
    fails(repoll_ctl(set, EPOLL_CTL_MOD, first, &event), ENOENT);
    add(set, first, EPOLLIN);
    comes(set, first, EPOLLIN);
    close(ends[0]);
    close(ends[1]);
    pipe(ends);
    IS(ends[0], first);
    write(ends[1], "", 1);
    IS(repoll_wait(set, &event, 1, 0), 0);
    close(ends[0]);
    close(ends[1]);
}

/* A program that polls a socket hears that there is nothing, and gets what has come, and no more. */
static void polled(int caller, int peer)
{
    char octets[4] = "", *target = octets;
    struct iovec parts[2] = {{octets, 2}, {octets + 2, 2}};
    ssize_t count;

    errno = 0;
    fails(rrecv(peer, octets, 1, MSG_DONTWAIT), EAGAIN);
    fails(rrecv(caller, octets, 1, 0), EAGAIN);
    IS(rsend(caller, "abc", 3, 0), 3);
    while ((count = rrecv(peer, target, 1, MSG_DONTWAIT | MSG_PEEK)) < 0)
        IS(errno, EAGAIN);
    IS(count, 1);
    /* The rest is not waited for, in whatever way the program asks for it. */
    IS(rrecv(peer, octets, 4, MSG_DONTWAIT | MSG_WAITALL), 3);
    IS(!memcmp(octets, "abc", 3), 1);
    IS(rsend(caller, "abc", 3, 0), 3);
    IS(rreadv(peer, parts, 2), 3);
    fails(rrecv(peer, octets, 1, MSG_DONTWAIT), EAGAIN);
}

/* EPOLLET: what has been told is told again when more has come, or room, whether the program has taken it or not. */
static void edges(int set, int caller, int peer)
{
    char octets[1 << 16];
    struct epoll_event event;
    ssize_t n;

    add(set, peer, EPOLLIN | EPOLLET);
    for (int round = 0; round < 2; round++) {
        IS(rsend(caller, "x", 1, 0), 1);
        comes(set, peer, EPOLLIN);
        IS(repoll_wait(set, &event, 1, 0), 0);
    }
    add(set, caller, EPOLLOUT | EPOLLET);
    comes(set, caller, EPOLLOUT);
    while ((n = rsend(caller, octets, sizeof octets, MSG_DONTWAIT)) > 0)
        ;
    IS(errno, EAGAIN);
    while (rrecv(peer, octets, sizeof octets, MSG_DONTWAIT) > 0)
        ;
    IS(repoll_ctl(set, EPOLL_CTL_DEL, peer, NULL), 0);
    comes(set, caller, EPOLLOUT);
    /* All of it, for what follows. */
    while (rrecv(peer, octets, sizeof octets, MSG_DONTWAIT) > 0 || repoll_wait(set, &event, 1, 20) > 0)
        ;
    IS(repoll_ctl(set, EPOLL_CTL_DEL, caller, NULL), 0);
}

/* An rsocket and two pipes that are ready: never more than is asked for, all if there is room, and with room for one by turns. */
static void together(int set, int caller, int peer)
{
    struct epoll_event found[4] = {0};
    int ends[2][2], others = 0;
    char octet;

    add(set, peer, EPOLLIN);
    IS(rsend(caller, "x", 1, 0), 1);
    comes(set, peer, EPOLLIN);
    for (int each = 0; each < 2; each++) {
        pipe(ends[each]);
        write(ends[each][1], "", 1);
        add(set, ends[each][0], EPOLLIN);
    }
    for (int round = 0; round < 4; round++) {
        found[3].data.u64 = 7;
        /* Whoever is first. */
        for (int each = 0; each < 2; each++) {
            found[2].data.u64 = 7;
            IS(repoll_wait(set, found, 2, 0), 2);
            IS(found[2].data.u64, 7);
            IS(found[0].data.u64 != found[1].data.u64, 1);
        }
        IS(repoll_wait(set, found, 3, 0), 3);
        IS(found[3].data.u64, 7);
        /* Each once. */
        IS((int)found[0].data.u64 + (int)found[1].data.u64 + (int)found[2].data.u64, peer + ends[0][0] + ends[1][0]);
        IS(repoll_wait(set, found, 1, 0), 1);
        others += (int)found[0].data.u64 != peer;
        IS(repoll_wait(set, found, 1, 0), 1);
        others += (int)found[0].data.u64 != peer;
    }
    IS(others, 4);
    for (int each = 0; each < 2; each++) {
        IS(repoll_ctl(set, EPOLL_CTL_DEL, ends[each][0], NULL), 0);
        close(ends[each][0]);
        close(ends[each][1]);
    }
    IS(repoll_ctl(set, EPOLL_CTL_DEL, peer, NULL), 0);
    IS(rrecv(peer, &octet, 1, 0), 1);
}

static void nothing(int number)
{
    (void)number;
}

/* As epoll_wait(2) and poll(2), they end with a signal, also if its handler has SA_RESTART. */
static void interrupted(int set, int peer)
{
    struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    struct itimerval soon = {.it_value.tv_usec = 20000};
    struct pollfd one = {.fd = peer, .events = POLLIN};
    struct epoll_event event;

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    fails(repoll_wait(set, &event, 1, -1), EINTR);
    setitimer(ITIMER_REAL, &soon, NULL);
    fails(rpoll(&one, 1, 60000), EINTR);
    IS(rpoll(&one, 1, 20), 0);
    IS(repoll_wait(set, &event, 1, 20), 0);
}

/* As of librspreload, which closes all its descriptors so. */
static void closed(void)
{
    struct epoll_event event;
    int set = repoll_create(0);

    IS(rclose(set), 0);
    fails(repoll_wait(set, &event, 1, 0), EBADF);
    fails(rclose(set), EBADF);
}

/* Of socket(2) with flags, as of fcntl(2). */
static void flags(void)
{
    int one = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    IS(rfcntl(one, F_GETFL), O_NONBLOCK);
    IS(rfcntl(one, F_GETFD), FD_CLOEXEC);
    IS(rfcntl(one, F_SETFD, 0L), 0);
    IS(rfcntl(one, F_GETFD), 0);
    IS(rclose(one), 0);
}

int main(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof here, none = 0;
    int sets[RSOCKET_POLLS], listener = rsocket(AF_INET, SOCK_STREAM, 0), caller = rsocket(AF_INET, SOCK_STREAM, 0);
    int peer;
    char octet;

    flagged(0, 0);
    flagged(EPOLL_CLOEXEC, FD_CLOEXEC);
    sets[0] = repoll_create(0);
    IS(sets[0] >= 0, 1);
    pipes(sets[0]);
    turns(sets[0]);
    closed();
    flags();
    again(sets[0]);
    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    IS(rbind(listener, (struct sockaddr *)&here, sizeof here), 0);
    IS(rlisten(listener, 1), 0);
    IS(rgetsockname(listener, (struct sockaddr *)&here, &length), 0);
    /* The length alone, as librspreload asks for it. */
    IS(rgetsockname(listener, NULL, &none), 0);
    IS(none, sizeof here);
    add(sets[0], listener, EPOLLIN);
    IS(rfcntl(caller, F_SETFL, O_NONBLOCK), 0);
    fails(rconnect(caller, (struct sockaddr *)&here, sizeof here), EINPROGRESS);
    comes(sets[0], listener, EPOLLIN);
    peer = raccept(listener, NULL, NULL);
    IS(repoll_ctl(sets[0], EPOLL_CTL_DEL, listener, NULL), 0);
    add(sets[0], caller, EPOLLOUT);
    comes(sets[0], caller, EPOLLOUT);
    /* hiredis asks so, and so does TCP answer. */
    IS(rconnect(caller, (struct sockaddr *)&here, sizeof here), 0);
    fails(rconnect(caller, (struct sockaddr *)&here, sizeof here), EISCONN);
    IS(repoll_ctl(sets[0], EPOLL_CTL_DEL, caller, NULL), 0);
    add(sets[0], peer, EPOLLIN);
    IS(rsend(caller, "x", 1, 0), 1);
    comes(sets[0], peer, EPOLLIN);
    IS(rrecv(peer, &octet, 1, 0), 1);
    IS(octet, 'x');
    polled(caller, peer);
    IS(repoll_ctl(sets[0], EPOLL_CTL_DEL, peer, NULL), 0);
    edges(sets[0], caller, peer);
    together(sets[0], caller, peer);
    interrupted(sets[0], peer);

    for (int i = 1; i < RSOCKET_POLLS; i++)
        sets[i] = repoll_create(0);
    IS(sets[RSOCKET_POLLS - 1] >= 0, 1);
    fails(repoll_create(0), EMFILE);
    close(sets[3]);
    IS(repoll_create(0) >= 0, 1);
    return !!failures;
}
