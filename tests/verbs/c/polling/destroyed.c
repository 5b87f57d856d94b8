/*
 * Queue pairs that are destroyed, and queues that are resized, amid polling and traffic: what is polled came in order,
 * each once, and all of a queue pair that lives on.  What a destroyed one had completed goes with it.  One line for each
 * check that fails; the argument is how many rounds.
 */
#include "../pairs.h"
#include <sched.h>

#define SLOTS 32
#define BYTES 64

static unsigned char memory[2][SLOTS][BYTES];
/* The sends and receives: the round of what was polled last, and the number that follows. */
static struct side {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    volatile uint64_t next;
    int failed;
} sides[2];
static volatile int over;

/* A request's number: a round's begin with a multiple of this. */
#define ROUND 256

static void *poll_all(void *nothing)
{
    while (!over && !failures)
        for (int each = 0; each < 2; each++) {
            struct side *side = sides + each;
            uint64_t next = side->next;
            struct ibv_wc wc[4];
            int found;

            IS((found = ibv_poll_cq(side->cq, 4, wc)) >= 0, 1);
            for (int index = 0; index < found; index++) {
                if (wc[index].wr_id / ROUND > next / ROUND) {
                    next = wc[index].wr_id / ROUND * ROUND;
                    side->failed = 0;
                }
                IS(wc[index].wr_id, next++);
                IS(side->failed && wc[index].status == IBV_WC_SUCCESS, 0);
                side->failed |= wc[index].status != IBV_WC_SUCCESS;
            }
            __atomic_store_n(&side->next, next, __ATOMIC_RELEASE);
        }
    return nothing;
}

static void post(const struct ibv_mr *mr, uint64_t number, int slot)
{
    struct ibv_sge from = {(uintptr_t)memory[0][slot], BYTES, mr->lkey}, to = {(uintptr_t)memory[1][slot], BYTES, mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = number + slot, .sg_list = &to, .num_sge = 1}, *unwanted;
    struct ibv_send_wr send = {.wr_id = number + slot, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED}, *bad;

    IS(ibv_post_recv(sides[1].qp, &receive, &unwanted), 0);
    IS(ibv_post_send(sides[0].qp, &send, &bad), 0);
}

int main(int count, char **words)
{
    long rounds = count > 1 ? atol(words[1]) : 0;
    struct ibv_mr *mr;
    struct ibv_wc wc;
    pthread_t poller;

    open_device();
    mr = MADE(ibv_reg_mr(pd, memory, sizeof memory, RIGHTS));
    sides[0].cq = queue(2 * SLOTS, NULL);
    sides[1].cq = queue(2 * SLOTS, NULL);
    for (long each = 1; each <= rounds && !failures; each++) {
        /* Whose queue pair goes first, and after how many requests. */
        struct side *first = sides + each % 2, *second = sides + !(each % 2);
        int before = each * 7 % SLOTS;

        sides[0].qp = queue_pair(sides[0].cq);
        sides[1].qp = queue_pair(sides[1].cq);
        if (each == 1)
            pthread_create(&poller, NULL, poll_all, NULL);
        join(sides[0].qp, sides[1].qp);
        for (int slot = 0; slot < SLOTS; slot++) {
            post(mr, each * ROUND, slot);
            if (slot == before)
                IS(ibv_resize_cq(sides[slot % 2].cq, 2 * SLOTS + slot), 0);
        }
        for (int turn = each % 5; turn; turn--)
            sched_yield();
        IS(ibv_destroy_qp(first->qp), 0);
        move(second->qp, IBV_QPS_ERR);
        while (__atomic_load_n(&second->next, __ATOMIC_ACQUIRE) != each * ROUND + SLOTS && !failures)
            sched_yield();
        IS(ibv_destroy_qp(second->qp), 0);
    }
    over = 1;
    if (rounds)
        pthread_join(poller, NULL);
    for (int number = 0; number < 4; number++) {
        if (number < 2)
            sides[number].qp = flushing(sides[0].cq);
        IS(receive(sides[number % 2].qp, number), 0);
    }
    IS(ibv_destroy_qp(sides[1].qp), 0);
    for (int number = 0; number < 4; number += 2)
        IS(ibv_poll_cq(sides[0].cq, 1, &wc) == 1 && wc.wr_id == (uint64_t)number, 1);
    IS(ibv_poll_cq(sides[0].cq, 1, &wc), 0);
    return !!failures;
}
