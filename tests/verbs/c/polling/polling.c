/*
 * Polling: what it costs, and its order.  One line for each check that fails; the first argument chooses the story, the
 * others say how much of it.
 */
#include "../pairs.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 16
#define BYTES 64
#define MOST_QUEUES 16
#define MOST_OCTETS (1 << 20)

static volatile long wanted;

/* Of so many polls in vain few enter Python, but some do. */
static void empty(long polls)
{
    struct ibv_cq *cq = queue(8, NULL);
    struct ibv_wc wc;
    long before = entries, found = 0, ticks;
    struct timespec begun, ended, tick;

    clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
    clock_gettime(CLOCK_MONOTONIC_COARSE, &begun);
    for (long index = 0; index < polls; index++)
        found += ibv_poll_cq(cq, 1, &wc);
    IS(found, 0);
    IS(entries - before >= polls / 4096, 1);
    /* Each tick of the clock ends a pause: many, where other processes have the processor. */
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ended);
    ticks = ((ended.tv_sec - begun.tv_sec) * 1000000000 + ended.tv_nsec - begun.tv_nsec) / tick.tv_nsec;
    IS((entries - before - ticks) * 50 < polls, 1);
}

/*
 * While the rings tell that nothing has come polls in vain do not enter Python, behind the first: without that each would,
 * so soon after a message.  Another process may take the processor meanwhile, and the thread that watches the rings rests.
 */
static void quiet(void)
{
    struct ibv_cq *cq = queue(8, NULL);
    struct ibv_qp *from = queue_pair(cq), *to = queue_pair(cq);
    struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_wc wc;
    long before;

    join(from, to);
    do {
        IS(receive(to, 1), 0);
        IS(ibv_post_send(from, &wr, &bad), 0);
        for (int found = 0; found < 2;)
            found += ibv_poll_cq(cq, 1, &wc);
        before = entries;
        for (int index = 0; index < 32; index++)
            IS(ibv_poll_cq(cq, 1, &wc), 0);
    } while (entries - before > 2 && !failures);
}

/* The same, of an extended queue. */
static void extended(void)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *cq = MADE(ibv_create_cq_ex(context, &attr));
    struct ibv_qp *qp = flushing(ibv_cq_ex_to_cq(cq));
    struct ibv_poll_cq_attr none = {0}, wrong = {1};
    struct ibv_wc wc;
    long before;

    IS(ibv_next_poll(cq), EINVAL);
    /* Progress, which begins the count of polls without it anew. */
    IS(ibv_start_poll(cq, &none), ENOENT);
    for (int index = 0; index < 4; index++)
        IS(receive(qp, index), 0);
    before = entries;
    IS(ibv_start_poll(cq, &none), 0);
    for (int index = 0; index < 3; index++) {
        IS(cq->wr_id, index);
        IS(cq->status, IBV_WC_WR_FLUSH_ERR);
        IS(ibv_wc_read_qp_num(cq), qp->qp_num);
        IS(index == 2 || !ibv_next_poll(cq), 1);
    }
    ibv_end_poll(cq);
    IS(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc), 1);
    IS(entries - before, 0);
    IS(wc.wr_id, 3);
    IS(ibv_start_poll(cq, &none), ENOENT);
    IS(ibv_start_poll(cq, &wrong), EINVAL);
    IS(ibv_wc_read_qp_num(cq), 0);
    IS(receive(qp, 7), 0);
    IS(ibv_start_poll(cq, &none), 0);
    IS(ibv_next_poll(cq), ENOENT);
    IS(ibv_wc_read_qp_num(cq), qp->qp_num);
    ibv_end_poll(cq);
    IS(ibv_wc_read_qp_num(cq), 0);
    IS(ibv_destroy_qp(qp), 0);
}

/* Threads that poll one extended queue: between start_poll and end_poll the present completion is a thread's own. */
static struct ibv_cq_ex *shared;
static int seen[1 << 16];
static volatile long taken;

