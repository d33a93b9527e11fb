/* Sorting and order: data decide on most branches. */
#include "corpus.h"

PROGRAM(insertion_sort) {
    u32 a[N];
    READ(a);
    for (int i = 1; i < N; i++) {
        u32 key = a[i];
        int j = i - 1;
        while (j >= 0 && a[j] > key) {
            a[j + 1] = a[j];
            j--;
        }
        a[j + 1] = key;
    }
    return farside_emit(a, sizeof a);
}

PROGRAM(bubble_sort) {
    u32 a[N];
    READ(a);
    for (int i = 0; i < N; i++)
        for (int j = 0; j + 1 < N - i; j++)
            if (a[j] > a[j + 1]) {
                u32 t = a[j];
                a[j] = a[j + 1];
                a[j + 1] = t;
            }
    return farside_emit(a, sizeof a);
}

PROGRAM(selection_sort) {
    u32 a[N];
    READ(a);
    for (int i = 0; i < N - 1; i++) {
        int least = i;
        for (int j = i + 1; j < N; j++)
            if (a[j] < a[least])
                least = j;
        u32 t = a[i];
        a[i] = a[least];
        a[least] = t;
    }
    return farside_emit(a, sizeof a);
}

PROGRAM(shell_sort) {
    u32 a[N];
    READ(a);
    for (u32 gap = N / 2; gap > 0; gap /= 2)
        for (u32 i = gap; i < N; i++) {
            u32 t = a[i], j = i;
            for (; j >= gap && a[j - gap] > t; j -= gap)
                a[j] = a[j - gap];
            a[j] = t;
        }
    return farside_emit(a, sizeof a);
}

PROGRAM(counting_sort) {
    u8 a[N], out[N], count[16] = {0};
    READ(a);
    for (int i = 0; i < N; i++)
        count[a[i] & 15]++;
    u32 at = 0;
    for (int v = 0; v < 16; v++)
        for (u32 k = 0; k < count[v] && at < N; k++)
            out[at++] = v;
    for (; at < N; at++)
        out[at] = 255;
    return farside_emit(out, sizeof out);
}

PROGRAM(is_sorted) {
    u64 a[N];
    READ(a);
    for (int i = 1; i < N; i++)
        if (a[i - 1] > a[i])
            return i;
    return 0;
}

PROGRAM(merge_two) {
    u32 a[N], b[N];
    READ(a);
    if (farside_read(0, p[0] + sizeof a, b, sizeof b))
        return FARSIDE_NOT_PERMITTED;
    u64 hash = 0;
    u32 i = 0, j = 0;
    while (i < N && j < N) {
        u32 least = a[i] <= b[j] ? a[i++] : b[j++];
        hash = hash * 31 + least;
    }
    while (i < N)
        hash = hash * 31 + a[i++];
    while (j < N)
        hash = hash * 31 + b[j++];
    return hash;
}

PROGRAM(heapify) {
    u32 a[N];
    READ(a);
    for (int start = N / 2 - 1; start >= 0; start--) {
        int root = start;
        while (2 * root + 1 < N) {
            int child = 2 * root + 1;
            if (child + 1 < N && a[child] < a[child + 1])
                child++;
            if (a[root] >= a[child])
                break;
            u32 t = a[root];
            a[root] = a[child];
            a[child] = t;
            root = child;
        }
    }
    return a[0];
}

PROGRAM(heap_push) {
    u32 a[N];
    READ(a);
    u32 at = N - 1;
    a[at] = p[1];
    while (at > 0) {
        u32 parent = (at - 1) / 2;
        if (a[parent] >= a[at])
            break;
        u32 t = a[parent];
        a[parent] = a[at];
        a[at] = t;
        at = parent;
    }
    return at;
}

PROGRAM(median_of_three) {
    u64 a[3];
    READ(a);
    u64 low = a[0] < a[1] ? a[0] : a[1], high = a[0] < a[1] ? a[1] : a[0];
    return a[2] < low ? low : a[2] > high ? high : a[2];
}

PROGRAM(partition) {
    u32 a[N];
    READ(a);
    u32 pivot = p[1], kept = 0;
    for (u32 i = 0; i < N; i++)
        if (a[i] < pivot) {
            u32 t = a[kept];
            a[kept] = a[i];
            a[i] = t;
            kept++;
        }
    return kept;
}
