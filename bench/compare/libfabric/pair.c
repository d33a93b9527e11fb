/* Two processes over libfabric: latency, rate and bandwidth, as `farside bench fabric` measures them.
 *
 *   pair serve PORT HOST PROVIDER msg|rdm polls|sleeps delivered|sent
 *   pair measure PORT HOST PROVIDER msg|rdm polls|sleeps delivered|sent SECONDS TEST:BYTES...
 *
 * HOST is the address of the server, and PORT that of a separate socket on which the two agree on tests.
 * TEST is one of
 *   send-latency     half of a round trip of a message; both ends poll
 *   write-latency    half of a round trip of WRITEs; both ends poll completions and their memory
 *   read-latency     a whole READ; the server polls or sleeps, as the argument says
 *   send-stream, write-stream, read-stream
 *                    IN_FLIGHT requests in flight, until the server has received everything
 * `delivered` requests FI_DELIVERY_COMPLETE: a completion means that the bytes are at the target, as
 * in Farside. With `sent` the provider defines completions: usually the kernel has the bytes. The final
 * wait for the server is part of the time.
 *
 * The measuring end prints a line of JSON for each test. Both processes make progress in the calling
 * thread, which is fastest with this provider: FI_THREAD_DOMAIN and manual progress. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    IN_FLIGHT = 128,      /* requests of a stream in flight */
    RECEIVES = 256,       /* posted by the receiving end */
    BYTES_MAX = 1 << 20,
    SAMPLES_MAX = 1 << 20,
    CONTROL_EVERY = 1024, /* polls between two checks of the control socket */
    YIELD_EVERY = 256,    /* empty polls after which the thread yields, as Farside's ends do */
};

enum test { SEND_LATENCY, WRITE_LATENCY, READ_LATENCY, SEND_STREAM, WRITE_STREAM, READ_STREAM, TESTS };

static const char *const NAMES[TESTS] = {
    "send-latency", "write-latency", "read-latency", "send-stream", "write-stream", "read-stream",
};

struct begin {
    int64_t test;
    int64_t bytes;
    int64_t count;
};

struct keys {
    uint64_t address;
    uint64_t key;
    uint64_t name_bytes;
    char name[128];
};

/* Context of a request: whether it is a receive. The provider may use the first member. */
struct context {
    struct fi_context2 provider;
    int receive;
};

static int control = -1;
static int sleeps;
static int delivered;
static int is_message_endpoint;
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *endpoint;
static struct fid_cq *queue;
static struct fid_eq *events;
static struct fid_av *addresses;
static struct fid_mr *region;
static fi_addr_t peer = FI_ADDR_UNSPEC;
static uint64_t peer_address, peer_key;
/* Two halves: for incoming and for outgoing bytes. */
static char *memory;
static char *in, *out;
static struct context sends[IN_FLIGHT], receives[RECEIVES];
static uint64_t posted, completed, arrived, receives_posted;
static double *samples;

static void fail(const char *what, long code)
{
    fprintf(stderr, "pair: %s: %s\n", what, code < 0 ? fi_strerror((int)-code) : strerror(errno));
    exit(1);
}

