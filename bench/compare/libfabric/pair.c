/* Two processes over libfabric: latency, rate and bandwidth, as `farside bench fabric` measures them.
 *
 *   pair serve PORT HOST PROVIDER msg|rdm polls|sleeps delivered|sent
 *   pair measure PORT HOST PROVIDER msg|rdm polls|sleeps delivered|sent SECONDS TEST:BYTES...
 *
 * HOST is where the server listens and PORT where the two agree on tests, over a socket of its own.
 * TEST is one of
 *   send-latency     half of a round trip of a message; both ends poll
 *   write-latency    half of a round trip of WRITEs; both ends look at their memory while they poll
 *   read-latency     a whole READ; the server's program polls or sleeps, as told
 *   send-stream, write-stream, read-stream
 *                    UNDER_WAY requests under way, until the server has everything
 * `delivered` asks for FI_DELIVERY_COMPLETE: a completion says that the bytes are at the target, as
 * Farside's do. With `sent` a completion is what the provider takes for one, usually that the kernel
 * has the bytes; the final wait for the server is part of the time.
 *
 * The measuring end prints a line of JSON for each test. Both processes progress in the thread that
 * calls, as the provider does best: FI_THREAD_DOMAIN and manual progress. */

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
    UNDER_WAY = 128,      /* requests of a stream */
    RECEIVES = 256,       /* posted by the end that takes messages */
    BYTES_MAX = 1 << 20,
    SAMPLES_MAX = 1 << 20,
    LOOK_EVERY = 1024,    /* polls between two looks at the other socket */
    YIELD_EVERY = 256,    /* polls in vain after which others may run, as Farside's ends do */
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

/* Which completion it is; the provider may use the front. */
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
/* Two halves: what comes in, and what goes out. */
static char *memory;
static char *in, *out;
static struct context sends[UNDER_WAY], receives[RECEIVES];
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

static void say(const void *bytes, size_t count)
{
    if (send(control, bytes, count, MSG_NOSIGNAL) != (ssize_t)count)
        exit(0);
}

static void hear(void *bytes, size_t count)
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
        fail("connection: another event", -FI_EOTHER);
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

/* Everything of a process but its endpoint's peer. */
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
        say(&where, sizeof where);
        await_event(FI_CONNREQ, &entry);
        fi_freeinfo(info);
        info = entry.info;
        if (delivered)
            info->tx_attr->op_flags |= FI_DELIVERY_COMPLETE;
        open_domain();
        check(fi_accept(endpoint, NULL, 0), "accept");
    } else {
        hear(&where, sizeof where);
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
    say(&mine, sizeof mine);
    hear(&theirs, sizeof theirs);
    if (fi_av_insert(addresses, theirs.name, 1, &peer, 0, NULL) != 1)
        fail("address of the other end", -FI_EOTHER);
}

static void exchange_keys(void)
{
    struct keys mine = {.key = fi_mr_key(region)}, theirs;
    if (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
        mine.address = (uint64_t)(uintptr_t)memory;
    say(&mine, sizeof mine);
    hear(&theirs, sizeof theirs);
    peer_address = theirs.address;
    peer_key = theirs.key;
}

/* Takes what has ended; how much. */
static int turn(void)
{
    static unsigned alone;
    struct fi_cq_entry entries[32];
    long got = fi_cq_read(queue, entries, 32);
    if (got == -FI_EAGAIN) {
        if (++alone % YIELD_EVERY == 0)
            sched_yield();
        return 0;
    }
    if (got < 0) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(queue, &error, 0);
        fail("completion", -error.err);
    }
    alone = 0;
    for (long at = 0; at < got; at++) {
        struct context *context = entries[at].op_context;
        if (context->receive)
            arrived++;
        else
            completed++;
    }
    return (int)got;
}

/* Posts one request, taking completions until there is room. */
static void post(enum test test, size_t bytes)
{
    struct context *context = &sends[posted % UNDER_WAY];
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
        turn();
    }
    check(code, "post");
    posted++;
}

static void reset(void)
{
    posted = completed = 0;
}

