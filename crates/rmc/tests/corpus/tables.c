/* Bit fields, tables, matrices, queues, graphs. */
#include "corpus.h"

PROGRAM(population_count) {
    u64 a[N], count = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        for (u64 left = a[i]; left; left &= left - 1)
            count++;
    return count;
}

PROGRAM(first_free_bit) {
    u64 a[N];
    READ(a);
    for (u32 i = 0; i < N; i++)
        if (~a[i])
            for (u32 bit = 0; bit < 64; bit++)
                if (!(a[i] >> bit & 1))
                    return i * 64 + bit;
    return -1;
}

PROGRAM(set_bits) {
    u64 map[4] = {0};
    u8 a[N];
    READ(a);
    for (int i = 0; i < N; i++)
        map[a[i] / 64] |= 1ull << a[i] % 64;
    return farside_emit(map, sizeof map);
}

struct fields {
    u32 kind : 3, level : 5, length : 12, rest : 12;
};

PROGRAM(bit_fields) {
    struct fields a[N];
    u64 sums[8] = {0};
    READ(a);
    for (int i = 0; i < N; i++)
        sums[a[i].kind] += a[i].length + a[i].level;
    return farside_emit(sums, sizeof sums);
}

PROGRAM(bit_reader) {
    u8 bytes[N];
    READ(bytes);
    u64 sum = 0;
    u32 at = 0;
    while (at + 8 <= N * 8) {
        u32 width = 1 + (bytes[at / 8] >> (at % 8) & 3);
        sum += width;
        at += width;
    }
    return sum;
}

PROGRAM(dispatch_table) {
    static const u32 weights[10] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
    u8 a[N];
    u64 sum = 0;
    READ(a);
    for (int i = 0; i < N; i++)
        if (a[i] < 10)
            sum += weights[a[i]];
    return sum;
}

PROGRAM(open_addressing) {
    struct entry {
        u32 key, value;
    } table[N];
    READ(table);
    u32 key = p[1], at = key % N;
    for (u32 tries = 0; tries < N; tries++) {
        if (table[at].key == key)
            return table[at].value;
        if (++at == N)
            at = 0;
    }
    return FARSIDE_NOT_FOUND;
}

PROGRAM(records_of_24_bytes) {
    struct record {
        u64 key, value;
        u32 next, flags;
    } records[N > 20 ? 20 : N];
    READ(records);
    u64 sum = 0;
    for (u32 i = 0; i < sizeof records / sizeof *records; i++)
        if (records[i].flags & 1)
            sum += records[i].value;
    return sum;
}

PROGRAM(linked_by_index) {
    struct node {
        u32 key, next;
    } nodes[N];
    READ(nodes);
    u32 at = p[1];
    for (int step = 0; step < N && at < N; step++) {
        if (nodes[at].key == (u32)p[2])
            return at;
        at = nodes[at].next;
    }
    return -1;
}

PROGRAM(matrix_product) {
    i32 a[16], b[16], c[16];
    READ(a);
    if (farside_read(0, p[0] + sizeof a, b, sizeof b))
        return FARSIDE_NOT_PERMITTED;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            i32 sum = 0;
            for (int k = 0; k < 4; k++)
                sum += a[i * 4 + k] * b[k * 4 + j];
            c[i * 4 + j] = sum;
        }
    return farside_emit(c, sizeof c);
}

PROGRAM(transpose) {
    u8 a[8][8], b[8][8];
    READ(a);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            b[j][i] = a[i][j];
    return farside_emit(b, sizeof b);
}

PROGRAM(prefix_sums) {
    u32 a[N];
    READ(a);
    for (int i = 1; i < N; i++)
        a[i] += a[i - 1];
    return farside_emit(a, sizeof a);
}

PROGRAM(ring_buffer) {
    u8 ring[16] = {0}, a[N];
    u32 head = 0, tail = 0;
    READ(a);
    for (int i = 0; i < N; i++) {
        if (a[i] & 1) {
            if (head - tail < 16)
                ring[head++ % 16] = a[i];
        } else if (tail != head)
            tail++;
    }
    return head - tail;
}

PROGRAM(sieve) {
    u8 composite[N] = {0};
    u32 primes = 0;
    for (u32 i = 2; i < N; i++) {
        if (composite[i])
            continue;
        primes++;
        for (u32 j = i * 2; j < N; j += i)
            composite[j] = 1;
    }
    return primes;
}

PROGRAM(union_find) {
    u8 parent[N], links[N];
    READ(links);
    for (int i = 0; i < N; i++)
        parent[i] = i;
    for (int i = 0; i < N; i++) {
        u32 a = i, b = links[i] % N;
        for (int s = 0; s < N && a < N && parent[a] != a; s++)
            a = parent[a];
        for (int s = 0; s < N && b < N && parent[b] != b; s++)
            b = parent[b];
        if (a < N)
            parent[a] = b;
    }
    u32 sets = 0;
    for (int i = 0; i < N; i++)
        sets += parent[i] == i;
    return sets;
}

PROGRAM(greatest_common_divisor) {
    u64 a = p[1], b = p[2];
    while (b) {
        u64 rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

PROGRAM(integer_root) {
    u64 value = p[1], root = 0;
    for (u64 bit = 1ull << 31; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= value)
            root |= bit;
    return root;
}

PROGRAM(power) {
    u64 base = p[1], result = 1;
    for (u32 left = p[2]; left; left >>= 1) {
        if (left & 1)
            result *= base;
        base *= base;
    }
    return result;
}

PROGRAM(breadth_first) {
    u8 edges[N], queue[N], seen[N] = {0};
    READ(edges);
    u32 head = 0, tail = 0;
    queue[tail++] = 0;
    seen[0] = 1;
    while (head < tail && head < N) {
        u32 next = edges[queue[head++] % N] % N;
        if (!seen[next] && tail < N) {
            seen[next] = 1;
            queue[tail++] = next;
        }
    }
    return tail;
}

PROGRAM(edit_distance) {
    u8 a[8], b[8], row[9];
    READ(a);
    if (farside_read(0, p[0] + 8, b, sizeof b))
        return FARSIDE_NOT_PERMITTED;
    for (int j = 0; j <= 8; j++)
        row[j] = j;
    for (int i = 1; i <= 8; i++) {
        u8 corner = row[0];
        row[0] = i;
        for (int j = 1; j <= 8; j++) {
            u8 up = row[j], least = up < row[j - 1] ? up : row[j - 1];
            least = least + 1;
            if (corner + (a[i - 1] != b[j - 1]) < least)
                least = corner + (a[i - 1] != b[j - 1]);
            row[j] = least;
            corner = up;
        }
    }
    return row[8];
}