static void check(long code, const char *what)
{
    if (code < 0)
        fail(what, code);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void control_send(const void *bytes, size_t count)
{
    if (send(control, bytes, count, MSG_NOSIGNAL) != (ssize_t)count)
        exit(0);
}

static void control_receive(void *bytes, size_t count)
{
    if (recv(control, bytes, count, MSG_WAITALL) != (ssize_t)count)
        exit(0);
}

static void open_control(int serves, const char *host, const char *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int yes = 1;
    int one = socket(AF_INET, SOCK_STREAM, 0);
    if (one < 0 || inet_pton(AF_INET, host, &at.sin_addr) != 1)
        fail("address", 0);
    if (serves) {
        setsockopt(one, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(one, (struct sockaddr *)&at, sizeof at) != 0 || listen(one, 1) != 0)
            fail("listen", 0);
        control = accept(one, NULL, NULL);
        close(one);
    } else {
        control = one;
        for (int tries = 0; connect(one, (struct sockaddr *)&at, sizeof at) != 0; tries++) {
            if (tries == 500)
                fail("connect", 0);
            usleep(10000);
            close(one);
            control = one = socket(AF_INET, SOCK_STREAM, 0);
        }
    }
    setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

static void await_event(uint32_t wanted, struct fi_eq_cm_entry *entry)
{
    uint32_t event = 0;
    long got = fi_eq_sread(events, &event, entry, sizeof *entry, 10000, 0);
    if (got < 0) {
        struct fi_eq_err_entry error = {0};
        fi_eq_readerr(events, &error, 0);
        fail("connection", got);
    }
    if (event != wanted)
        fail("connection: unexpected event", -FI_EOTHER);
}

static struct fi_info *hints_of(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = is_message_endpoint ? FI_EP_MSG : FI_EP_RDM;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode =
        FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->fabric_attr->prov_name = strdup(provider);
    if (delivered)
        hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    return hints;
}

/* Opens domain, completion queue, endpoint and memory region. */
static void open_domain(void)
{
    struct fi_cq_attr queue_attributes = {
        .size = 4 * RECEIVES,
        .format = FI_CQ_FORMAT_CONTEXT,
        .wait_obj = sleeps ? FI_WAIT_FD : FI_WAIT_NONE,
    };
    check(fi_domain(fabric, info, &domain, NULL), "domain");
    check(fi_cq_open(domain, &queue_attributes, &queue, NULL), "completion queue");
    check(fi_endpoint(domain, info, &endpoint, NULL), "endpoint");
    check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "bind queue");
    if (is_message_endpoint) {
        check(fi_ep_bind(endpoint, &events->fid, 0), "bind events");
    } else {
        struct fi_av_attr attributes = {.type = FI_AV_TABLE, .count = 1};
        check(fi_av_open(domain, &attributes, &addresses, NULL), "addresses");
        check(fi_ep_bind(endpoint, &addresses->fid, 0), "bind addresses");
    }
    check(fi_enable(endpoint), "enable");
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    check(fi_mr_reg(domain, memory, 2 * BYTES_MAX, access, 0, 1, 0, &region, NULL), "region");
}

static void post_receives(uint64_t most)
{
    while (receives_posted - arrived < most) {
        struct context *context = &receives[receives_posted % RECEIVES];
        context->receive = 1;
        long code = fi_recv(endpoint, in, BYTES_MAX, fi_mr_desc(region), peer, context);
        if (code == -FI_EAGAIN)
            return;
        check(code, "receive");
        receives_posted++;
    }
}

static void connect_message_endpoint(int serves, const char *host, const char *provider)
{
    struct fi_eq_attr attributes = {.wait_obj = FI_WAIT_UNSPEC};
    struct fi_eq_cm_entry entry;
    struct keys where = {0};
    struct fi_info *hints = hints_of(provider);
    peer = 0;
    if (serves) {
        struct fid_pep *listener;
        size_t bytes = sizeof where.name;
        check(fi_getinfo(FI_VERSION(1, 15), host, "0", FI_SOURCE, hints, &info), "provider");
        check(fi_fabric(info->fabric_attr, &fabric, NULL), "fabric");
        check(fi_eq_open(fabric, &attributes, &events, NULL), "events");
        check(fi_passive_ep(fabric, info, &listener, NULL), "listener");
        check(fi_pep_bind(listener, &events->fid, 0), "bind events");
        check(fi_listen(listener), "listen");
        check(fi_getname(&listener->fid, where.name, &bytes), "name");
        where.name_bytes = bytes;
        control_send(&where, sizeof where);
        await_event(FI_CONNREQ, &entry);
        fi_freeinfo(info);
        info = entry.info;
        if (delivered)
            info->tx_attr->op_flags |= FI_DELIVERY_COMPLETE;
        open_domain();
        check(fi_accept(endpoint, NULL, 0), "accept");
    } else {
        control_receive(&where, sizeof where);
        hints->dest_addr = memcpy(malloc(where.name_bytes), where.name, where.name_bytes);
        hints->dest_addrlen = where.name_bytes;
        check(fi_getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &info), "provider");
        check(fi_fabric(info->fabric_attr, &fabric, NULL), "fabric");
        check(fi_eq_open(fabric, &attributes, &events, NULL), "events");
        open_domain();
        check(fi_connect(endpoint, where.name, NULL, 0), "connect");
    }
    await_event(FI_CONNECTED, &entry);
}

