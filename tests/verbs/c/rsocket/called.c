/*
 * Calls of sockets, and what they say: as rsockets, or with KERNEL as TCP's.  Both print the same; what only rsockets
 * have is checked, with a line for each that is wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include "../checks.h"
#ifdef KERNEL
#define ENDED EPIPE
#define rsocket socket
#define rbind bind
#define rlisten listen
#define raccept accept
#define rconnect connect
#define rshutdown shutdown
#define rclose close
#define rrecv recv
#define rrecvfrom recvfrom
#define rrecvmsg recvmsg
#define rread read
#define rreadv readv
#define rsend send
#define rsendmsg sendmsg
#define rwrite write
#define rwritev writev
#define rpoll poll
#define rgetsockname getsockname
#define rgetpeername getpeername
#define rsetsockopt setsockopt
#define rgetsockopt getsockopt
#define rfcntl fcntl
#else
#include <rdma/rsocket.h>
/* rdma-core rsocket.c: a send after the end. */
#define ENDED ECONNRESET
#endif

#define SAY(call) say(#call, (call))

static struct sockaddr_in here = {.sin_family = AF_INET};
static int listener, caller, peer;
static char room[64];

static void say(const char *call, long result)
{
    if (result < 0)
        printf("%s: %s\n", call, strerror(errno));
    else
        printf("%s: %ld\n", call, result);
}

/* A receive, and what it has taken. */
static void show(const char *call, long result)
{
    say(call, result);
    printf("  %.*s\n", (int)sizeof room, room);
    memset(room, 0, sizeof room);
}

#define SHOW(call) show(#call, (call))

static void await(int socket, int events)
{
    struct pollfd one = {.fd = socket, .events = events};

    SAY(rpoll(&one, 1, -1));
    SAY(one.revents & events);
}

static void *connecting(void *unused)
{
    SAY(rconnect(caller, (struct sockaddr *)&here, sizeof here));
    return unused;
}

static void *later(void *text)
{
    usleep(3000);
    rsend(peer, text, strlen(text), 0);
    return NULL;
}

/* The name of one that is not bound. */
static void unbound(int socket)
{
    struct sockaddr_in6 found;
    socklen_t length = sizeof found;
    char text[INET6_ADDRSTRLEN];
    void *address = &found.sin6_addr;

    SAY(rgetsockname(socket, (struct sockaddr *)&found, &length));
    if (found.sin6_family == AF_INET)
        address = &((struct sockaddr_in *)&found)->sin_addr;
    inet_ntop(found.sin6_family, address, text, sizeof text);
    printf("  %d %d %d %s\n", length, found.sin6_family, found.sin6_port, text);
}

static void opened(void)
{
    int six = rsocket(AF_INET6, SOCK_STREAM, 0);

    unbound(six);
    SAY(rclose(six));
    SAY(rsocket(-1, SOCK_STREAM, 0));
    SAY(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    listener = rsocket(AF_INET, SOCK_STREAM, 0);
    caller = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP);
    unbound(caller);
    SAY(rrecv(9999, room, 1, 0));
    SAY(rclose(9999));
}

static void option(int level, int name, const char *call)
{
    unsigned char value[8] = {1, 0, 0, 0, 7};
    socklen_t length = sizeof value;

    printf("%s\n", call);
    SAY(rsetsockopt(caller, level, name, value, 2));
    SAY(rsetsockopt(caller, level, name, value, length));
    memset(value, 9, sizeof value);
    SAY(rgetsockopt(caller, level, name, value, &length));
    printf("  %d: %d %d %d\n", length, value[0], value[4], value[7]);
    length = 1;
    SAY(rgetsockopt(caller, level, name, value, &length));
    printf("  %d\n", length);
}

#define OPTION(level, name) option(level, name, #level " " #name)

