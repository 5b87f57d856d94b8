/*
 * A thread that polls now and then hears of what has come, also while another one waits within a call.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <unistd.h>
#include "../checks.h"

/* Calls with pauses of a millisecond, at most: a few would do. */
#define POLLS 500
/* Calls without a pause, before: nearly all of them stay out of Python. */
#define ALONE 2000

static char room[8];
static int sockets[2];
static volatile int waits;

static void *waiting(void *octets)
{
    waits = 1;
    IS(rrecv(sockets[1], octets, 3, 0), 3);
    return NULL;
}

/* Another process, as calls of this one would be seen: it sends when it is told by which. */
static void serve(int asked, int told)
{
    int listener = rsocket(AF_INET, SOCK_STREAM, 0), accepted[2];
    struct sockaddr_in here = {.sin_family = AF_INET};
    socklen_t length = sizeof here;
    char which;

    inet_pton(AF_INET, "127.0.0.1", &here.sin_addr);
    IS(rbind(listener, (struct sockaddr *)&here, sizeof here), 0);
    IS(rlisten(listener, 2), 0);
    IS(rgetsockname(listener, (struct sockaddr *)&here, &length), 0);
    IS(write(told, &here, sizeof here), sizeof here);
    for (int index = 0; index < 2; index++)
        accepted[index] = raccept(listener, NULL, NULL);
    while (read(asked, &which, 1) == 1) {
        IS(rsend(accepted[(int)which], "one", 3, 0), 3);
        IS(write(told, &which, 1), 1);
    }
    for (int index = 0; index < 2; index++)
        rclose(accepted[index]);
    exit(failures);
}

int main(void)
{
    int ask[2], tell[2], polls = 0;
    struct sockaddr_in there;
    pthread_t thread;
    char octets[3];

    IS(pipe(ask) || pipe(tell), 0);
    if (!fork()) {
        close(ask[1]);
        serve(ask[0], tell[1]);
    }
    IS(read(tell[0], &there, sizeof there), sizeof there);
    for (int index = 0; index < 2; index++) {
        sockets[index] = rsocket(AF_INET, SOCK_STREAM, 0);
        IS(rconnect(sockets[index], (struct sockaddr *)&there, sizeof there), 0);
    }
    /* In vain and alone, until the other waits. */
    for (int index = 0; index < ALONE; index++)
        rrecv(sockets[0], room, sizeof room, MSG_DONTWAIT);
    pthread_create(&thread, NULL, waiting, octets);
    while (!waits)
        rrecv(sockets[0], room, sizeof room, MSG_DONTWAIT);
    for (int index = 0; index < 20; index++) {
        rrecv(sockets[0], room, sizeof room, MSG_DONTWAIT);
        usleep(1000);
    }
    IS(write(ask[1], "\0", 1), 1);
    IS(read(tell[0], room, 1), 1);
    while (rrecv(sockets[0], room, sizeof room, MSG_DONTWAIT) < 0 && polls < POLLS) {
        polls++;
        usleep(1000);
    }
    IS(polls < POLLS, 1);
    IS(write(ask[1], "\1", 1), 1);
    pthread_join(thread, NULL);
    close(ask[1]);
    for (int index = 0; index < 2; index++)
        rclose(sockets[index]);
    return failures;
}