static void open_datagram_endpoint(int serves, const char *host, const char *provider)
{
    struct fi_info *hints = hints_of(provider);
    long code = serves ? fi_getinfo(FI_VERSION(1, 15), host, "0", FI_SOURCE, hints, &info)
                       : fi_getinfo(FI_VERSION(1, 15), host, "1", 0, hints, &info);
    check(code, "provider");
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fabric");
    open_domain();
    struct keys mine = {0}, theirs;
    size_t bytes = sizeof mine.name;
    check(fi_getname(&endpoint->fid, mine.name, &bytes), "name");
    control_send(&mine, sizeof mine);
    control_receive(&theirs, sizeof theirs);
    if (fi_av_insert(addresses, theirs.name, 1, &peer, 0, NULL) != 1)
        fail("address of the other end", -FI_EOTHER);
}

static void exchange_keys(void)
{
    struct keys mine = {.key = fi_mr_key(region)}, theirs;
    if (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
        mine.address = (uint64_t)(uintptr_t)memory;
    control_send(&mine, sizeof mine);
    control_receive(&theirs, sizeof theirs);
    peer_address = theirs.address;
    peer_key = theirs.key;
}

/* Polls for completions once and counts them; returns their number. */
static int poll_completions(void)
{
    static unsigned empty_polls;
    struct fi_cq_entry entries[32];
    long got = fi_cq_read(queue, entries, 32);
    if (got == -FI_EAGAIN) {
        if (++empty_polls % YIELD_EVERY == 0)
            sched_yield();
        return 0;
    }
    if (got < 0) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(queue, &error, 0);
        fail("completion", -error.err);
    }
    empty_polls = 0;
    for (long at = 0; at < got; at++) {
        struct context *context = entries[at].op_context;
        if (context->receive)
            arrived++;
        else
            completed++;
    }
    return (int)got;
}

/* Posts one request, and polls for completions while the queue is full. */
static void post(enum test test, size_t bytes)
{
    struct context *context = &sends[posted % IN_FLIGHT];
    void *desc = fi_mr_desc(region);
    long code;
    context->receive = 0;
    for (;;) {
        switch (test) {
        case SEND_LATENCY:
        case SEND_STREAM:
            code = fi_send(endpoint, out, bytes, desc, peer, context);
            break;
        case WRITE_LATENCY:
        case WRITE_STREAM:
            code = fi_write(endpoint, out, bytes, desc, peer, peer_address, peer_key, context);
            break;
        default:
            code = fi_read(endpoint, in, bytes, desc, peer, peer_address + BYTES_MAX, peer_key,
                           context);
        }
        if (code != -FI_EAGAIN)
            break;
        poll_completions();
    }
    check(code, "post");
    posted++;
}

static void reset(void)
{
    posted = completed = 0;
}