static void options(void)
{
    int number = 1;
    socklen_t length = sizeof number;

    OPTION(SOL_SOCKET, SO_REUSEADDR);
    OPTION(SOL_SOCKET, SO_KEEPALIVE);
    OPTION(SOL_SOCKET, SO_LINGER);
    OPTION(IPPROTO_TCP, TCP_NODELAY);
    SAY(rsetsockopt(caller, SOL_SOCKET, 9999, &number, length));
    SAY(rsetsockopt(caller, 9999, 1, &number, length));
    SAY(rgetsockopt(caller, SOL_SOCKET, 9999, &number, &length));
    SAY(rgetsockopt(caller, IPPROTO_TCP, 9999, &number, &length));
    SAY(rfcntl(caller, F_GETFL) & O_NONBLOCK);
    SAY(rfcntl(caller, F_SETFL, O_NONBLOCK));
    SAY(!!(rfcntl(caller, F_GETFL) & O_NONBLOCK));
    SAY(rfcntl(caller, F_SETFL, 0));
    SAY(rfcntl(caller, F_GETFL) & O_NONBLOCK);
}

static void connected(void)
{
    struct sockaddr_in found;
    socklen_t length = sizeof found;
    pthread_t thread;

    SAY(raccept(listener, NULL, NULL));
    SAY(rgetpeername(listener, (struct sockaddr *)&found, &length));
    SAY(rrecv(listener, room, 1, 0));
#ifndef KERNEL
    int entries = 2;

    IS(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof entries), 0);
#endif
    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    SAY(rbind(listener, (struct sockaddr *)&here, sizeof here));
    SAY(rlisten(listener, 4));
    SAY(rgetsockname(listener, (struct sockaddr *)&here, &length));
    printf("  %d %d %d %s\n", length, here.sin_family, ntohs(here.sin_port) > 1023, inet_ntoa(here.sin_addr));
    SAY(rfcntl(listener, F_SETFL, O_NONBLOCK));
    SAY(raccept(listener, NULL, NULL));
    SAY(rfcntl(listener, F_SETFL, 0));
    SAY(rrecv(listener, room, 1, 0));
    pthread_create(&thread, NULL, connecting, NULL);
    peer = raccept(listener, (struct sockaddr *)&found, &length);
    pthread_join(thread, NULL);
    printf("  %d %d %d %s\n", peer >= 0, length, ntohs(found.sin_port) > 1023, inet_ntoa(found.sin_addr));
    SAY(rgetpeername(caller, (struct sockaddr *)&found, &length));
    printf("  %d %d\n", length, found.sin_port == here.sin_port);
    /* As much as there is room for, and how much there would be. */
    memset(&found, 0, sizeof found);
    length = 2;
    SAY(rgetpeername(caller, (struct sockaddr *)&found, &length));
    printf("  %d %d %d\n", length, found.sin_family, found.sin_port);
}

static void octets(void)
{
    struct iovec parts[2] = {{room, 2}, {room + 2, 3}}, words[2] = {{"gh", 2}, {"ijk", 3}};
    static struct iovec empty[1024];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2}, told = {.msg_iov = words, .msg_iovlen = 2};
    pthread_t thread;

    SHOW(rrecv(caller, room, 4, MSG_DONTWAIT));
    SAY(rsend(peer, "abcdef", 6, 0));
    await(caller, POLLIN);
    SHOW(rrecv(caller, room, 2, MSG_PEEK));
    SHOW(rrecv(caller, room, 2, 0));
    SHOW(rread(caller, room, 9));
    SAY(rwritev(peer, words, 2));
    await(caller, POLLIN);
    SHOW(rreadv(caller, parts, 2));
    SAY(rsendmsg(peer, &told, 0));
    await(caller, POLLIN);
    SHOW(rrecvmsg(caller, &message, 0));
    SAY(rwrite(peer, "lm", 2));
    await(caller, POLLIN);
    SHOW(rrecv(caller, room, 9, 0));
    SAY(rsend(peer, room, 0, 0));
    SAY(rreadv(caller, parts, -1));
    SAY(rreadv(caller, parts, 1025));
    SAY(rwritev(peer, words, 1025));
    SAY(rwritev(peer, empty, 1024));
    SAY(rwritev(peer, words, 0));
    /* What has come, or all. */
    SAY(rsend(peer, "no", 2, 0));
    await(caller, POLLIN);
    SHOW(rrecv(caller, room, 4, MSG_WAITALL | MSG_DONTWAIT));
    SAY(rsend(peer, "pq", 2, 0));
    await(caller, POLLIN);
    pthread_create(&thread, NULL, later, "rs");
    SHOW(rrecv(caller, room, 4, MSG_WAITALL));
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, later, "tu");
    SHOW(rrecv(caller, room, 4, 0));
    pthread_join(thread, NULL);
    SAY(rfcntl(caller, F_SETFL, O_NONBLOCK));
    SHOW(rrecv(caller, room, 4, 0));
    SAY(rfcntl(caller, F_SETFL, 0));
}

