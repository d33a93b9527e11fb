/* Everything that the loader has to know: functions, constants, variables, state, emitted bytes. */
#include "farside_rmc.h"

static const farside_u32 squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};
static const char greeting[] = "hello";
static farside_u64 calls = 100;
static farside_u64 total;
FARSIDE_SHARED farside_u64 everybody = 7;

struct entry {
    farside_u64 count, last;
};

FARSIDE_MAP(entries, farside_u64, struct entry, 16, FARSIDE_PER_QUEUE_PAIR);
FARSIDE_COUNTERS(counters, 4, FARSIDE_BETWEEN_QUEUE_PAIRS);

FARSIDE_FUNCTION farside_u64 square(farside_u64 n) { return squares[n & 7]; }

FARSIDE_FUNCTION farside_u64 sum_of_squares(farside_u64 n) {
    farside_u64 sum = 0;
    for (farside_u64 i = 0; i < 8; i++)
        if (i < n)
            sum += square(i);
    return sum;
}

FARSIDE_PROGRAM(count)(const farside_u64 *p, farside_u64 size) {
    calls += 1;
    total += *p;
    __sync_fetch_and_add(&everybody, *p);
    return calls * 1000000 + total * 1000 + everybody;
}

FARSIDE_PROGRAM(squared)(const farside_u64 *p, farside_u64 size) {
    farside_emit(greeting, sizeof greeting - 1);
    return sum_of_squares(*p) + square(*p);
}

FARSIDE_PROGRAM(remember)(const farside_u64 *p, farside_u64 size) {
    struct entry entry = {0, 0};
    farside_u64 key = p[0];
    farside_map_get(&entries, &key, &entry);
    entry.count += 1;
    entry.last = p[1];
    if (farside_map_put(&entries, &key, &entry))
        return -1;
    return farside_counter_add(&counters, 1, entry.count);
}