static void *take_some(void *nothing)
{
    struct ibv_poll_cq_attr attr = {0};

    while (taken < wanted && !failures) {
        int rc = ibv_start_poll(shared, &attr);

        if (rc == ENOENT)
            continue;
        IS(rc, 0);
        for (int more = 3; !rc; rc = more-- ? ibv_next_poll(shared) : ENOENT) {
            uint64_t number = shared->wr_id;

            sched_yield();
            IS(shared->wr_id, number);
            IS(shared->status, IBV_WC_WR_FLUSH_ERR);
            __atomic_add_fetch(seen + number, 1, __ATOMIC_RELAXED);
            __atomic_add_fetch(&taken, 1, __ATOMIC_RELAXED);
        }
        ibv_end_poll(shared);
    }
    return nothing;
}

static void together(long rounds, int threads)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 256, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_init_attr_ex alone = {.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS,
                                        .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
                                        .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
    struct ibv_poll_cq_attr none = {0};
    struct ibv_qp *qp;
    pthread_t pollers[threads];
    long next = 0;

    shared = MADE(ibv_create_cq_ex(context, &attr));
    qp = flushing(ibv_cq_ex_to_cq(shared));
    wanted = rounds * 100;
    for (int each = 0; each < threads; each++)
        pthread_create(pollers + each, NULL, take_some, NULL);
    while (next < wanted && !failures) {
        for (int index = 0; index < 100; index++)
            IS(receive(qp, next++), 0);
        while (taken < next && !failures)
            sched_yield();
    }
    for (int each = 0; each < threads; each++)
        pthread_join(pollers[each], NULL);
    for (long number = 0; number < wanted && !failures; number++)
        IS(seen[number], 1);
    /* A batch that was left, as by siglongjmp(3), is no hindrance to its thread. */
    IS(receive(qp, 1) + receive(qp, 2), 0);
    IS(ibv_start_poll(shared, &none), 0);
    IS(ibv_start_poll(shared, &none), 0);
    IS(shared->wr_id, 2);
    ibv_end_poll(shared);
    /* The program's word that nothing is shared is taken. */
    shared = MADE(ibv_create_cq_ex(context, &alone));
    IS(ibv_start_poll(shared, &none), ENOENT);
    IS(ibv_destroy_qp(qp), 0);
}

/* What is in the ring is taken without Python, the rest follows in order; each once. */
static void order(void)
{
    struct ibv_cq *cq = queue(256, NULL);
    struct ibv_qp *qp = flushing(cq);
    struct ibv_wc wc[100];
    long before;
    int next = 0, found;

    for (int index = 0; index < 200; index++)
        IS(receive(qp, index), 0);
    before = entries;
    for (int index = 0; index < 10; index++)
        IS(ibv_poll_cq(cq, 1, wc) == 1 && wc->wr_id == next++ && wc->status == IBV_WC_WR_FLUSH_ERR, 1);
    IS(entries - before, 0);
    IS(ibv_poll_cq(cq, 0, wc), 0);
    while ((found = ibv_poll_cq(cq, 100, wc)) > 0)
        for (int index = 0; index < found; index++)
            IS(wc[index].wr_id, next++);
    IS(next, 200);
    IS(ibv_poll_cq(cq, -1, wc) < 0, 1);
    /* A program that makes its own completions makes progress all the same. */
    before = entries;
    for (int index = 0; index < 64; index++) {
        IS(receive(qp, index), 0);
        IS(ibv_poll_cq(cq, 4, wc), 1);
    }
    IS(entries - before >= 64, 1);
    extended();
    IS(ibv_destroy_qp(qp), 0);
}

