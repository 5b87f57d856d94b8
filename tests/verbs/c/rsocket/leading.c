/*
 * As librspreload of rdma-core after 64, which leads epoll(7), too.
 */
#include <sys/epoll.h>

int repoll_create(int flags);
int repoll_ctl(int set, int operation, int socket, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int most, int timeout);

int epoll_create1(int flags)
{
    return repoll_create(flags);
}

int epoll_ctl(int set, int operation, int fd, struct epoll_event *event)
{
    return repoll_ctl(set, operation, fd, event);
}

int epoll_wait(int set, struct epoll_event *events, int most, int timeout)
{
    return repoll_wait(set, events, most, timeout);
}