static void ended(void)
{
    char many[4096] = "";
    int error = 1;
    socklen_t length = sizeof error;

    while (rsend(caller, many, sizeof many, MSG_DONTWAIT) > 0)
        ;
    SAY(rsend(caller, many, sizeof many, MSG_DONTWAIT));
    SAY(rshutdown(caller, 9));
    SAY(rsend(peer, "v", 1, 0));
    SAY(rshutdown(peer, SHUT_WR));
    IS(rsend(peer, "w", 1, MSG_NOSIGNAL), -1);
    IS(errno, ENDED);
    SHOW(rrecv(caller, room, 4, MSG_WAITALL));
    SHOW(rrecv(caller, room, 4, 0));
    SAY(rgetsockopt(caller, SOL_SOCKET, SO_ERROR, &error, &length));
    printf("  %d %d\n", length, error);
    while (rrecv(peer, many, sizeof many, MSG_DONTWAIT) > 0)
        ;
    SAY(rclose(caller));
    SAY(rclose(caller));
    SAY(rclose(peer));
    SAY(rclose(listener));
    caller = rsocket(AF_INET, SOCK_STREAM, 0);
    connecting(NULL);
    SAY(rclose(caller));
}

/* What TCP's have not, or not so. */
static void own(void)
{
#ifndef KERNEL
    static const int sizes[][2] = {{1, 4096}, {9999, 9998}, {1 << 30, 1 << 24}};
    int number, names[] = {SO_SNDBUF, SO_RCVBUF}, socket = rsocket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in found;
    socklen_t length;

    for (int name = 0; name < 2; name++)
        for (int each = 0; each < 3; each++) {
            IS(rsetsockopt(socket, SOL_SOCKET, names[name], &sizes[each][0], sizeof number), 0);
            length = sizeof number;
            IS(rgetsockopt(socket, SOL_SOCKET, names[name], &number, &length), 0);
            IS(number, sizes[each][1]);
        }
    for (int name = 0; name < 4; name++) {
        number = 7 + name;
        IS(rsetsockopt(socket, SOL_RDMA, name, &number, sizeof number), 0);
        length = sizeof number;
        IS(rgetsockopt(socket, SOL_RDMA, name, &number, &length), 0);
        IS(number, 7 + name);
    }
    number = 1000;
    IS(rsetsockopt(socket, SOL_RDMA, RDMA_IOMAPSIZE, &number, sizeof number), 0);
    IS(rgetsockopt(socket, SOL_RDMA, RDMA_IOMAPSIZE, &number, &length), 0);
    IS(number, 128);
    IS(riomap(socket, room, sizeof room, PROT_WRITE, 0, 0), -1);
    IS(errno, EINVAL);
    IS(rsetsockopt(socket, SOL_RDMA, 4, &number, sizeof number), -1);
    IS(errno, ENOPROTOOPT);
    IS(rfcntl(socket, F_GETFL), 0);
    IS(rfcntl(socket, F_GETOWN), -1);
    IS(errno, EOPNOTSUPP);
    IS(rclose(socket), 0);
    IS(rsendto(caller, "", 0, 0, NULL, 0), 0);
    IS(rsendto(caller, "", 0, 0, (struct sockaddr *)&here, sizeof here), -1);
    IS(errno, EISCONN);
    IS(rsendto(caller, "", 0, 0, (struct sockaddr *)&here, 0), -1);
    IS(errno, EISCONN);
    IS(rrecv(caller, room, 0, 0), 0);
    /* A look that waits for all has what there is. */
    IS(rsend(peer, "xyz", 3, 0), 3);
    IS(rrecv(caller, room, 1, 0), 1);
    IS(rrecv(caller, room, 4, MSG_PEEK | MSG_WAITALL), 2);
    length = sizeof found;
    IS(rrecvfrom(caller, room, 1, 0, NULL, &length), 1);
    IS(rrecvfrom(caller, room, 4, 0, (struct sockaddr *)&found, &length), 1);
    IS(length, sizeof found);
    IS(found.sin_port, here.sin_port);
    memset(room, 0, sizeof room);
#endif
}