/* What a queue holds does not count what was taken; a lost completion is told; a resize and a reset find the rest. */
static void bounds(void)
{
    struct ibv_cq *cq = queue(4, NULL);
    struct ibv_qp *qp = flushing(cq);
    struct ibv_async_event event;
    struct ibv_wc wc[8];

    for (int round = 0; round < 3; round++) {
        for (int index = 0; index < 4; index++)
            IS(receive(qp, index), 0);
        IS(ibv_poll_cq(cq, 3, wc), 3);
        for (int index = 4; index < 7; index++)
            IS(receive(qp, index), 0);
        IS(ibv_resize_cq(cq, 3), EINVAL);
        IS(ibv_poll_cq(cq, 8, wc), 4);
        for (int index = 0; index < 4; index++)
            IS(wc[index].wr_id, 3 + index);
    }
    for (int index = 0; index < 3; index++)
        IS(receive(qp, index), 0);
    IS(ibv_poll_cq(cq, 1, wc), 1);
    IS(ibv_resize_cq(cq, 1), EINVAL);
    IS(ibv_resize_cq(cq, 2), 0);
    IS(receive(qp, 3), 0);
    IS(ibv_get_async_event(context, &event), 0);
    IS(event.event_type, IBV_EVENT_CQ_ERR);
    ibv_ack_async_event(&event);
    IS(ibv_poll_cq(cq, 8, wc), 2);
    IS(wc[0].wr_id * 10 + wc[1].wr_id, 12);
    IS(receive(qp, 5), 0);
    move(qp, IBV_QPS_RESET);
    IS(ibv_poll_cq(cq, 8, wc), 0);
    move(qp, IBV_QPS_INIT);
    move(qp, IBV_QPS_ERR);
    IS(receive(qp, 6), 0);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(cq), 0);
    for (int index = 0; index < 200; index++)
        IS(ibv_poll_cq(cq, 8, wc), -1);
}

/* An event comes after its completion, which a poll in C finds at once. */
static void events(int rounds)
{
    struct ibv_comp_channel *channel = MADE(ibv_create_comp_channel(context));
    struct ibv_cq *cq = queue(8, channel), *found;
    struct ibv_qp *qp = flushing(cq);
    struct ibv_wc wc;
    void *own;

    for (int index = 0; index < rounds; index++) {
        IS(ibv_req_notify_cq(cq, 0), 0);
        IS(ibv_poll_cq(cq, 1, &wc), 0);
        IS(receive(qp, index), 0);
        IS(ibv_get_cq_event(channel, &found, &own), 0);
        IS(found == cq, 1);
        IS(ibv_poll_cq(cq, 1, &wc), 1);
        IS(wc.wr_id, index);
        IS(ibv_poll_cq(cq, 1, &wc), 0);
    }
    ibv_ack_cq_events(cq, rounds);
}

/* One thread polls while another posts, resizes, and destroys the queue pairs. */
static struct ibv_cq *watched;
static volatile long polled;

static void *watch(void *nothing)
{
    struct ibv_wc wc[8];
    long next = 0;
    int found;

    while (next != wanted && !failures) {
        IS((found = ibv_poll_cq(watched, 8, wc)) >= 0, 1);
        for (int index = 0; index < found; index++)
            IS(wc[index].wr_id, next++);
        polled = next;
    }
    return nothing;
}

static void changes(int rounds)
{
    pthread_t thread;
    long next = 0;

    watched = queue(256, NULL);
    wanted = rounds * 100L;
    pthread_create(&thread, NULL, watch, NULL);
    for (int round = 0; round < rounds && !failures; round++) {
        struct ibv_qp *qp = flushing(watched);

        for (int index = 0; index < 100; index++) {
            /* A queue that overflows loses completions. */
            while (ibv_resize_cq(watched, 200 + index % 50))
                sched_yield();
            IS(receive(qp, next++), 0);
        }
        /* The next ones find room. */
        while (ibv_resize_cq(watched, 100))
            sched_yield();
        /* What it has completed goes with a queue pair. */
        while (polled != next && !failures)
            sched_yield();
        IS(ibv_destroy_qp(qp), 0);
    }
    pthread_join(thread, NULL);
    IS(ibv_destroy_cq(watched), 0);
}

/* Under fire: a sender for each queue, and threads that poll all queues of the receivers. */
static struct line {
    struct ibv_cq *sends, *receives;
    struct ibv_qp *from, *to;
    struct ibv_mr *mr;
    unsigned char memory[2][SLOTS][BYTES];
    unsigned char *seen;
    volatile long left, sent;
} lines[MOST_QUEUES];
static int queues;
/* Of each queue: as many at most, and none after that time has passed. */
static long messages;
static time_t last_second;

