/*
 * Whether verbs devices do what Farside's fabric over verbs builds on. Part of
 * `cargo xtask rdma-guest --check`; prints a line per thing that was tried and exits with 1 when
 * one failed.
 *
 *   check INITIATOR GID-INDEX TARGET GID-INDEX [operations | traffic | persist FILE | survived FILE]
 *
 * Both devices are opened by this one process and are joined by a reliable connection; they may be
 * the same.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    BYTES = 64 * 1024,           /* of each side's region */
    LANDING = 32 * 1024,         /* where the target's receives land */
    INLINE_MAX = 64,
    ROUNDS = 50,                 /* of the traffic */
    MESSAGE = 4096,              /* bytes of one of its messages */
    DAX_BYTES = 2 * 1024 * 1024, /* the smallest piece of a dax device that can be mapped */
    WAIT_MS = 60 * 1000,         /* for one completion: the machine may be busy with other things */
};

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                          IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
static const int FLUSHES = IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT;

struct side {
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_comp_channel *events;
    struct ibv_cq *completions;
    struct ibv_srq *receives;
    struct ibv_qp *queue;
    struct ibv_mr *region;
    char *bytes;
    int access;
    int gid_index;
    union ibv_gid gid;
};

static int failures;

static void expect(bool good, const char *form, ...)
{
    va_list arguments;
    va_start(arguments, form);
    printf(good ? "ok     " : "FAILED ");
    vprintf(form, arguments);
    printf("\n");
    va_end(arguments);
    failures += !good;
}