static int control_speaks(void)
{
    static unsigned polls;
    char byte;
    return ++polls % LOOK_EVERY == 0 && recv(control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
}

static void sleep_a_while(void)
{
    struct fid *fids[1] = {&queue->fid};
    struct pollfd wait[2] = {{.fd = control, .events = POLLIN}, {.events = POLLIN}};
    check(fi_control(&queue->fid, FI_GETWAIT, &wait[1].fd), "descriptor");
    if (fi_trywait(fabric, fids, 1) == FI_SUCCESS)
        poll(wait, 2, 1000);
}

static void look_for(volatile char *place, char mark)
{
    while (*place != mark)
        turn();
}

static void serve(void)
{
    for (;;) {
        struct begin begin;
        char word = 1;
        hear(&begin, sizeof begin);
        enum test test = (enum test)begin.test;
        size_t bytes = (size_t)begin.bytes;
        uint64_t first = arrived;
        reset();
        memset(in, 0, bytes);
        say(&word, 1);
        switch (test) {
        case SEND_LATENCY:
            for (int64_t number = 0; number < begin.count; number++) {
                while (arrived - first <= (uint64_t)number)
                    turn();
                post_receives(1);
                post(test, bytes);
            }
            break;
        case WRITE_LATENCY:
            for (int64_t number = 0; number < begin.count; number++) {
                char mark = (char)(number % 255 + 1);
                look_for(in + bytes - 1, mark);
                out[bytes - 1] = mark;
                while (posted - completed == UNDER_WAY)
                    turn();
                post(test, bytes);
            }
            break;
        case SEND_STREAM:
            while (arrived - first < (uint64_t)begin.count) {
                if (turn() > 0)
                    post_receives(RECEIVES);
            }
            break;
        default:
            for (;;) {
                char byte;
                turn();
                if (!sleeps && control_speaks())
                    break;
                if (sleeps) {
                    sleep_a_while();
                    if (recv(control, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0)
                        break;
                }
            }
        }
        while (completed < posted)
            turn();
        if (test == WRITE_STREAM || test == READ_STREAM || test == READ_LATENCY) {
            hear(&word, 1);
            /* The last byte of a stream of WRITEs is what the other end marks it with. */
            if (test == WRITE_STREAM)
                look_for(in + bytes - 1, word);
        }
        say(&word, 1);
    }
}

static void begin(enum test test, size_t bytes, int64_t count)
{
    struct begin begin = {test, (int64_t)bytes, count};
    char word;
    reset();
    memset(in, 0, bytes);
    say(&begin, sizeof begin);
    hear(&word, 1);
}

static void finish(enum test test, char word)
{
    if (test == WRITE_STREAM || test == READ_STREAM || test == READ_LATENCY)
        say(&word, 1);
    /* Bytes that the provider still holds go out while it is asked for completions. */
    while (recv(control, &word, 1, MSG_DONTWAIT) != 1)
        turn();
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
            while (posted - completed == UNDER_WAY)
                turn();
        }
        post(test, bytes);
        if (test == SEND_LATENCY) {
            while (arrived - first <= (uint64_t)number)
                turn();
            post_receives(1);
        } else if (test == WRITE_LATENCY) {
            look_for(in + bytes - 1, mark);
        } else {
            while (completed <= (uint64_t)number)
                turn();
        }
        double after = now();
        samples[number] = after - before;
        before = after;
    }
    while (completed < posted)
        turn();
    finish(test, 1);
    return count;
}

static double stream(enum test test, size_t bytes, int64_t count)
{
    begin(test, bytes, count);
    out[bytes - 1] = 0;
    double start = now();
    while (completed < (uint64_t)count) {
        while (posted < (uint64_t)count && posted - completed < UNDER_WAY) {
            if (posted + 1 == (uint64_t)count && test == WRITE_STREAM) {
                /* The last one carries the mark that the server looks for: all before it must have
                 * left the buffer. */
                while (completed < posted)
                    turn();
                out[bytes - 1] = 7;
            }
            post(test, bytes);
        }
        turn();
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
        count = UNDER_WAY;
        took = stream(test, bytes, count);
        count = (int64_t)((double)count * seconds / took / 4) + UNDER_WAY;
        took = stream(test, bytes, count);
        count = (int64_t)((double)count * seconds / took) + UNDER_WAY;
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