static void fill(unsigned char *octets, int line, uint32_t number)
{
    uint32_t value = number * 2654435761u + line;

    memcpy(octets, &number, sizeof number);
    for (int index = sizeof number; index < BYTES; index++)
        octets[index] = value = value * 1103515245 + 12345;
}

static void post_receive(struct line *line, uint64_t slot)
{
    struct ibv_sge piece = {(uintptr_t)line->memory[1][slot], BYTES, line->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &piece, .num_sge = 1}, *bad;

    IS(ibv_post_recv(line->to, &wr, &bad), 0);
}

static void *sender(void *argument)
{
    struct line *line = argument;
    struct ibv_wc wc[4];
    long posted = 0, done = 0, most = messages;
    int found;

    while (done < most && !failures) {
        if (posted < most && last_second && time(NULL) > last_second) {
            most = posted;
            __atomic_sub_fetch(&line->left, messages - most, __ATOMIC_RELAXED);
        }
        if (posted < most && posted - done < SLOTS) {
            struct ibv_sge piece = {(uintptr_t)line->memory[0][posted % SLOTS], BYTES, line->mr->lkey};
            struct ibv_send_wr wr = {.wr_id = posted, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED}, *bad;

            fill(line->memory[0][posted % SLOTS], line - lines, posted);
            IS(ibv_post_send(line->from, &wr, &bad), 0);
            posted++;
            continue;
        }
        IS((found = ibv_poll_cq(line->sends, 4, wc)) >= 0, 1);
        for (int index = 0; index < found; index++) {
            IS(wc[index].status, IBV_WC_SUCCESS);
            IS(wc[index].wr_id, done++);
        }
    }
    line->sent = done;
    return NULL;
}

static void *receiver(void *nothing)
{
    long last[MOST_QUEUES];
    int open = 1, found;

    memset(last, 255, sizeof last);
    while (open && !failures) {
        open = 0;
        for (int each = 0; each < queues; each++) {
            struct line *line = lines + each;
            struct ibv_wc wc[4];

            open |= line->left > 0;
            IS((found = ibv_poll_cq(line->receives, 4, wc)) >= 0, 1);
            for (int index = 0; index < found; index++) {
                unsigned char *octets = line->memory[1][wc[index].wr_id], right[BYTES];
                uint32_t number;

                memcpy(&number, octets, sizeof number);
                fill(right, each, number);
                IS(wc[index].status, IBV_WC_SUCCESS);
                IS(wc[index].qp_num, line->to->qp_num);
                IS(memcmp(octets, right, BYTES), 0);
                IS(number < messages && number > last[each], 1);
                if (failures)
                    return NULL;
                last[each] = number;
                __atomic_add_fetch(line->seen + number, 1, __ATOMIC_RELAXED);
                post_receive(line, wc[index].wr_id);
                __atomic_sub_fetch(&line->left, 1, __ATOMIC_RELAXED);
            }
        }
    }
    return nothing;
}

static void fire(int threads)
{
    pthread_t senders[MOST_QUEUES], receivers[threads];

    for (int each = 0; each < queues; each++) {
        struct line *line = lines + each;

        line->sends = queue(SLOTS, NULL);
        line->receives = queue(2 * SLOTS, NULL);
        line->from = queue_pair(line->sends);
        line->to = queue_pair(line->receives);
        line->mr = MADE(ibv_reg_mr(pd, line->memory, sizeof line->memory, IBV_ACCESS_LOCAL_WRITE));
        line->seen = calloc(messages, 1);
        line->left = messages;
        join(line->from, line->to);
        for (int slot = 0; slot < SLOTS; slot++)
            post_receive(line, slot);
    }
    for (int each = 0; each < threads; each++)
        pthread_create(receivers + each, NULL, receiver, NULL);
    for (int each = 0; each < queues; each++)
        pthread_create(senders + each, NULL, sender, lines + each);
    for (int each = 0; each < queues; each++)
        pthread_join(senders[each], NULL);
    for (int each = 0; each < threads; each++)
        pthread_join(receivers[each], NULL);
    for (int each = 0; each < queues; each++)
        for (long number = 0; number < messages && !failures; number++)
            IS(lines[each].seen[number], number < lines[each].sent);
}

