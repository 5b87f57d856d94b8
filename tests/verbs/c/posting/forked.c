/*
 * A library of C in a program that is Python: inline data of a process, also of one that was forked.
 */
#include "../pairs.h"

/* Where it is in the parent, it is in the child. */
static char inlined[8], received[8];

/* Send a text inline, and give back what has come. */
const char *echo(const char *text)
{
    struct ibv_sge from = {(uintptr_t)inlined, sizeof inlined}, to = {(uintptr_t)received, sizeof received};
    struct ibv_send_wr wr = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad;
    struct ibv_recv_wr wanted = {.sg_list = &to, .num_sge = 1}, *unwanted;
    struct ibv_qp *sender, *receiver;
    struct ibv_wc wc[2];
    struct ibv_cq *cq;

    open_device();
    to.lkey = ((struct ibv_mr *)MADE(ibv_reg_mr(pd, received, sizeof received, RIGHTS)))->lkey;
    cq = queue(16, NULL);
    sender = queue_pair(cq);
    receiver = queue_pair(cq);
    join(sender, receiver);
    strncpy(inlined, text, sizeof inlined - 1);
    IS(ibv_post_recv(receiver, &wanted, &unwanted), 0);
    IS(ibv_post_send(sender, &wr, &bad), 0);
    for (int found = 0; found < 2;) {
        int more = ibv_poll_cq(cq, 2 - found, wc);

        for (int index = 0; index < more; index++)
            IS(wc[index].status, IBV_WC_SUCCESS);
        found += more;
    }
    return received;
}
