/*
 * Both ends of TCP connections in one thread that waits by epoll(7), with calls that librspreload leaves out.  It is
 * linked with the C library alone, and says the same with librspreload and without.
 */
#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

static int set;

static void add(int fd, unsigned events)
{
    struct epoll_event event = {.events = events, .data.fd = fd};

    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event))
        perror("epoll_ctl");
}

static void comes(const char *what, int fd, unsigned events)
{
    static int calls;
    struct epoll_event found[2];
    int count = calls++ % 2 ? epoll_pwait2(set, found, 2, &(struct timespec){60}, NULL) : epoll_wait(set, found, 2, 60000);

    printf("%s: %d %d %#x\n", what, count, found[0].data.fd == fd, found[0].events & events);
}

/* Nothing more, as it was told with EPOLLET. */
static void rests(void)
{
    struct epoll_event found[1];

    printf("rests %d, ", epoll_pwait(set, found, 1, 0, &(sigset_t){0}));
    printf("%d\n", epoll_pwait2(set, found, 1, &(struct timespec){0, 1}, &(sigset_t){0}));
}

/* Waits of other kinds: as long as there are no octets, and once there are some. */
static void waits(int fd, int milliseconds)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    struct timespec most = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    volatile nfds_t count = 1;
    fd_set wanted;

    FD_ZERO(&wanted);
    FD_SET(fd, &wanted);
    printf("ppoll %d, ", ppoll(&one, count, &most, NULL));
    printf("pselect %d\n", pselect(fd + 1, &wanted, NULL, NULL, &most, NULL));
}

/* How much there is, and what, by functions that look at the size of the array where the compiler knows it. */
static void reads(int fd, volatile size_t length)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    volatile nfds_t count = 1;
    char octets[8] = "";
    int waiting = -1;
    ssize_t n;

    waits(fd, 60000);
    printf("poll %d\n", poll(&one, count, 60000));
    ioctl(fd, FIONREAD, &waiting);
    printf("%d waiting, peek %zd\n", waiting, recv(fd, octets, length, MSG_PEEK));
    n = read(fd, octets, length);
    printf("read %zd %s\n", n, octets);
    printf("then %zd\n", recvfrom(fd, octets, length, 0, NULL, NULL));
}

static void sends(int fd, int file)
{
    off_t offset = 3;
    ssize_t n = sendfile(fd, file, &offset, 2);

    printf("sendfile %zd %ld, ", n, (long)offset);
    lseek(file, 1, SEEK_SET);
    n = sendfile(fd, file, NULL, 1);
    printf("%zd %ld\n", n, (long)lseek(file, 0, SEEK_CUR));
}

int main(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, ends[2], peer;
    int caller = socket(AF_INET, SOCK_STREAM, 0), file = fileno(tmpfile());

    write(file, "0123456", 7);
    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    bind(listener, (struct sockaddr *)&here, sizeof here);
    listen(listener, 1);
    getsockname(listener, (struct sockaddr *)&here, &length);
    set = epoll_create1(EPOLL_CLOEXEC);
    pipe(ends);
    add(ends[0], EPOLLIN | EPOLLET);
    add(listener, EPOLLIN | EPOLLET);
    peer = accept4(listener, NULL, NULL, 0);
    printf("accept4 %d %d\n", peer, errno == EAGAIN);
    ioctl(caller, FIONBIO, &on);
    peer = connect(caller, (struct sockaddr *)&here, sizeof here);
    printf("connect %d %d\n", peer, errno == EINPROGRESS);
    comes("listener", listener, -1);
    peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    printf("accepted %d %d\n", !!(fcntl(peer, F_GETFL) & O_NONBLOCK), !!(fcntl(peer, F_GETFD) & FD_CLOEXEC));
    add(caller, EPOLLOUT | EPOLLONESHOT);
    comes("connected", caller, -1);
    add(peer, EPOLLIN | EPOLLRDHUP | EPOLLET);
    waits(peer, 1);
    write(caller, "abc", 3);
    comes("octets", peer, -1);
    rests();
    reads(peer, 3);
    sends(caller, file);
    comes("a file", peer, -1);
    reads(peer, 3);
    write(ends[1], "", 1);
    comes("a pipe", ends[0], -1);
    rests();
    shutdown(caller, SHUT_WR);
    comes("the end", peer, -1);
    close(peer);
    peer = epoll_ctl(set, EPOLL_CTL_DEL, peer, NULL);
    printf("gone %d %d\n", peer, errno == EBADF);
    close(set);
    return 0;
}
