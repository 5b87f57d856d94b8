/*
 * Posting: what is recorded without Python, and its order.  The arguments choose the stories: a line for each, and behind
 * it one for each check that fails.
 */
#include "../pairs.h"
#include <sched.h>
#include <semaphore.h>
#include <sys/syscall.h>

/* Of rdma/rdma_cma.h, which has another send(). */
int rdma_disconnect(void *id);
void *rdma_create_event_channel(void);

#define BYTES 64

static unsigned char memory[2][256][BYTES];
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *from, *to;

static void open_pair(void)
{

    open_device();
    mr = MADE(ibv_reg_mr(pd, memory, sizeof memory, RIGHTS));
    cq = queue(4096, NULL);
    from = queue_pair(cq);
    to = queue_pair(cq);
    join(from, to);
}

/* A thread that is on its way into Python to poll, or out of it: it attends, and stands still. */
static struct ibv_cq *polled;
static pthread_t poller;
static sem_t inside, released;
static __thread int stands;

static void stand(void)
{
    if (stands) {
        stands = 0;
        sem_post(&inside);
        sem_wait(&released);
    }
}

static void *attend(void *nothing)
{
    struct ibv_wc wc;

    stands = 1;
    /* Not each poll in vain enters. */
    while (stands) {
        int found = ibv_poll_cq(polled, 1, &wc);

        IS(found, context ? 0 : -1);
    }
    return nothing;
}

static void begin_attending(void (*volatile *where)(void))
{
    sem_init(&inside, 0, 0);
    sem_init(&released, 0, 0);
    *where = stand;
    polled = polled ? polled : queue(1, NULL);
    pthread_create(&poller, NULL, attend, NULL);
    sem_wait(&inside);
}

static void end_attending(void)
{
    sem_post(&released);
    pthread_join(poller, NULL);
}

static struct ibv_sge piece(int side, int slot)
{
    return (struct ibv_sge){(uintptr_t)memory[side][slot], BYTES, mr->lkey};
}

static int send(int slot, int opcode, int flags)
{
    struct ibv_sge own = piece(0, slot);
    struct ibv_send_wr wr = {.wr_id = slot, .sg_list = &own, .num_sge = 1, .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED | flags}, *bad = NULL;
    int result;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        own.length = 8;
        wr.wr.atomic.remote_addr = (uintptr_t)memory[1][slot];
        wr.wr.atomic.rkey = mr->rkey;
        wr.wr.atomic.compare_add = 5;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)memory[1][slot];
        wr.wr.rdma.rkey = mr->rkey;
    }
    wr.imm_data = htonl(slot + 1000);
    result = ibv_post_send(from, &wr, &bad);
    IS(bad == (result ? &wr : NULL), 1);
    return result;
}

static int take_from(struct ibv_srq *srq, int slot)
{
    struct ibv_sge own = piece(1, slot);
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &own, .num_sge = 1}, *bad = NULL;
    int result = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(to, &wr, &bad);

    IS(bad == (result ? &wr : NULL), 1);
    return result;
}

static int take(int slot)
{
    return take_from(NULL, slot);
}

/* The next completion, whatever time it takes. */
static struct ibv_wc next(void)
{
    struct ibv_wc wc = {0};
    int found;

    while (!(found = ibv_poll_cq(cq, 1, &wc)))
        ;
    IS(found, 1);
    return wc;
}

/* The next completions of one of the queue pairs, in order; the others' are counted. */
static int flushed(struct ibv_qp *qp, int first, int count, int status)
{
    int others = 0;

    for (int number = first; number < first + count && !failures;) {
        struct ibv_wc wc = next();

        if (wc.qp_num != qp->qp_num) {
            others++;
            continue;
        }
        IS(wc.status, status);
        IS(wc.wr_id, number++);
    }
    return others;
}

