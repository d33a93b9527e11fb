/* Hashes, checksums and sums. */
#include "corpus.h"

PROGRAM(fnv1a) {
    u8 a[N];
    u64 hash = 0xcbf29ce484222325ULL;
    READ(a);
    for (int i = 0; i < N; i++)
        hash = (hash ^ a[i]) * 0x100000001b3ULL;
    return hash;
}

PROGRAM(adler32) {
    u8 a[N];
    u32 low = 1, high = 0;
    READ(a);
    for (int i = 0; i < N; i++) {
        low = (low + a[i]) % 65521;
        high = (high + low) % 65521;
    }
    return high << 16 | low;
}

PROGRAM(fletcher16) {
    u8 a[N];
    u16 low = 0, high = 0;
    READ(a);
    for (int i = 0; i < N; i++) {
        low = (low + a[i]) % 255;
        high = (high + low) % 255;
    }
    return high << 8 | low;
}

PROGRAM(internet_checksum) {
    u16 a[N];
    u32 sum = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        sum += a[i];
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (u16)~sum;
}

PROGRAM(crc8_bitwise) {
    u8 a[N], crc = 0;
    READ(a);
    for (int i = 0; i < N; i++) {
        crc ^= a[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 0x80 ? crc << 1 ^ 7 : crc << 1;
    }
    return crc;
}

PROGRAM(pearson) {
    static const u8 table[16] = {14, 3, 7, 9, 1, 0, 12, 5, 10, 2, 15, 4, 6, 13, 11, 8};
    u8 a[N], hash = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        hash = table[(hash ^ a[i]) & 15];
    return hash;
}

PROGRAM(mean_and_deviation) {
    u32 a[N];
    u64 sum = 0, far = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        sum += a[i];
    u32 mean = sum / N;
    for (int i = 0; i < N; i++)
        far += a[i] > mean ? a[i] - mean : mean - a[i];
    return far;
}

PROGRAM(bloom_test) {
    u64 filter[N], hash = p[1];
    READ(filter);
    for (int k = 0; k < 4; k++) {
        u32 bit = hash % (N * 64);
        if (!(filter[bit / 64] >> (bit % 64) & 1))
            return 0;
        hash = hash * 0x9e3779b97f4a7c15ULL + 1;
    }
    return 1;
}

PROGRAM(histogram) {
    u8 a[N];
    u16 bins[8] = {0};
    READ(a);
    for (int i = 0; i < N; i++)
        bins[a[i] >> 5]++;
    u32 best = 0;
    for (u32 b = 1; b < 8; b++)
        if (bins[b] > bins[best])
            best = b;
    return best;
}

/* The length comes with the call; the buffer is used again. */
PROGRAM(sum_of_stream) {
    u8 a[N];
    u64 sum = 0, left = p[1];
    u64 at = p[0];
    while (left) {
        u64 now = left < sizeof a ? left : sizeof a;
        for (int i = 0; i < N; i++)
            a[i] = 0;
        if (farside_read(0, at, a, now))
            return -1;
        for (int i = 0; i < N; i++)
            sum += a[i];
        at += now;
        left -= now;
    }
    return sum;
}
