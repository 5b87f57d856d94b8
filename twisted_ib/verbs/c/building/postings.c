/*
 * Posting in C: what a program posts is recorded in memory, in the order of its calls, with inline data copied, and
 * Python takes all records at once.  declarations.py includes this.
 *
 * Only what a queue is sure to take is recorded: each has a limit, which Python sets, and everything else is left to
 * Python, which refuses as ever.  A poster goes on at once if another thread attends, or if it is to post or poll again
 * at once, else it takes the records itself: see postings.py.
 */

/* Posts of a thread are one burst that come so soon, in nanoseconds, after one another, without a poll between them. */
#define SOON 2000L
/* Of a burst at least each such post takes the records. */
#define TOGETHER 32

/* A work queue.  */
struct twisted_ib_queue {
    /* Requests that were recorded, ever, and how many may be. */
    uint64_t posted, limit;
    /* Of a request: elements, octets of inline data, a bit for each operation. */
    unsigned elements, inlined, operations;
    /* Whether what is posted is not left to the next poll: in ERR it completes at once, and the event of a limit counts. */
    unsigned urgent;
};

struct twisted_ib_qp {
    struct ibv_qp_ex qp;
    /* The address of this structure, if it has queues. */
    uint64_t self;
    struct twisted_ib_queue sends, receives;
};

struct twisted_ib_srq {
    struct ibv_srq srq;
    uint64_t self;
    struct twisted_ib_queue receives;
};

/*
 * A request; its elements, or inline data, come behind it.  whole: whether it is a SEND of one short piece, no more; a WRITE
 * of one has the flag below.
 */
#define SHORT_WRITE (1u << 30)

struct twisted_ib_record {
    uint64_t queue, id, remote, compare, swap;
    uint32_t octets, opcode, flags, elements, inlined, key, immediate, whole;
};

/*
 * The records of all queues.
 *
 * buffers: one that is filled, the other for Python; size: of each; fill: octets of the one; turn: which it is;
 * attending: threads in Python that take the records before they leave it, or just after; least: octets of a piece that is
 * not short; watching: whether the thread that serves peers looks for sends that were left, and owed: whether there are
 * any.
 */
struct twisted_ib_posting {
    unsigned char *buffers[2];
    unsigned size, fill, turn, lock, attending, least, watching, owed;
} twisted_ib_posting;

void twisted_ib_block(sigset_t *program);
int twisted_ib_may_handle(void);

/* How often this thread has signals blocked already, as within the data path of a program that has handlers. */
static __thread unsigned twisted_ib_masked __attribute__((tls_model("initial-exec")));

/* The data path: no signal's handler leaves it, nor any lock that it takes. */
static void twisted_ib_mask(sigset_t *program)
{
    if (twisted_ib_may_handle()) {
        twisted_ib_block(program);
        twisted_ib_masked++;
    }
}

static void twisted_ib_unmask(const sigset_t *program)
{
    /*
     * Not masked, if the program has its first handler since twisted_ib_mask(): calls within have then blocked signals,
     * and opened them again, themselves.
     */
    if (twisted_ib_masked) {
        twisted_ib_masked--;
        pthread_sigmask(SIG_SETMASK, program, NULL);
    }
    twisted_ib_polled.ended = twisted_ib_goes(&twisted_ib_polled.turns);
}

/* Operations that put their result into memory here, and those of them that need 8 octets there. */
#define BIT(opcode) (1u << (opcode))
#define ATOMICS (BIT(IBV_WR_ATOMIC_CMP_AND_SWP) | BIT(IBV_WR_ATOMIC_FETCH_AND_ADD))
#define RESULTS (ATOMICS | BIT(IBV_WR_RDMA_READ))
#define COUNTED (IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE)