/* Ends the program: nothing that follows could work. */
static void need(bool good, const char *what)
{
    if (good)
        return;
    printf("FAILED %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The next completion, by event and not by looking all the time. */
static bool next_completion(struct side *side, struct ibv_wc *completion)
{
    for (int waited_ms = 0; waited_ms < WAIT_MS; waited_ms += 500) {
        /* Armed first, then looked: what comes in between makes an event. */
        if (ibv_req_notify_cq(side->completions, 0))
            return false;
        int count = ibv_poll_cq(side->completions, 1, completion);
        if (count)
            return count > 0;
        struct pollfd event = {.fd = side->events->fd, .events = POLLIN};
        if (poll(&event, 1, 500) > 0) {
            struct ibv_cq *completions;
            void *context;
            if (ibv_get_cq_event(side->events, &completions, &context))
                return false;
            ibv_ack_cq_events(completions, 1);
        }
    }
    return false;
}

static void open_side(struct side *side, const char *name, int gid_index, char *bytes, int access)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    for (int i = 0; i < count; i++)
        if (!strcmp(ibv_get_device_name(devices[i]), name))
            side->context = ibv_open_device(devices[i]);
    need(side->context, name);
    ibv_free_device_list(devices);
    side->gid_index = gid_index;
    need(!ibv_query_gid(side->context, 1, gid_index, &side->gid), "query_gid");
    need(side->domain = ibv_alloc_pd(side->context), "alloc_pd");
    need(side->events = ibv_create_comp_channel(side->context), "create_comp_channel");
    need(side->completions = ibv_create_cq(side->context, 64, NULL, side->events, 0), "create_cq");
    side->bytes = bytes ? bytes : aligned_alloc(4096, BYTES);
    need(side->bytes, "memory");
    if (!bytes)
        memset(side->bytes, 0, BYTES);
    side->access = access;
    need(side->region = ibv_reg_mr(side->domain, side->bytes, BYTES, access), "reg_mr");

    struct ibv_srq_init_attr receives = {.attr = {.max_wr = 64, .max_sge = 1}};
    need(side->receives = ibv_create_srq(side->domain, &receives), "create_srq");
    struct ibv_qp_init_attr_ex queue = {
        .send_cq = side->completions,
        .recv_cq = side->completions,
        .srq = side->receives,
        .cap = {.max_send_wr = 64, .max_send_sge = 1, .max_inline_data = INLINE_MAX},
        .qp_type = IBV_QPT_RC,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = side->domain,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                          IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ |
                          IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                          IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE |
                          IBV_QP_EX_WITH_FLUSH,
    };
    need(side->queue = ibv_create_qp_ex(side->context, &queue), "create_qp_ex");
}

static void connect_to(struct side *side, const struct side *peer)
{
    struct ibv_port_attr port;
    need(!ibv_query_port(side->context, 1, &port), "query_port");
    struct ibv_qp_attr initial = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = side->access & ~IBV_ACCESS_LOCAL_WRITE,
    };
    need(!ibv_modify_qp(side->queue, &initial,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
         "to INIT");
    struct ibv_qp_attr receiving = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = port.active_mtu,
        .dest_qp_num = peer->queue->qp_num,
        .max_dest_rd_atomic = 8,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .port_num = 1,
                    .grh = {.dgid = peer->gid, .sgid_index = side->gid_index, .hop_limit = 64}},
    };
    need(!ibv_modify_qp(side->queue, &receiving,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
         "to RTR");
    struct ibv_qp_attr sending = {
        .qp_state = IBV_QPS_RTS,
        .timeout = 14,
        /* rxe takes 7 as for ever, and then never reports a dead peer. */
        .retry_cnt = 6,
        .rnr_retry = 7,
        .max_rd_atomic = 8,
    };
    need(!ibv_modify_qp(side->queue, &sending,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
         "to RTS");
}

static void post_receive(struct side *side, size_t offset, uint32_t length)
{
    struct ibv_sge place = {(uintptr_t)side->bytes + offset, length, side->region->lkey};
    struct ibv_recv_wr work = {.sg_list = &place, .num_sge = 1}, *bad;
    need(!ibv_post_srq_recv(side->receives, &work, &bad), "post_srq_recv");
}

/* An operation of the start of `a`'s bytes on `offset` of `b`'s. */
static struct ibv_send_wr work_on(struct side *a, struct side *b, enum ibv_wr_opcode opcode,
                                  size_t offset, uint32_t length, struct ibv_sge *place)
{
    *place = (struct ibv_sge){(uintptr_t)a->bytes, length, a->region->lkey};
    struct ibv_send_wr work = {
        .sg_list = place, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    work.wr.rdma.remote_addr = (uintptr_t)b->bytes + offset;
    work.wr.rdma.rkey = b->region->rkey;
    return work;
}

/* Posts and waits; the status, or -1 when there is none. */
static int complete(struct side *side, struct ibv_send_wr *work)
{
    struct ibv_send_wr *bad;
    struct ibv_wc completion;
    if (ibv_post_send(side->queue, work, &bad) || !next_completion(side, &completion))
        return -1;
    return completion.status;
}

static int operate(struct side *a, struct side *b, enum ibv_wr_opcode opcode, size_t offset,
                   uint32_t length, unsigned flags)
{
    struct ibv_sge place;
    struct ibv_send_wr work = work_on(a, b, opcode, offset, length, &place);
    work.send_flags |= flags;
    work.imm_data = htobe32(0x11223344);
    return complete(a, &work);
}

static int atomic(struct side *a, struct side *b, enum ibv_wr_opcode opcode, size_t offset,
                  uint64_t compare_or_add, uint64_t swap)
{
    struct ibv_sge place;
    struct ibv_send_wr work = work_on(a, b, opcode, offset, 8, &place);
    work.wr.atomic.remote_addr = (uintptr_t)b->bytes + offset;
    work.wr.atomic.rkey = b->region->rkey;
    work.wr.atomic.compare_add = compare_or_add;
    work.wr.atomic.swap = swap;
    return complete(a, &work);
}

static uint64_t word(const struct side *side, size_t offset)
{
    uint64_t value;
    memcpy(&value, side->bytes + offset, sizeof value);
    return value;
}

static void check_writes_and_reads(struct side *a, struct side *b)
{
    strcpy(a->bytes, "written");
    expect(!operate(a, b, IBV_WR_RDMA_WRITE, 0, 64, 0) && !strcmp(b->bytes, "written"), "WRITE");
    strcpy(a->bytes, "inline");
    expect(!operate(a, b, IBV_WR_RDMA_WRITE, 128, 64, IBV_SEND_INLINE) &&
               !strcmp(b->bytes + 128, "inline"),
           "WRITE inline");
    memset(a->bytes, 0x5a, 16384);
    expect(!operate(a, b, IBV_WR_RDMA_WRITE, 4096, 16384, 0) &&
               !memcmp(b->bytes + 4096, a->bytes, 16384),
           "WRITE of several packets");
    strcpy(b->bytes + 256, "read");
    expect(!operate(a, b, IBV_WR_RDMA_READ, 256, 64, 0) && !strcmp(a->bytes, "read"), "READ");
    expect(!operate(a, b, IBV_WR_RDMA_READ, 4096, 16384, 0) &&
               !memcmp(a->bytes, b->bytes + 4096, 16384),
           "READ of several packets");
}

static void check_messages(struct side *a, struct side *b)
{
    struct ibv_wc received = {0};
    post_receive(b, LANDING, 64);
    strcpy(a->bytes, "sent");
    bool good = !operate(a, b, IBV_WR_SEND, 0, 64, 0) && next_completion(b, &received);
    expect(good && received.opcode == IBV_WC_RECV && received.byte_len == 64 &&
               !strcmp(b->bytes + LANDING, "sent"),
           "SEND to a shared receive queue");
    post_receive(b, LANDING, 64);
    good = !operate(a, b, IBV_WR_RDMA_WRITE_WITH_IMM, 512, 64, 0) && next_completion(b, &received);
    expect(good && received.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
               be32toh(received.imm_data) == 0x11223344 && !strcmp(b->bytes + 512, "sent"),
           "WRITE with immediate");
}

static void check_atomics(struct side *a, struct side *b)
{
    const size_t at = 1024;
    uint64_t start = 40;
    memcpy(b->bytes + at, &start, sizeof start);
    expect(!atomic(a, b, IBV_WR_ATOMIC_FETCH_AND_ADD, at, 2, 0) && word(a, 0) == 40 &&
               word(b, at) == 42,
           "fetch-and-add");
    expect(!atomic(a, b, IBV_WR_ATOMIC_CMP_AND_SWP, at, 42, 77) && word(a, 0) == 42 &&
               word(b, at) == 77,
           "compare-and-swap that swaps");
    expect(!atomic(a, b, IBV_WR_ATOMIC_CMP_AND_SWP, at, 42, 99) && word(a, 0) == 77 &&
               word(b, at) == 77,
           "compare-and-swap that does not");
    struct ibv_qp_ex *queue = ibv_qp_to_qp_ex(a->queue);
    struct ibv_wc completion = {0};
    const char record[8] = "recorded";
    ibv_wr_start(queue);
    queue->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(queue, b->region->rkey, (uintptr_t)b->bytes + 2048, record);
    bool good = !ibv_wr_complete(queue) && next_completion(a, &completion);
    expect(good && !completion.status && !memcmp(b->bytes + 2048, record, 8), "ATOMIC WRITE");
}

/* A WRITE, a FLUSH of it and an ATOMIC WRITE that says so, with one doorbell. */
static void check_flush(struct side *a, struct side *b, uint8_t type, const char *name)
{
    struct ibv_qp_ex *queue = ibv_qp_to_qp_ex(a->queue);
    uint64_t target = (uintptr_t)b->bytes;
    struct ibv_wc completion = {0};
    const char record[8] = "flushed!";
    memset(a->bytes, 0x77, 4096);
    ibv_wr_start(queue);
    queue->wr_flags = 0;
    ibv_wr_rdma_write(queue, b->region->rkey, target + 8192);
    ibv_wr_set_sge(queue, a->region->lkey, (uintptr_t)a->bytes, 4096);
    ibv_wr_flush(queue, b->region->rkey, target + 8192, 4096, type, IBV_FLUSH_RANGE);
    queue->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_atomic_write(queue, b->region->rkey, target + 16384, record);
    bool good = !ibv_wr_complete(queue) && next_completion(a, &completion);
    expect(good && !completion.status && !memcmp(b->bytes + 8192, a->bytes, 4096) &&
               !memcmp(b->bytes + 16384, record, 8),
           "WRITE, FLUSH %s, ATOMIC WRITE in one doorbell", name);
}

/* Messages in both directions, one at a time. */
static void check_traffic(struct side *a, struct side *b)
{
    int done = 0;
    for (; done < 2 * ROUNDS; done++) {
        struct side *from = done % 2 ? b : a, *to = done % 2 ? a : b;
        struct ibv_wc received = {0};
        memset(from->bytes, done, MESSAGE);
        post_receive(to, LANDING, MESSAGE);
        if (operate(from, to, IBV_WR_SEND, 0, MESSAGE, 0) || !next_completion(to, &received) ||
            received.status || memcmp(to->bytes + LANDING, from->bytes, MESSAGE))
            break;
    }
    expect(done == 2 * ROUNDS, "%d of %d messages arrived", done, 2 * ROUNDS);
}

/* These end the connection, so they come last. */
static void check_errors(struct side *a, struct side *b, bool target_goes)
{
    int status;
    if (target_goes) {
        ibv_destroy_qp(b->queue);
        b->queue = NULL;
        status = operate(a, b, IBV_WR_RDMA_WRITE, 0, 64, 0);
        expect(status == IBV_WC_RETRY_EXC_ERR, "a queue pair that has gone is reported (%s)",
               status < 0 ? "not at all" : ibv_wc_status_str(status));
        return;
    }
    struct ibv_sge place;
    struct ibv_send_wr work = work_on(a, b, IBV_WR_RDMA_WRITE, 0, 64, &place);
    work.wr.rdma.rkey ^= 0x5a5a;
    status = complete(a, &work);
    expect(status == IBV_WC_REM_ACCESS_ERR, "a wrong key is refused (%s)",
           status < 0 ? "not at all" : ibv_wc_status_str(status));
}

static char *map_pmem(const char *path)
{
    int file = open(path, O_RDWR);
    need(file >= 0, path);
    char *bytes = mmap(NULL, DAX_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    need(bytes != MAP_FAILED, "mmap of the NVDIMM");
    return bytes;
}

int main(int count, char **words)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 6) {
        fprintf(stderr, "check INITIATOR GID-INDEX TARGET GID-INDEX WHAT [FILE]\n");
        return 2;
    }
    const char *what = words[5];
    bool persist = !strcmp(what, "persist"), survived = !strcmp(what, "survived");
    char *pmem = (persist || survived) && count > 6 ? map_pmem(words[6]) : NULL;
    if (survived) {
        expect(pmem && pmem[8192] == 0x77 && !memcmp(pmem + 16384, "flushed!", 8),
               "what another guest has made persistent is there");
        return failures != 0;
    }
    struct side a = {0}, b = {0};
    open_side(&a, words[1], atoi(words[2]), NULL, ACCESS | IBV_ACCESS_FLUSH_GLOBAL);
    int flushes = pmem ? FLUSHES : IBV_ACCESS_FLUSH_GLOBAL;
    open_side(&b, words[3], atoi(words[4]), pmem, ACCESS | flushes);
    connect_to(&a, &b);
    connect_to(&b, &a);
    if (persist) {
        check_flush(&a, &b, IBV_FLUSH_PERSISTENT, "persistent");
    } else if (!strcmp(what, "traffic")) {
        check_traffic(&a, &b);
        check_errors(&a, &b, true);
    } else {
        check_writes_and_reads(&a, &b);
        check_messages(&a, &b);
        check_atomics(&a, &b);
        check_flush(&a, &b, IBV_FLUSH_GLOBAL, "global");
        expect(!ibv_reg_mr(b.domain, b.bytes, BYTES, ACCESS | FLUSHES),
               "memory that is not persistent is refused as such");
        check_errors(&a, &b, false);
    }
    return failures != 0;
}
