/* What the loader refuses, case by case. */
#include "farside_rmc.h"

#if CASE == 1
typedef farside_u64 (*function)(farside_u64);
FARSIDE_PROGRAM(by_pointer)(const farside_u64 *p, farside_u64 size) {
    farside_u64 sum = p[0] + p[1];
    function called = (function)p[2];
    return called(sum); /* 9 */
}

#elif CASE == 2
FARSIDE_FUNCTION farside_u64 next(farside_u64 n) { return n + 1; }
FARSIDE_FUNCTION farside_u64 triple(farside_u64 n) { return n * 3; }
FARSIDE_PROGRAM(address)(const farside_u64 *p, farside_u64 size) {
    farside_u64 (*function)(farside_u64) = p[0] ? next : triple; /* 16 */
    return function(p[1]);
}

#elif CASE == 3
farside_u64 elsewhere(farside_u64 n);
FARSIDE_FUNCTION farside_u64 helper(farside_u64 n) {
    return elsewhere(n + 1) + 1; /* 23 */
}
FARSIDE_PROGRAM(undefined)(const farside_u64 *p, farside_u64 size) { return helper(p[0]); }

#elif CASE == 4
void *memcpy(void *to, const void *from, unsigned long length);
FARSIDE_PROGRAM(library)(const farside_u64 *p, farside_u64 size) {
    char bytes[64];
    memcpy(bytes, p, sizeof bytes); /* 31 */
    return farside_emit(bytes, sizeof bytes);
}

#elif CASE == 5
FARSIDE_COUNTERS(good, 4, FARSIDE_PER_QUEUE_PAIR);
FARSIDE_STATE(odd_kind, 9, 0, 8, 10, FARSIDE_PER_QUEUE_PAIR);
FARSIDE_PROGRAM(state)(const farside_u64 *p, farside_u64 size) { return p[0]; }

#elif CASE == 6
FARSIDE_LOCKS(odd_scope, 9, 7);
FARSIDE_PROGRAM(state)(const farside_u64 *p, farside_u64 size) { return p[0]; }

#elif CASE == 7
__attribute__((section(".farside.state"), used)) const farside_u64 word = 3;
FARSIDE_PROGRAM(state)(const farside_u64 *p, farside_u64 size) { return p[0]; }

#elif CASE == 8
static const char *const colours[] = {"red", "green"};
FARSIDE_PROGRAM(table)(const farside_u64 *p, farside_u64 size) { return colours[p[0] & 1][p[1] & 1]; }

#else
#error there is no such case
#endif