/* A receive that takes the place of the one that a poll has found: no entry of its own, also where the queue is full. */
static void replaced(void)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 64, .max_sge = 1}};
    struct ibv_qp_init_attr own = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 2, .max_recv_wr = 64, 1, 1}};

    open_device();
    mr = MADE(ibv_reg_mr(pd, memory, sizeof memory, RIGHTS));
    own.send_cq = own.recv_cq = cq = queue(4096, NULL);
    for (int round = 0; round < 2; round++) {
        struct ibv_srq *srq = round ? MADE(ibv_create_srq(pd, &attr)) : NULL;
        int depth;

        from = MADE(ibv_create_qp(pd, &own));
        own.srq = srq;
        to = MADE(ibv_create_qp(pd, &own));
        join(from, to);
        /* The second message waits for the receive that was left to a poll: the thread that serves peers posts it. */
        memory[0][1][0] = 100 + round;
        IS(take_from(srq, 0), 0);
        IS(send(0, IBV_WR_SEND, 0) + send(1, IBV_WR_SEND, 0), 0);
        for (int found = 0, received = 0; found < 4 && !failures; found++)
            if (next().qp_num == to->qp_num && !received++) {
                IS(take_from(srq, 1), 0);
                while (*(volatile unsigned char *)memory[1][1] != 100 + round)
                    sched_yield();
            }
        for (depth = 0; !take_from(srq, depth); depth++)
            ;
        IS(depth >= 64, 1);
        for (int number = 0; number < 300 && !failures; number++) {
            int slot = number % depth;

            memory[0][0][0] = (unsigned char)number;
            IS(send(0, IBV_WR_SEND, 0), 0);
            for (int found = 0; found < 2 && !failures; found++) {
                struct ibv_wc wc = next();
                long before = entries;

                IS(wc.status, IBV_WC_SUCCESS);
                if (wc.qp_num != to->qp_num)
                    continue;
                IS(wc.wr_id, slot);
                IS(memory[1][slot][0], (unsigned char)number);
                IS(take_from(srq, slot), 0);
                IS(entries - before, 0);
            }
        }
        /* What is called between the two may arm: nothing is left to a poll that may not come. */
        IS(send(0, IBV_WR_SEND, 0), 0);
        for (int found = 0; found < 2 && !failures; found++)
            if (next().qp_num == to->qp_num) {
                long before;

                IS(ibv_req_notify_cq(cq, 0), 0);
                before = entries;
                IS(take_from(srq, 0), 0);
                IS(entries - before, 1);
            }
        /* The queue is full again. */
        IS(ibv_poll_cq(cq, 0, NULL), 0);
        IS(!!take_from(srq, 0), 1);
        IS(ibv_destroy_qp(from) + ibv_destroy_qp(to), 0);
        if (srq)
            IS(ibv_destroy_srq(srq), 0);
    }
}