static int control_is_readable(void)
{
    static unsigned polls;
    char byte;
    return ++polls % CONTROL_EVERY == 0 && recv(control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static void sleep_until_event(void)
{
    struct fid *fids[1] = {&queue->fid};
    struct pollfd wait[2] = {{.fd = control, .events = POLLIN}, {.events = POLLIN}};
    check(fi_control(&queue->fid, FI_GETWAIT, &wait[1].fd), "descriptor");
    if (fi_trywait(fabric, fids, 1) == FI_SUCCESS)
        poll(wait, 2, 1000);
}

static void wait_for_byte(volatile char *byte, char mark)
{
    while (*byte != mark)
        poll_completions();
}

static void serve(void)
{
    for (;;) {
        struct begin begin;
        char word = 1;
        control_receive(&begin, sizeof begin);
        enum test test = (enum test)begin.test;
        size_t bytes = (size_t)begin.bytes;
        uint64_t first = arrived;
        reset();
        memset(in, 0, bytes);
        control_send(&word, 1);
        switch (test) {
        case SEND_LATENCY:
            for (int64_t number = 0; number < begin.count; number++) {
                while (arrived - first <= (uint64_t)number)
                    poll_completions();
                post_receives(1);
                post(test, bytes);
            }
            break;
        case WRITE_LATENCY:
            for (int64_t number = 0; number < begin.count; number++) {
                char mark = (char)(number % 255 + 1);
                wait_for_byte(in + bytes - 1, mark);
                out[bytes - 1] = mark;
                while (posted - completed == IN_FLIGHT)
                    poll_completions();
                post(test, bytes);
            }
            break;
        case SEND_STREAM:
            while (arrived - first < (uint64_t)begin.count) {
                if (poll_completions() > 0)
                    post_receives(RECEIVES);
            }
            break;
        default:
            for (;;) {
                char byte;
                poll_completions();
                if (!sleeps && control_is_readable())
                    break;
                if (sleeps) {
                    sleep_until_event();
                    if (recv(control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0)
                        break;
                }
            }
        }
        while (completed < posted)
            poll_completions();
        if (test == WRITE_STREAM || test == READ_STREAM || test == READ_LATENCY) {
            control_receive(&word, 1);
            /* The last WRITE of a stream carries the other end's mark in its last byte. */
            if (test == WRITE_STREAM)
                wait_for_byte(in + bytes - 1, word);
        }
        control_send(&word, 1);
    }
}

static void begin(enum test test, size_t bytes, int64_t count)
{
    struct begin begin = {test, (int64_t)bytes, count};
    char word;
    reset();
    memset(in, 0, bytes);
    control_send(&begin, sizeof begin);
    control_receive(&word, 1);
}

static void finish(enum test test, char word)
{
    if (test == WRITE_STREAM || test == READ_STREAM || test == READ_LATENCY)
        control_send(&word, 1);
    /* Polling for completions lets the provider send the bytes that it still buffers. */
    while (recv(control, &word, 1, MSG_DONTWAIT) != 1)
        poll_completions();
}

static int64_t latencies(enum test test, size_t bytes, int64_t count)
{
    uint64_t first = arrived;
    begin(test, bytes, count);
    double before = now();
    for (int64_t number = 0; number < count; number++) {
        char mark = (char)(number % 255 + 1);
        if (test == WRITE_LATENCY) {
            out[bytes - 1] = mark;
            while (posted - completed == IN_FLIGHT)
                poll_completions();
        }
        post(test, bytes);
        if (test == SEND_LATENCY) {
            while (arrived - first <= (uint64_t)number)
                poll_completions();
            post_receives(1);
        } else if (test == WRITE_LATENCY) {
            wait_for_byte(in + bytes - 1, mark);
        } else {
            while (completed <= (uint64_t)number)
                poll_completions();
        }
        double after = now();
        samples[number] = after - before;
        before = after;
    }
    while (completed < posted)
        poll_completions();
    finish(test, 1);
    return count;
}

static double stream(enum test test, size_t bytes, int64_t count)
{
    begin(test, bytes, count);
    out[bytes - 1] = 0;
    double start = now();
    while (completed < (uint64_t)count) {
        while (posted < (uint64_t)count && posted - completed < IN_FLIGHT) {
            if (posted + 1 == (uint64_t)count && test == WRITE_STREAM) {
                /* The last WRITE carries the mark that the server waits for. All earlier ones use the
                 * same buffer, so they must have completed. */
                while (completed < posted)
                    poll_completions();
                out[bytes - 1] = 7;
            }
            post(test, bytes);
        }
        poll_completions();
    }
    finish(test, 7);
    return now() - start;
}

static int by_size(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static void measure(enum test test, size_t bytes, double seconds)
{
    int64_t count = 64;
    double took;
    if (test <= READ_LATENCY) {
        double trips = test == READ_LATENCY ? 1 : 2;
        double start = now();
        latencies(test, bytes, count);
        took = now() - start;
        count = (int64_t)((double)count * seconds / took) + 64;
        latencies(test, bytes, count > SAMPLES_MAX / 16 ? SAMPLES_MAX / 16 : count / 8 + 1);
        start = now();
        count = count > SAMPLES_MAX ? SAMPLES_MAX : count;
        latencies(test, bytes, count);
        double mean = 0;
        for (int64_t at = 0; at < count; at++)
            mean += samples[at] / (double)count;
        qsort(samples, (size_t)count, sizeof *samples, by_size);
        printf("{\"test\": \"%s\", \"bytes\": %zu, \"iterations\": %lld, \"median_us\": %.3f, "
               "\"mean_us\": %.3f, \"p99_us\": %.3f}\n",
               NAMES[test], bytes, (long long)count, 1e6 * samples[count / 2] / trips,
               1e6 * mean / trips, 1e6 * samples[count / 100 * 99] / trips);
    } else {
        count = IN_FLIGHT;
        took = stream(test, bytes, count);
        count = (int64_t)((double)count * seconds / took / 4) + IN_FLIGHT;
        took = stream(test, bytes, count);
        count = (int64_t)((double)count * seconds / took) + IN_FLIGHT;
        took = stream(test, bytes, count);
        double rate = (double)count / took;
        printf("{\"test\": \"%s\", \"bytes\": %zu, \"iterations\": %lld, \"per_second\": %.1f}\n",
               NAMES[test], bytes, (long long)count, rate);
    }
    fflush(stdout);
}

static enum test test_of(const char *name, size_t bytes)
{
    for (int test = 0; test < TESTS; test++)
        if (strlen(NAMES[test]) == bytes && strncmp(NAMES[test], name, bytes) == 0)
            return (enum test)test;
    fprintf(stderr, "pair: no such test: %s\n", name);
    exit(2);
}

int main(int count, char **words)
{
    if (count < 8) {
        fprintf(stderr, "see the head of pair.c\n");
        return 2;
    }
    int serves = strcmp(words[1], "serve") == 0;
    const char *host = words[3], *provider = words[4];
    is_message_endpoint = strcmp(words[5], "msg") == 0;
    sleeps = serves && strcmp(words[6], "sleeps") == 0;
    delivered = strcmp(words[7], "delivered") == 0;
    if (posix_memalign((void **)&memory, 4096, 2 * BYTES_MAX) != 0)
        fail("memory", 0);
    memset(memory, 0, 2 * BYTES_MAX);
    in = memory;
    out = memory + BYTES_MAX;
    samples = calloc(SAMPLES_MAX, sizeof *samples);
    open_control(serves, host, words[2]);
    if (is_message_endpoint)
        connect_message_endpoint(serves, host, provider);
    else
        open_datagram_endpoint(serves, host, provider);
    exchange_keys();
    post_receives(serves ? RECEIVES : 2);
    if (serves) {
        serve();
        return 0;
    }
    printf("{\"provider\": \"%s\", \"version\": \"%u.%u\"}\n", info->fabric_attr->prov_name,
           FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    double seconds = atof(words[8]);
    for (int at = 9; at < count; at++) {
        const char *colon = strchr(words[at], ':');
        if (colon == NULL)
            fail("TEST:BYTES", -FI_EINVAL);
        size_t bytes = strtoul(colon + 1, NULL, 10);
        if (bytes == 0 || bytes > BYTES_MAX)
            fail("bytes", -FI_EINVAL);
        measure(test_of(words[at], (size_t)(colon - words[at])), bytes, seconds);
    }
    return 0;
}
