/* The least, the greatest, searches and counts. */
#include "corpus.h"

/* The greatest of an array of any length, read by pieces. */
PROGRAM(max_of_array) {
    u64 a = 0;
    for (u64 i = 0; i < p[1]; i += 32) {
        u64 chunk[32] = {0};
        i64 status = farside_read(0, p[0] + 8 * i, chunk, sizeof chunk);
        if (status)
            return status;
        for (u64 j = 0; j < 32; j++)
            if (chunk[j] > a)
                a = chunk[j];
    }
    return a;
}

PROGRAM(min_signed) {
    i64 a[N], least = 0x7fffffffffffffffLL;
    READ(a);
    for (int i = 0; i < N; i++)
        if (a[i] < least)
            least = a[i];
    return least;
}

PROGRAM(index_of_max) {
    u32 a[N], at = 0;
    READ(a);
    for (u32 i = 1; i < N; i++)
        if (a[i] > a[at])
            at = i;
    return at;
}

PROGRAM(second_greatest) {
    u32 a[N], first = 0, second = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        if (a[i] > first) {
            second = first;
            first = a[i];
        } else if (a[i] > second)
            second = a[i];
    return second;
}

PROGRAM(binary_search) {
    u64 a[N];
    READ(a);
    int low = 0, high = N - 1;
    while (low <= high) {
        int middle = (low + high) >> 1;
        if (a[middle] == p[1])
            return middle;
        if (a[middle] < p[1])
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

PROGRAM(lower_bound) {
    u32 a[N];
    READ(a);
    u32 low = 0, count = N;
    while (count > 0) {
        u32 half = count / 2;
        if (low + half < N && a[low + half] < (u32)p[1]) {
            low += half + 1;
            count -= half + 1;
        } else
            count = half;
    }
    return low;
}

/* Over host memory: nothing but words. */
PROGRAM(lower_bound_remote) {
    u64 low = 0, high = p[1];
    while (low < high) {
        u64 middle = low + (high - low) / 2;
        if (farside_load_u64(0, p[0] + 8 * middle) < p[2])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

PROGRAM(count_equal) {
    u8 a[N];
    u64 found = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        if (a[i] == (u8)p[1])
            found++;
    return found;
}

/* Two nested loops over one array. */
PROGRAM(pairs) {
    u32 a[N];
    u64 found = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        for (int j = i + 1; j < N; j++)
            if ((a[i] ^ a[j]) % 7 == 0)
                found++;
    return found;
}

PROGRAM(has_duplicate) {
    u32 a[N];
    READ(a);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < i; j++)
            if (a[i] == a[j])
                return 1;
    return 0;
}

PROGRAM(majority) {
    u8 a[N], candidate = 0;
    u32 votes = 0;
    READ(a);
    for (int i = 0; i < N; i++) {
        if (votes == 0)
            candidate = a[i];
        votes += a[i] == candidate ? 1 : -1;
    }
    return candidate;
}

PROGRAM(longest_ascent) {
    u32 a[N], best = 1, length = 1;
    READ(a);
    for (int i = 1; i < N; i++) {
        length = a[i] > a[i - 1] ? length + 1 : 1;
        if (length > best)
            best = length;
    }
    return best;
}

PROGRAM(greatest_sum) {
    i32 a[N];
    READ(a);
    i64 best = 0, here = 0;
    for (int i = 0; i < N; i++) {
        here += a[i];
        if (here < 0)
            here = 0;
        if (here > best)
            best = here;
    }
    return best;
}
