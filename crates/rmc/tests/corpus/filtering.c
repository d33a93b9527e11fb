/* What is kept of an array; its length depends on the data. */
#include "corpus.h"

PROGRAM(filter_greater) {
    u32 a[N], out[N] = {0}, kept = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        if (a[i] > (u32)p[1])
            out[kept++] = a[i];
    return kept == 0 ? 0 : farside_crc32c(out, sizeof *out, kept);
}

/* What was written is sent, as far as it was. */
PROGRAM(filter_in_place) {
    u64 a[N];
    u32 kept = 0;
    READ(a);
    for (u32 i = 0; i < N; i++)
        if (a[i] & 1)
            a[kept++] = a[i];
    return farside_emit(a, kept * sizeof *a);
}

PROGRAM(unique_sorted) {
    u32 a[N], kept = 1;
    READ(a);
    for (int i = 1; i < N; i++)
        if (a[i] != a[kept - 1])
            a[kept++] = a[i];
    return farside_emit(a, kept * 4);
}

PROGRAM(split_even_odd) {
    u8 a[N], even[N] = {0}, odd[N] = {0}, evens = 0, odds = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        if (a[i] & 1)
            odd[odds++] = a[i];
        else
            even[evens++] = a[i];
    farside_emit(even, sizeof even);
    return farside_emit(odd, sizeof odd);
}

static u32 page[256];

/* A 32-bit count is compared, then scaled. */
PROGRAM(scaled_length) {
    u32 n = p[1];
    if (n > 256)
        return FARSIDE_OUT_OF_RANGE;
    return farside_read(0, p[0], page, n * 4ull);
}

/* An int is compared at both ends, then used as a length. */
PROGRAM(signed_length) {
    char bytes[100] = {0};
    int n = p[1];
    if (n < 0 || n > 100)
        return FARSIDE_OUT_OF_RANGE;
    farside_read(0, p[0], bytes, n);
    return farside_emit(bytes, n);
}

/* The rest of a buffer after an offset: at + (100 - at) is 100. */
PROGRAM(rest_of_buffer) {
    char bytes[100] = {0};
    u64 at = p[1];
    if (at > 100)
        return FARSIDE_OUT_OF_RANGE;
    farside_read(0, p[0], bytes + at, 100 - at);
    return farside_emit(bytes, 100);
}

/* An offset and a length that are bounded by their sum. */
PROGRAM(slice) {
    u8 bytes[N * 4] = {0};
    u32 at = p[1], length = p[2];
    if (at > sizeof bytes || length > sizeof bytes - at)
        return FARSIDE_OUT_OF_RANGE;
    farside_read(0, p[0], bytes, sizeof bytes);
    return farside_emit(bytes + at, length);
}

PROGRAM(clamped_read) {
    u8 bytes[N] = {0};
    u64 length = p[1] < sizeof bytes ? p[1] : sizeof bytes;
    farside_read(0, p[0], bytes, length);
    return farside_emit(bytes, length);
}

PROGRAM(sum_of_prefix) {
    u32 a[N], n = p[1];
    READ(a);
    if (n > N)
        n = N;
    u64 sum = 0;
    for (u32 i = 0; i < n; i++)
        sum += a[i];
    return sum;
}

PROGRAM(reverse) {
    u8 a[N];
    READ(a);
    for (int i = 0, j = N - 1; i < j; i++, j--) {
        u8 t = a[i];
        a[i] = a[j];
        a[j] = t;
    }
    return farside_emit(a, sizeof a);
}

PROGRAM(rotate) {
    u8 a[N], out[N];
    READ(a);
    u32 by = p[1] % N;
    for (u32 i = 0; i < N; i++)
        out[i] = a[(i + by) % N];
    return farside_emit(out, sizeof out);
}

PROGRAM(move_zeros) {
    u16 a[N];
    READ(a);
    u32 to = 0;
    for (u32 i = 0; i < N; i++)
        if (a[i])
            a[to++] = a[i];
    while (to < N)
        a[to++] = 0;
    return farside_emit(a, sizeof a);
}