/* Whoever posts while another attends does not enter Python; that one takes all, in order, with its octets. */
static void attended(void)
{
    static const int kinds[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM,
                                IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    long before;
    int sent = 0, received = 0;

    open_pair();
    /* Its path is found, and its limits are set. */
    IS(take(200), 0);
    IS(send(200, IBV_WR_SEND, 0), 0);
    next();
    next();
    begin_attending(&entering);
    before = entries;
    for (int slot = 0; slot < 48; slot++) {
        int kind = kinds[slot % 6], inlined = slot < 24 && slot % 6 < 4 ? IBV_SEND_INLINE : 0;

        memset(memory[0][slot], slot + 1, BYTES);
        memset(memory[1][slot], slot % 6 > 3 ? slot + 101 : 0, BYTES);
        if (slot % 6 == 0 || slot % 6 == 2 || slot % 6 == 3)
            IS(take(slot), 0);
        IS(send(slot, kind, inlined), 0);
        /* The octets were copied. */
        if (inlined)
            memset(memory[0][slot], 255, BYTES);
    }
    IS(entries - before, 0);
    end_attending();
    while ((sent < 48 || received < 24) && !failures) {
        struct ibv_wc wc = next();
        int slot = wc.wr_id;

        IS(wc.status, IBV_WC_SUCCESS);
        if (wc.qp_num == from->qp_num) {
            IS(slot, sent++);
            continue;
        }
        IS(slot, received / 3 * 6 + received % 3 + !!(received % 3));
        received++;
        if (slot % 6)
            IS(ntohl(wc.imm_data), slot + 1000);
    }
    for (int slot = 0; slot < 48; slot++) {
        int side = slot % 6 < 4, value = slot % 6 < 4 ? slot + 1 : slot + 101;

        /* A SEND's octets are in the receive, which has the same place. */
        for (int octet = 0; octet < (slot % 6 == 5 ? 8 : BYTES); octet++)
            IS(memory[side][slot][octet], value);
        if (slot % 6 == 5)
            IS(memory[1][slot][0], value + 5);
    }
}

#define BURST 8

/* Posts without a pause between them, of WRITEs whose octets are the round's: how many entries that took. */
static long burst(int round, int count)
{
    long before = entries;

    for (int slot = 0; slot < count; slot++) {
        memory[0][slot][0] = round;
        IS(send(slot, IBV_WR_RDMA_WRITE, 0), 0);
    }
    return entries - before;
}

static void written(int round, int count)
{
    IS(flushed(from, 0, count, IBV_WC_SUCCESS), 0);
    for (int slot = 0; slot < count; slot++)
        IS(memory[1][slot][0], round);
}

/* A burst that takes so many entries, after others: where another thread takes the processor, it does not. */
static int burst_of(int count, long wanted)
{
    static int round;

    for (;;) {
        for (int number = 0; number < 2; number++) {
            burst(++round % 250, BURST);
            written(round % 250, BURST);
        }
        if (burst(++round % 250, count) == wanted || failures)
            return round % 250;
        written(round % 250, count);
    }
}

/* A program that posts, and polls, several at once enters Python once for all of them; and none is left behind. */
static void bursts(void)
{
    struct ibv_cq *other;
    struct ibv_wc wc;
    long before;
    int round;

    open_pair();
    other = queue(1, NULL);
    written(burst_of(BURST, 1), BURST);
    /* A shorter one: the next poll takes it, also one that finds nothing. */
    round = burst_of(BURST / 2, 0);
    before = entries;
    IS(ibv_poll_cq(other, 1, &wc), 0);
    IS(entries - before > 0, 1);
    written(round, BURST / 2);
    /* No poll: the thread that serves peers takes it. */
    round = burst_of(BURST / 2, 0);
    while (*(volatile unsigned char *)memory[1][BURST / 2 - 1] != round)
        sched_yield();
    written(round, BURST / 2);
    /* A pause: what was left is taken with what comes then. */
    round = burst_of(BURST / 2, 0);
    usleep(1000);
    IS(send(BURST, IBV_WR_RDMA_WRITE, 0), 0);
    written(round, BURST / 2);
    IS(flushed(from, BURST, 1, IBV_WC_SUCCESS), 0);
    /* That thread has gone to sleep, and nothing would wake it: nothing is left to it. */
    for (int number = 0; number < 2; number++) {
        burst(number + 251, BURST);
        written(number + 251, BURST);
    }
    usleep(50000);
    burst(253, BURST / 2);
    while (*(volatile unsigned char *)memory[1][BURST / 2 - 1] != 253)
        sched_yield();
    written(253, BURST / 2);
}

/* A thread that comes back after a pause, in which it may have looked at its memory, yields the processor behind its post. */
static __thread long yields;

int sched_yield(void)
{
    yields++;
    return syscall(SYS_sched_yield);
}

static void pauses(void)
{
    long before;

    open_pair();
    for (int slot = 0; slot < 3; slot++) {
        usleep(2000);
        before = yields;
        IS(send(slot, IBV_WR_RDMA_WRITE, 0), 0);
        IS(yields - before > 0, 1);
    }
    IS(flushed(from, 0, 3, IBV_WC_SUCCESS), 0);
}

/* The thread that attends is on its way out of Python, and looks once more. */
static void last(void)
{
    struct ibv_wc wc;
    long before;

    open_pair();
    move(to, IBV_QPS_ERR);
    IS(take(0), 0);
    flushed(to, 0, 1, IBV_WC_WR_FLUSH_ERR);
    begin_attending(&leaving);
    before = entries;
    IS(take(1), 0);
    IS(entries - before, 0);
    end_attending();
    before = entries;
    IS(ibv_poll_cq(cq, 1, &wc), 1);
    IS(wc.wr_id, 1);
    IS(entries - before, 0);
}

/* Another thread was to take a receive: whatever is called comes after it. */
static void calls(void)
{
    struct ibv_wc wc;
    long before;

    open_pair();
    move(to, IBV_QPS_ERR);
    IS(take(0), 0);
    flushed(to, 0, 1, IBV_WC_WR_FLUSH_ERR);
    begin_attending(&entering);
    for (int number = 0; number < 4; number++) {
        before = entries;
        IS(take(number), 0);
        IS(entries - before, 0);
        if (number == 0)
            IS(ibv_req_notify_cq(cq, 0), 0);
        else if (number == 1)
            IS(ibv_dereg_mr(mr), 0);
        else if (number == 2)
            IS(rdma_disconnect(NULL), -1);
        else
            IS(rdma_create_event_channel() != NULL, 1);
        before = entries;
        IS(ibv_poll_cq(cq, 1, &wc), 1);
        IS(wc.wr_id, number);
        IS(entries - before, 0);
    }
    end_attending();
}

/* Another thread was to take a request when the process ends. */
static int ending;

static void check_written(void)
{
    IS(!ending || memory[1][0][BYTES - 1] == 7, 1);
    if (failures) {
        fflush(stdout);
        _exit(1);
    }
}

static void ends(void)
{
    long before;

    open_pair();
    IS(send(1, IBV_WR_RDMA_WRITE, 0), 0);
    next();
    begin_attending(&entering);
    memset(memory[0][0], 7, BYTES);
    ending = 1;
    before = entries;
    IS(send(0, IBV_WR_RDMA_WRITE, 0), 0);
    IS(entries - before, 0);
    exit(!!failures);
}

/* What a post refuses is refused in place, and what is before it in the list is posted, after what was recorded. */
static void refusals(void)
{
    struct ibv_sge own[] = {{0, BYTES, 0}, {0, BYTES, 0}, {0, BYTES, 0}};
    struct ibv_send_wr list[4], *bad = NULL;
    struct ibv_recv_wr receives[3], *unwanted = NULL;

    open_pair();
    for (int index = 0; index < 3; index++)
        own[index] = piece(0, index);
    IS(ibv_post_send(from, NULL, &bad), EINVAL);
    IS(ibv_post_recv(to, NULL, &unwanted), EINVAL);
    for (int round = 0; round < 4; round++) {
        memset(list, 0, sizeof list);
        for (int index = 0; index < 4; index++)
            list[index] = (struct ibv_send_wr){.wr_id = index, .sg_list = own, .num_sge = 1,
                                               .next = index < 3 ? list + index + 1 : NULL,
                                               .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                                               .wr.rdma = {(uintptr_t)memory[1], mr->rkey}};
        bad = NULL;
        /* Too many elements, too much inline, no such operation, no list. */
        if (round == 0)
            list[2].num_sge = 3;
        else if (round == 1)
            list[2].num_sge = 2, list[2].send_flags |= IBV_SEND_INLINE;
        else if (round == 2)
            list[2].opcode = 77;
        else
            list[2].sg_list = NULL;
        IS(ibv_post_send(from, list, &bad), EINVAL);
        IS(bad - list, 2);
        IS(flushed(from, 0, 2, IBV_WC_SUCCESS), 0);
    }
    /* Memory that is not there, and none at all. */
    list[0].next = NULL;
    list[0].send_flags |= IBV_SEND_INLINE;
    own[0].addr = 8;
    IS(ibv_post_send(from, list, &bad), EFAULT);
    IS(bad == list, 1);
    list[0].num_sge = 0;
    IS(ibv_post_send(from, list, &bad), 0);
    IS(flushed(from, 0, 1, IBV_WC_SUCCESS), 0);
    /* A full queue, of those that take none of the peer's receives. */
    for (int index = 0; index < 64; index++)
        IS(send(index, IBV_WR_SEND, 0), 0);
    IS(send(64, IBV_WR_SEND, 0), ENOMEM);
    for (int index = 0; index < 64; index++)
        IS(take(index), 0);
    IS(flushed(from, 0, 64, IBV_WC_SUCCESS), 64);
    for (int index = 0; index < 3; index++)
        receives[index] = (struct ibv_recv_wr){.wr_id = index, .sg_list = own, .num_sge = index < 2 ? 1 : 9,
                                               .next = index < 2 ? receives + index + 1 : NULL};
    IS(ibv_post_recv(to, receives, &unwanted), EINVAL);
    IS(unwanted - receives, 2);
    for (int index = 2; index < 256; index++)
        IS(take(index), 0);
    IS(take(256 % 256), ENOMEM);
    move(to, IBV_QPS_ERR);
    flushed(to, 0, 256, IBV_WC_WR_FLUSH_ERR);
    move(from, IBV_QPS_RESET);
    IS(send(0, IBV_WR_SEND, 0), EINVAL);
    move(to, IBV_QPS_RESET);
    IS(take(0), EINVAL);
}

/* A key that is not there is an error of the completion. */
static void keys(void)
{
    struct ibv_wc wc;

    open_pair();
    mr->rkey ^= 64;
    IS(send(7, IBV_WR_RDMA_WRITE, 0), 0);
    wc = next();
    IS(wc.status, IBV_WC_REM_ACCESS_ERR);
    IS(wc.wr_id, 7);
}

/* A queue pair changes its state, and is destroyed, with requests that Python has not seen. */
static void changes(void)
{
    struct ibv_context *closed;
    union ibv_gid gid;
    struct ibv_recv_wr wr = {0}, *bad;
    struct ibv_send_wr request = {0}, *wrong;
    struct ibv_wc wc;

    open_pair();
    gid = own_gid();
    IS(take(0), 0);
    IS(send(0, IBV_WR_SEND, 0), 0);
    next();
    next();
    begin_attending(&entering);
    /* It was posted before the reset: it comes, but its own completion does not. */
    IS(take(100), 0);
    IS(send(100, IBV_WR_SEND, 0), 0);
    move(from, IBV_QPS_RESET);
    IS(flushed(to, 100, 1, IBV_WC_SUCCESS), 0);
    for (int index = 0; index < 8; index++)
        IS(take(index), 0);
    move(to, IBV_QPS_ERR);
    for (int index = 8; index < 16; index++)
        IS(take(index), 0);
    flushed(to, 0, 16, IBV_WC_WR_FLUSH_ERR);
    IS(take(16), 0);
    move(to, IBV_QPS_RESET);
    IS(ibv_poll_cq(cq, 1, &wc), 0);
    move(to, IBV_QPS_INIT);
    IS(take(17), 0);
    IS(take(18), 0);
    IS(ibv_destroy_qp(to), 0);
    IS(ibv_post_recv(to, &wr, &bad), EINVAL);
    /* The first one sets its limit. */
    move(from, IBV_QPS_INIT);
    connect_to(from, to->qp_num, &gid);
    for (int index = 0; index < 8; index++)
        IS(send(index, IBV_WR_SEND, 0), 0);
    closed = context;
    context = NULL;
    IS(ibv_close_device(closed), 0);
    IS(ibv_post_send(from, &request, &wrong), EINVAL);
    end_attending();
}

/* More than the records have room for goes to Python, in order. */
static void bound(void)
{
    static struct ibv_qp *several[16];
    long before;

    open_pair();
    for (int each = 0; each < 16; each++) {
        several[each] = to = queue_pair(cq);
        move(to, IBV_QPS_INIT);
        IS(take(255), 0);
    }
    begin_attending(&entering);
    before = entries;
    for (int each = 0; each < 16; each++) {
        to = several[each];
        for (int slot = 0; slot < 128; slot++)
            IS(take(slot), 0);
    }
    IS(entries > before && entries - before < 8, 1);
    for (int each = 0; each < 16; each++) {
        to = several[each];
        move(to, IBV_QPS_ERR);
        IS(flushed(to, 255, 1, IBV_WC_WR_FLUSH_ERR), 0);
        IS(flushed(to, 0, 128, IBV_WC_WR_FLUSH_ERR), 0);
    }
    end_attending();
}

/* Receives of a shared queue. */
static void shared(void)
{
    struct ibv_srq_init_attr wanted = {.attr = {64, 1, 0}};
    struct ibv_srq *srq;
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {64, 0, 1, 0, 0}};
    struct ibv_srq_attr smaller = {32, 1, 0};
    struct ibv_sge own;
    struct ibv_recv_wr wr = {.sg_list = &own, .num_sge = 1}, *bad = NULL;
    long before;

    open_pair();
    srq = attr.srq = MADE(ibv_create_srq(pd, &wanted));
    attr.send_cq = attr.recv_cq = cq;
    from = MADE(ibv_create_qp(pd, &attr));
    to = MADE(ibv_create_qp(pd, &attr));
    join(from, to);
    begin_attending(&entering);
    before = entries;
    own = piece(1, 0);
    for (int slot = 0; slot < 40; slot++) {
        wr.wr_id = slot;
        IS(ibv_post_srq_recv(srq, &wr, &bad), 0);
    }
    IS(entries - before, 0);
    IS(ibv_modify_srq(srq, &smaller, IBV_SRQ_MAX_WR), EINVAL);
    smaller.max_wr = 41;
    IS(ibv_modify_srq(srq, &smaller, IBV_SRQ_MAX_WR), 0);
    wr.wr_id = 40;
    IS(ibv_post_srq_recv(srq, &wr, &bad), 0);
    IS(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
    IS(bad == &wr, 1);
    end_attending();
    for (int slot = 0; slot < 41; slot++)
        IS(send(slot, IBV_WR_SEND, 0), 0);
    flushed(to, 0, 41, IBV_WC_SUCCESS);
    IS(ibv_post_srq_recv(srq, &wr, &bad), 0);
    IS(ibv_destroy_qp(from), 0);
    IS(ibv_destroy_qp(to), 0);
    IS(ibv_destroy_srq(srq), 0);
    IS(ibv_post_srq_recv(srq, &wr, &bad), EINVAL);
}

/* Threads that post to one queue: each request is flushed once, in the order of its thread. */
#define THREADS 4
#define WAITING 1000

static volatile long waiting;
static long posts;
static pthread_barrier_t start;

static void *post_many(void *thread)
{
    pthread_barrier_wait(&start);
    for (long index = 0; index < posts && !failures; index++) {
        struct ibv_recv_wr wr = {.wr_id = (uintptr_t)thread * posts + index}, *bad;

        /* The completion queue has room for no more. */
        while (__atomic_load_n(&waiting, __ATOMIC_RELAXED) > WAITING && !failures)
            sched_yield();
        __atomic_add_fetch(&waiting, 1, __ATOMIC_RELAXED);
        IS(ibv_post_recv(to, &wr, &bad), 0);
    }
    return NULL;
}

static void begin_posting(pthread_t *posters, long each)
{
    posts = each;
    pthread_barrier_init(&start, NULL, THREADS);
    for (uintptr_t thread = 0; thread < THREADS; thread++)
        pthread_create(posters + thread, NULL, post_many, (void *)thread);
}

static void end_posting(pthread_t *posters)
{
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(posters[thread], NULL);
}

static void take_all(void)
{
    long following[THREADS] = {0};

    for (int done = 0; done < THREADS * posts && !failures; done++) {
        struct ibv_wc wc = next();

        IS(wc.status, IBV_WC_WR_FLUSH_ERR);
        IS(wc.wr_id < THREADS * posts, 1);
        IS(wc.wr_id % posts, following[wc.wr_id / posts % THREADS]++);
        __atomic_sub_fetch(&waiting, 1, __ATOMIC_RELAXED);
    }
}

static void threads(void)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 2048, 1, 1, 0}};
    pthread_t posters[THREADS];
    long before;

    open_pair();
    attr.send_cq = attr.recv_cq = cq;
    to = MADE(ibv_create_qp(pd, &attr));
    move(to, IBV_QPS_INIT);
    move(to, IBV_QPS_ERR);
    /* All in C, at the same time. */
    begin_attending(&entering);
    for (int round = 0; round < 50; round++) {
        before = entries;
        begin_posting(posters, 200);
        end_posting(posters);
        IS(entries - before, 0);
        take_all();
    }
    end_attending();
    begin_posting(posters, 2000);
    take_all();
    end_posting(posters);
}

int main(int count, char **words)
{
    int failed = 0;

    /* Before the library's: it is called after that. */
    atexit(check_written);
    static const struct {
        const char *name;
        void (*run)(void);
    } stories[] = {{"attended", attended}, {"replaced", replaced}, {"bursts", bursts}, {"pauses", pauses}, {"last", last},
                   {"calls", calls}, {"ends", ends}, {"refusals", refusals}, {"keys", keys}, {"changes", changes},
                   {"bound", bound}, {"shared", shared}, {"threads", threads}};

    for (int word = 1; word < count; word++)
        for (unsigned index = 0; index < sizeof stories / sizeof *stories; index++)
            if (!strcmp(words[word], stories[index].name)) {
                printf("= %s\n", words[word]);
                fflush(stdout);
                failed |= failures;
                failures = 0;
                /* That of a device which may be closed. */
                polled = NULL;
                memset(memory, 0, sizeof memory);
                stories[index].run();
            }
    return failed || failures;
}