/* No signal's handler interrupts whoever has the lock: so it is released. */
static int twisted_ib_lock(sigset_t *program)
{
    int blocks = !twisted_ib_masked && twisted_ib_may_handle();

    if (blocks)
        twisted_ib_block(program);
    while (__atomic_exchange_n(&twisted_ib_posting.lock, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    return blocks;
}

static void twisted_ib_unlock(const sigset_t *program, int blocks)
{
    __atomic_store_n(&twisted_ib_posting.lock, 0, __ATOMIC_RELEASE);
    if (blocks)
        pthread_sigmask(SIG_SETMASK, program, NULL);
}

/* The place of a record of a queue, if both have room; it counts once it is added. */
static struct twisted_ib_record *twisted_ib_place(struct twisted_ib_queue *queue, int elements,
                                                  const struct ibv_sge *list, unsigned octets)
{
    struct twisted_ib_posting *own = &twisted_ib_posting;
    struct twisted_ib_record *record = (void *)(own->buffers[own->turn] + own->fill);

    octets += sizeof *record;
    if (queue->posted >= queue->limit || (elements && !list) || octets > own->size - own->fill)
        return NULL;
    memset(record, 0, sizeof *record);
    record->queue = (uintptr_t)queue;
    record->octets = octets;
    return record;
}

static int twisted_ib_add(struct twisted_ib_queue *queue, const struct twisted_ib_record *record)
{
    queue->posted++;
    __atomic_store_n(&twisted_ib_posting.fill, twisted_ib_posting.fill + record->octets, __ATOMIC_SEQ_CST);
    return 1;
}

/* This process, of which the kernel is asked; 0 before that, and in a forked child. */
static pid_t twisted_ib_own;

/* Copy inline data: the kernel tells of memory that is not there. */
static int twisted_ib_copy(void *target, unsigned length, const struct ibv_sge *list, int elements)
{
    struct iovec there[elements ? elements : 1], here = {target, length};

    if (!twisted_ib_own)
        twisted_ib_own = getpid();
    for (int index = 0; index < elements; index++)
        there[index] = (struct iovec){(void *)(uintptr_t)list[index].addr, list[index].length};
    return !length || process_vm_readv(twisted_ib_own, &here, 1, there, elements, 0) == length;
}

static int twisted_ib_record_send(struct twisted_ib_queue *queue, const struct ibv_send_wr *wr)
{
    unsigned bit = (unsigned)wr->opcode < 32 ? BIT(wr->opcode) : 0, inlined = wr->send_flags & IBV_SEND_INLINE;
    struct twisted_ib_record *record;
    uint64_t length = 0;

    if (!(queue->operations & bit) || (unsigned)wr->num_sge > queue->elements)
        return 0;
    for (int index = 0; index < wr->num_sge && wr->sg_list; index++)
        length += wr->sg_list[index].length;
    if (inlined ? bit & RESULTS || length > queue->inlined : bit & ATOMICS && length < 8)
        return 0;
    record = twisted_ib_place(queue, wr->num_sge, wr->sg_list,
                              inlined ? (length + 7) & ~7u : wr->num_sge * sizeof *wr->sg_list);
    if (!record)
        return 0;
    record->id = wr->wr_id;
    record->opcode = wr->opcode;
    record->flags = wr->send_flags & COUNTED;
    if (!(record->flags & (IBV_SEND_FENCE | IBV_SEND_SOLICITED)) &&
        (inlined || (wr->num_sge == 1 && length < twisted_ib_posting.least)))
        record->whole = bit == BIT(IBV_WR_SEND), record->flags |= bit == BIT(IBV_WR_RDMA_WRITE) ? SHORT_WRITE : 0;
    /* A key is the machine's number, immediate data the wire's. */
    record->immediate = wr->opcode == IBV_WR_SEND_WITH_INV ? wr->invalidate_rkey : ntohl(wr->imm_data);
    if (bit & ATOMICS) {
        record->remote = wr->wr.atomic.remote_addr;
        record->key = wr->wr.atomic.rkey;
        record->compare = wr->wr.atomic.compare_add;
        record->swap = wr->wr.atomic.swap;
    } else if (bit & (BIT(IBV_WR_RDMA_WRITE) | BIT(IBV_WR_RDMA_WRITE_WITH_IMM) | BIT(IBV_WR_RDMA_READ))) {
        record->remote = wr->wr.rdma.remote_addr;
        record->key = wr->wr.rdma.rkey;
    }
    if (inlined) {
        record->inlined = length;
        if (!twisted_ib_copy(record + 1, length, wr->sg_list, wr->num_sge))
            return 0;
    } else {
        record->elements = wr->num_sge;
        memcpy(record + 1, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
    }
    return twisted_ib_add(queue, record);
}

static int twisted_ib_record_receive(struct twisted_ib_queue *queue, const struct ibv_recv_wr *wr)
{
    size_t octets = wr->num_sge * sizeof *wr->sg_list;
    struct twisted_ib_record *record;

    if ((unsigned)wr->num_sge > queue->elements ||
        !(record = twisted_ib_place(queue, wr->num_sge, wr->sg_list, octets)))
        return 0;
    record->id = wr->wr_id;
    record->elements = wr->num_sge;
    memcpy(record + 1, wr->sg_list, octets);
    return twisted_ib_add(queue, record);
}

/* These return what is left of a list: the first request that is not recorded. */
static struct ibv_send_wr *twisted_ib_post_sends(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
    struct twisted_ib_qp *own = (struct twisted_ib_qp *)qp;
    sigset_t program;
    int blocks;

    if (!own || own->self != (uintptr_t)own)
        return wr;
    blocks = twisted_ib_lock(&program);
    while (wr && twisted_ib_record_send(&own->sends, wr))
        wr = wr->next;
    twisted_ib_unlock(&program, blocks);
    return wr;
}

static struct ibv_recv_wr *twisted_ib_post_receives(struct twisted_ib_queue *queue, struct ibv_recv_wr *wr)
{
    sigset_t program;
    int blocks = twisted_ib_lock(&program);

    if (queue->urgent)
        twisted_ib_polled.found = 0;
    while (wr && twisted_ib_record_receive(queue, wr))
        wr = wr->next;
    twisted_ib_unlock(&program, blocks);
    return wr;
}

static struct ibv_recv_wr *twisted_ib_post_own(struct ibv_qp *qp, struct ibv_recv_wr *wr)
{
    struct twisted_ib_qp *own = (struct twisted_ib_qp *)qp;

    return own && own->self == (uintptr_t)own ? twisted_ib_post_receives(&own->receives, wr) : wr;
}

static struct ibv_recv_wr *twisted_ib_post_shared(struct ibv_srq *srq, struct ibv_recv_wr *wr)
{
    struct twisted_ib_srq *own = (struct twisted_ib_srq *)srq;

    return own && own->self == (uintptr_t)own ? twisted_ib_post_receives(&own->receives, wr) : wr;
}

/*
 * Whether a poster leaves its records to a thread that attends.  Such a thread looks at them after it no longer does:
 * so one of both sees the other.
 */
static int twisted_ib_attended(void)
{
    if (!__atomic_load_n(&twisted_ib_posting.attending, __ATOMIC_SEQ_CST))
        return 0;
    __atomic_add_fetch(&twisted_ib_posts, 1, __ATOMIC_RELAXED);
    return 1;
}

/*
 * Whether a poster leaves sends to its own next post or poll, which comes at once: both of its last bursts had more posts
 * than the present one has.  If neither comes, the thread that serves peers takes them: only while that one looks for
 * them is anything left.
 */
static int twisted_ib_bursts(void)
{
    unsigned *bursts = twisted_ib_polled.bursts, usual;
    long passed = twisted_ib_now() - twisted_ib_polled.ended;

    if (twisted_ib_polled.over || passed > SOON) {
        twisted_ib_comes(&twisted_ib_polled.turns, passed);
        bursts[1] = bursts[0];
        bursts[0] = twisted_ib_polled.burst;
        twisted_ib_polled.burst = twisted_ib_polled.over = 0;
    }
    twisted_ib_polled.burst++;
    if (twisted_ib_attended())
        return 1;
    usual = bursts[0] < bursts[1] ? bursts[0] : bursts[1];
    if (twisted_ib_polled.burst >= usual || !(twisted_ib_polled.burst % TOGETHER))
        return 0;
    /* As where another attends: that thread looks once more after it watches no longer. */
    __atomic_store_n(&twisted_ib_posting.owed, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&twisted_ib_posting.watching, __ATOMIC_SEQ_CST))
        return 0;
    __atomic_add_fetch(&twisted_ib_posts, 1, __ATOMIC_RELAXED);
    return twisted_ib_polled.owes = 1;
}

/*
 * Whether a poster leaves receives to its own next poll, or to whoever makes progress before: its last poll has found
 * something, and nobody has called anything since, so that another follows before the thread waits.
 */
static int twisted_ib_polls(void)
{
    if (!twisted_ib_polled.found || twisted_ib_polled.calls != twisted_ib_posts)
        return twisted_ib_attended();
    twisted_ib_polled.calls = __atomic_add_fetch(&twisted_ib_posts, 1, __ATOMIC_RELAXED);
    return 1;
}

static void twisted_ib_attend(void)
{
    __atomic_add_fetch(&twisted_ib_posting.attending, 1, __ATOMIC_SEQ_CST);
}

/* Attend no more: whether there are records that came meanwhile. */
static int twisted_ib_attends_no_more(void)
{
    __atomic_sub_fetch(&twisted_ib_posting.attending, 1, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&twisted_ib_posting.fill, __ATOMIC_SEQ_CST) != 0;
}

/* Give Python the buffer that was filled, and fill the other: how many octets it has. */
unsigned twisted_ib_swap(void)
{
    sigset_t program;
    unsigned fill;
    int blocks = twisted_ib_lock(&program);

    fill = twisted_ib_posting.fill;
    twisted_ib_posting.turn ^= 1;
    __atomic_store_n(&twisted_ib_posting.owed, 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&twisted_ib_posting.fill, 0, __ATOMIC_SEQ_CST);
    twisted_ib_unlock(&program, blocks);
    return fill;
}

static int python_post_send(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
extern void (*twisted_ib_settle)(void);

/* As the data path, whatever call it comes before: no signal's handler leaves it. */
static void twisted_ib_take_all(void)
{
    sigset_t program;

    if (!__atomic_load_n(&twisted_ib_posting.fill, __ATOMIC_SEQ_CST))
        return;
    twisted_ib_mask(&program);
    python_post_send(NULL, NULL, NULL);
    twisted_ib_unmask(&program);
}

__attribute__((constructor)) static void twisted_ib_let_settle(void)
{
    twisted_ib_settle = twisted_ib_take_all;
}

/* From now on Python takes all requests of a queue; those that are recorded are in the buffer. */
void twisted_ib_suspend(struct twisted_ib_queue *queue)
{
    sigset_t program;
    int blocks = twisted_ib_lock(&program);

    queue->limit = 0;
    twisted_ib_unlock(&program, blocks);
}