static double processor_seconds(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

/* After work a program that does nothing takes nothing: a fiftieth of a processor at most. */
static void idle(int seconds)
{
    double before;
    int left = seconds;

    messages = 10;
    queues = 1;
    fire(1);
    before = processor_seconds();
    while ((left = sleep(left)))
        ;
    IS((processor_seconds() - before) * 50 <= seconds, 1);
}

/* A peer that is killed amid polling: each request completes once, in order, and none succeeds after one that failed. */
struct half {
    unsigned number, key;
    uint64_t memory;
    union ibv_gid gid;
};

static struct half exchange(struct ibv_qp *qp, const struct ibv_mr *mr, int in, int out)
{
    struct half own = {qp->qp_num, mr ? mr->rkey : 0, mr ? (uintptr_t)mr->addr : 0, own_gid()}, peer;

    move(qp, IBV_QPS_INIT);
    IS(write(out, &own, sizeof own), sizeof own);
    IS(read(in, &peer, sizeof peer), sizeof peer);
    connect_to(qp, peer.number, &peer.gid);
    return peer;
}

static void serve(int in, int out)
{
    static unsigned char memory[4096];
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct ibv_wc wc;
    struct ibv_sge piece;
    struct ibv_recv_wr wr = {.sg_list = &piece, .num_sge = 1}, *bad;

    open_device();
    cq = queue(256, NULL);
    qp = queue_pair(cq);
    exchange(qp, NULL, in, out);
    mr = MADE(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
    piece = (struct ibv_sge){(uintptr_t)memory, sizeof memory, mr->lkey};
    for (int index = 0; index < 200; index++)
        IS(ibv_post_recv(qp, &wr, &bad), 0);
    IS(write(out, "", 1), 1);
    for (;;)
        if (ibv_poll_cq(cq, 1, &wc) > 0)
            IS(ibv_post_recv(qp, &wr, &bad), 0);
}

static void killed(int rounds)
{
    int in[rounds][2], out[rounds][2];
    pid_t children[rounds];
    static unsigned char memory[BYTES];
    struct ibv_mr *mr;

    /* Before the first call: fork(2) after it is refused. */
    for (int each = 0; each < rounds; each++) {
        IS(pipe(in[each]) + pipe(out[each]), 0);
        if (!(children[each] = fork())) {
            serve(out[each][0], in[each][1]);
            _exit(1);
        }
    }
    open_device();
    mr = MADE(ibv_reg_mr(pd, memory, sizeof memory, 0));
    for (int each = 0; each < rounds; each++) {
        struct ibv_cq *cq = queue(256, NULL);
        struct ibv_qp *qp = queue_pair(cq);
        struct ibv_sge piece = {(uintptr_t)memory, BYTES, mr->lkey};
        struct ibv_wc wc[8];
        long posted = 0, done = 0, failed = 0;
        int found;
        char ready;

        exchange(qp, NULL, in[each][0], out[each][1]);
        IS(read(in[each][0], &ready, 1), 1);
        while ((!failed || done < posted) && !failures) {
            struct ibv_send_wr wr = {.wr_id = posted, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED}, *bad;

            if (!failed && posted - done < 32) {
                IS(ibv_post_send(qp, &wr, &bad), 0);
                if (++posted == 200)
                    kill(children[each], SIGKILL);
            }
            IS((found = ibv_poll_cq(cq, 8, wc)) >= 0, 1);
            for (int index = 0; index < found; index++) {
                IS(wc[index].wr_id, done++);
                failed += wc[index].status != IBV_WC_SUCCESS;
                IS(!failed || wc[index].status != IBV_WC_SUCCESS, 1);
            }
        }
        IS(ibv_destroy_qp(qp), 0);
        IS(ibv_destroy_cq(cq), 0);
        kill(children[each], SIGKILL);
        waitpid(children[each], NULL, 0);
    }
}

/*
 * A program that only looks at the last octet of its memory sees what a peer writes there, and finds all before it
 * (memcpy(3) stores in any order).  No doorbell and no pause of the thread that serves peers brings it: that thread
 * makes progress once each time it is told in C that records wait.
 */
static const char served[] =
    "from twisted_ib.verbs.core import attendant\n"
    "from twisted_ib.verbs.core.hub import hub\n"
    "def once(sleeper):\n"
    "    with hub:\n"
    "        hub.drive()\n"
    "    return False\n"
    "hub.attend = once\n"
    "attendant.LEAST_PAUSE = attendant.MOST_PAUSE = 3600.0\n";

static void look(volatile unsigned char *memory, long size, long writes, int in, int out)
{
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    int state, (*python)(const char *);
    struct ibv_wc wc;
    char ready;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_device();
    qp = queue_pair(cq = queue(8, NULL));
    exchange(qp, MADE(ibv_reg_mr(pd, (void *)memory, size, RIGHTS)), in, out);
    python = (int (*)(const char *))dlsym(RTLD_DEFAULT, "PyRun_SimpleString");
    for (long next = 1; next <= writes && !failures; next++) {
        long late = 0;

        IS(write(out, "", 1), 1);
        while (memory[size - 1] != (unsigned char)next)
            sched_yield();
        for (long at = 0; at < size; at++)
            late += memory[at] != (unsigned char)next;
        IS(late, 0);
        /* The first brings the path, which is no ring before. */
        if (next > 1)
            continue;
        state = PyGILState_Ensure();
        IS(python(served), 0);
        PyGILState_Release(state);
        /* The thread sleeps no more. */
        IS(ibv_poll_cq(cq, 1, &wc), 0);
        entries = 0;
    }
    IS(entries, 0);
    /* What is in memory is not acknowledged yet: the peer says when its last completion is there. */
    if (!failures)
        IS(read(in, &ready, 1), 1);
    fflush(stdout);
    _exit(!!failures);
}

static void memory(long writes, long size)
{
    int in[2], out[2], status;
    pid_t child;
    static unsigned char octets[MOST_OCTETS];
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct half peer;
    char ready;

    IS(pipe(in) + pipe(out), 0);
    if (!(child = fork()))
        look(octets, size, writes, out[0], in[1]);
    /* The end of a child that fails is read. */
    IS(close(out[0]) + close(in[1]), 0);
    open_device();
    qp = queue_pair(cq = queue(8, NULL));
    mr = MADE(ibv_reg_mr(pd, octets, size, 0));
    peer = exchange(qp, mr, in[0], out[1]);
    for (long next = 1; next <= writes && !failures; next++) {
        struct ibv_sge piece = {(uintptr_t)octets, size, mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {peer.memory, peer.key}}, *bad;
        struct ibv_wc wc;

        memset(octets, (int)next, size);
        IS(read(in[0], &ready, 1), 1);
        IS(ibv_post_send(qp, &wr, &bad), 0);
        while (!ibv_poll_cq(cq, 1, &wc))
            ;
        IS(wc.status, IBV_WC_SUCCESS);
    }
    if (failures)
        kill(child, SIGKILL);
    else
        IS(write(out[1], "", 1), 1);
    waitpid(child, &status, 0);
    IS(status, 0);
}

int main(int count, char **words)
{
    const char *story = count > 2 ? words[1] : "";
    long much = count > 2 ? atol(words[2]) : 0;

    if (strcmp(story, "killed") && strcmp(story, "memory"))
        open_device();
    if (!strcmp(story, "empty"))
        empty(much);
    else if (!strcmp(story, "quiet"))
        quiet();
    else if (!strcmp(story, "order"))
        order();
    else if (!strcmp(story, "bounds"))
        bounds();
    else if (!strcmp(story, "events"))
        events(much);
    else if (!strcmp(story, "changes"))
        changes(much);
    else if (!strcmp(story, "together") && count > 3)
        together(much, atoi(words[3]));
    else if (!strcmp(story, "fire") && count > 4) {
        messages = much;
        queues = atoi(words[3]);
        last_second = count > 5 ? time(NULL) + atoi(words[5]) : 0;
        fire(atoi(words[4]));
    } else if (!strcmp(story, "killed"))
        killed(much);
    else if (!strcmp(story, "idle"))
        idle(much);
    else if (!strcmp(story, "memory") && count > 3)
        memory(much, atol(words[3]));
    else
        return 2;
    return !!failures;
}