/* Memory that the peer writes: it has two entries for that, the caller none. */
static void mapped(void)
{
#ifndef KERNEL
    static char one[4096], large[1 << 20];
    static volatile char other[64];
    void *second = (void *)other;

    IS(riomap(caller, one, sizeof one, PROT_READ, 0, 0), -1);
    IS(errno, EINVAL);
    IS(riomap(peer, one, sizeof one, PROT_WRITE, 0, 0), -1);
    IS(errno, ENOMEM);
    IS(riomap(caller, one, sizeof one, PROT_WRITE, 0, 100), 100);
    IS(riomap(caller, second, sizeof other, PROT_WRITE, 0, -1), (long)second);
    IS(riomap(caller, large, sizeof large, PROT_WRITE, 0, 0), -1);
    IS(errno, ENOMEM);
    IS(riomap(caller, large, 8, 0, 0, 9000), 9000);
    /* The peer knows of them before it has what was written after that. */
    IS(rsend(caller, "m", 1, 0), 1);
    IS(rrecv(peer, room, 1, 0), 1);
    IS(riowrite(caller, "x", 1, 0, 0), 0);
    IS(riowrite(peer, "x", 1, 99, 0), 0);
    IS(riowrite(peer, "x", 1, 9000, 0), 0);
    IS(riowrite(peer, "abc", 3, 100, 0), 3);
    IS(riowrite(peer, "de", 2, 100 + sizeof one - 1, 0), 1);
    IS(riowrite(peer, "f", 1, (long)second + 7, 0), 1);
    /* No call looks for it, and none tells of it. */
    while (other[7] != 'f')
        ;
    IS(memcmp(one, "abc", 3), 0);
    IS(one[sizeof one - 1], 'd');
    IS(rrecv(caller, room, 1, MSG_DONTWAIT), -1);
    IS(errno, EAGAIN);
    /* An entry is free again, and more is written than there are requests and buffers. */
    IS(riounmap(caller, one, sizeof one - 1), -1);
    IS(errno, EINVAL);
    IS(riounmap(caller, large, 8), 0);
    IS(riounmap(caller, one, sizeof one), 0);
    IS(riomap(caller, large, sizeof large, PROT_WRITE, 0, 1 << 20), 1 << 20);
    IS(rsend(caller, "n", 1, 0), 1);
    IS(rrecv(peer, room, 1, 0), 1);
    for (int each = 0; each < 500; each++)
        IS(riowrite(peer, "g", 1, (1 << 20) + each, 0), 1);
    IS(riowrite(peer, large, sizeof large, 1 << 20, 0), sizeof large);
    IS(riowrite(peer, "h", 1, (long)second + 8, 0), 1);
    while (other[8] != 'h')
        ;
    IS(riowrite(peer, NULL, 1, 1 << 20, 0), -1);
    IS(errno, EINVAL);
    IS(riounmap(caller, large, sizeof large), 0);
    IS(riounmap(caller, second, sizeof other), 0);
    memset(room, 0, sizeof room);
#endif
}

int main(void)
{
    opened();
    options();
    connected();
    octets();
    own();
    mapped();
    ended();
    return !!failures;
}
