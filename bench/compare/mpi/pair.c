/* Two processes under MPI: ping-pong latency and message rate with 64 messages in flight.
 *
 *   mpirun -n 2 pair WINDOWS PROCESSOR PROCESSOR
 *
 * Rank 0 prints one line of JSON for each figure, in the form of src/figure.rs. Every figure is measured
 * twice: "openmpi" sends the contents of the buffer, as common MPI benchmarks do; "openmpi-written" writes
 * every byte of a message before it sends it. In both, the receiver gets the bytes in its own buffer. */

#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    IN_FLIGHT = 64,       /* messages of a stream that are sent before waiting for an answer */
    BYTES_MAX = 64 << 10,
    WARM_UP = 8,          /* windows that are discarded */
    TAG = 1,
    TAG_ANSWER = 2,
};

static const int SIZES[] = {8, 64, 1 << 10, 64 << 10};
static const double WINDOW_SECONDS = 400e-6;

static int rank;
static int windows;
static int written; /* whether senders write each message */
static char *out;   /* buffers for IN_FLIGHT messages to send, and for as many to receive */
static char *in;

static void bind_to(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("sched_setaffinity");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static char *message(char *buffer, int number, int bytes)
{
    /* Unwritten messages share one buffer, as in common benchmarks. */
    return buffer + (written ? (size_t)number * bytes : 0);
}

static void fill(char *to, int bytes, long number)
{
    if (written)
        memset(to, (int)(number & 0xff), bytes);
}

static void check(const char *got, int bytes, long number)
{
    char expected = (char)(number & 0xff);
    if (written && (got[0] != expected || got[bytes - 1] != expected)) {
        fprintf(stderr, "message %ld is torn or out of order\n", number);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Does `count` round trips. */
static void ping_pong(int bytes, int count)
{
    for (int number = 0; number < count; number++) {
        if (rank == 0) {
            fill(out, bytes, number);
            MPI_Send(out, bytes, MPI_CHAR, 1, TAG, MPI_COMM_WORLD);
            MPI_Recv(in, bytes, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(in, bytes, number);
        } else {
            MPI_Recv(in, bytes, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(in, bytes, number);
            fill(out, bytes, number);
            MPI_Send(out, bytes, MPI_CHAR, 0, TAG, MPI_COMM_WORLD);
        }
    }
}

/* Sends `count` bursts of 64 messages from rank 0, which waits for a short answer to each burst. */
static void stream(int bytes, int count)
{
    MPI_Request requests[IN_FLIGHT];
    for (int burst = 0; burst < count; burst++) {
        for (int number = 0; number < IN_FLIGHT; number++) {
            if (rank == 0) {
                char *from = message(out, number, bytes);
                fill(from, bytes, number);
                MPI_Isend(from, bytes, MPI_CHAR, 1, TAG, MPI_COMM_WORLD, &requests[number]);
            } else {
                char *into = message(in, number, bytes);
                MPI_Irecv(into, bytes, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, &requests[number]);
            }
        }
        MPI_Waitall(IN_FLIGHT, requests, MPI_STATUSES_IGNORE);
        if (rank == 0) {
            MPI_Recv(NULL, 0, MPI_CHAR, 1, TAG_ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int number = 0; number < IN_FLIGHT; number++)
                check(message(in, number, bytes), bytes, number);
            MPI_Send(NULL, 0, MPI_CHAR, 0, TAG_ANSWER, MPI_COMM_WORLD);
        }
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the seconds of one `run` of `count`, measured at rank 0; both ranks start together. */
static double window(void (*run)(int, int), int bytes, int count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    run(bytes, count);
    double seconds = MPI_Wtime() - start;
    MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return seconds;
}

/* Measures the best and median seconds of one operation over all windows. */
static void measure(void (*run)(int, int), int bytes, double *best, double *median)
{
    int count = 1;
    double *seconds = malloc(windows * sizeof *seconds);
    if (!seconds)
        MPI_Abort(MPI_COMM_WORLD, 1);
    window(run, bytes, 1);
    while (window(run, bytes, count) < WINDOW_SECONDS / 2 && count < 1 << 24)
        count *= 2;
    for (int at = -WARM_UP; at < windows; at++) {
        double each = window(run, bytes, count) / count;
        if (at >= 0)
            seconds[at] = each;
    }
    qsort(seconds, windows, sizeof *seconds, by_size);
    *best = seconds[0];
    *median = seconds[windows / 2];
    free(seconds);
}

static void print_head(int bytes)
{
    printf("{\"channel\":\"openmpi%s\",\"message_bytes\":%d,\"payload\":\"%s\",\"wait\":\"spin\",",
           written ? "-written" : "", bytes, written ? "copied" : "unwritten");
}

static void print_figures(int bytes)
{
    double best, median;
    measure(ping_pong, bytes, &best, &median);
    if (rank == 0) {
        print_head(bytes);
        printf("\"latency_ns\":{\"best\":%.1f,\"median\":%.1f}}\n", best * 1e9 / 2, median * 1e9 / 2);
    }
    measure(stream, bytes, &best, &median);
    if (rank == 0) {
        print_head(bytes);
        best = IN_FLIGHT / best;
        median = IN_FLIGHT / median;
        printf("\"messages_per_second\":{\"best\":%.0f,\"median\":%.0f},", best, median);
        printf("\"bytes_per_second\":{\"best\":%.0f,\"median\":%.0f}}\n", best * bytes, median * bytes);
        fflush(stdout);
    }
}

int main(int words, char **word)
{
    int ranks;
    MPI_Init(&words, &word);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    windows = words == 4 ? atoi(word[1]) : 0;
    if (ranks != 2 || windows < 1) {
        fprintf(stderr, "usage: mpirun -n 2 pair WINDOWS PROCESSOR PROCESSOR\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    bind_to(atoi(word[2 + rank]));
    out = calloc(IN_FLIGHT, BYTES_MAX);
    in = calloc(IN_FLIGHT, BYTES_MAX);
    if (!out || !in)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t at = 0; at < sizeof SIZES / sizeof *SIZES; at++) {
        for (written = 0; written < 2; written++)
            print_figures(SIZES[at]);
    }
    MPI_Finalize();
    return 0;
}
