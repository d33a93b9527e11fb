/* What farside_rmc.h says of C that does not work, case by case: with WRONG what is refused, without it
 * what the header advises instead. */
#include <stdint.h>
#include "farside_rmc.h"

#define PROGRAM FARSIDE_PROGRAM(one)(const uint64_t *p, uint64_t size)

#if CASE == 1
PROGRAM {
    int64_t a = p[0];
#ifdef WRONG
    return a / 10;
#else
    uint64_t n = a < 0 ? -a : a;
    return a < 0 ? -(n / 10) : n / 10;
#endif
}

#elif CASE == 2
PROGRAM {
#ifdef WRONG
    double half = p[0];
    return half * 0.5;
#else
    uint64_t tenths = p[0] * 10;
    return tenths * 5 / 10;
#endif
}

#elif CASE == 3
PROGRAM {
    char bytes[64] = {0};
    uint64_t length = p[0] & 63;
#ifdef WRONG
    __builtin_memset(bytes, 1, length);
#else
    for (uint64_t i = 0; i < length; i++)
        bytes[i] = 1;
#endif
    return farside_emit(bytes, length);
}

#elif CASE == 4
void *memcpy(void *to, const void *from, unsigned long length);
PROGRAM {
    uint64_t words[48];
#ifdef WRONG
    memcpy(words, p, sizeof words);
#else
    __builtin_memcpy(words, p, sizeof words);
#endif
    return farside_emit(words, sizeof words);
}

#elif CASE == 5
PROGRAM {
#ifndef WRONG
    static
#endif
    char bytes[600];
    farside_read(0, p[0], bytes, sizeof bytes);
    return farside_emit(bytes, sizeof bytes);
}

#elif CASE == 6
FARSIDE_FUNCTION uint64_t next(uint64_t n) { return n + 1; }
FARSIDE_FUNCTION uint64_t triple(uint64_t n) { return n * 3; }
PROGRAM {
#ifdef WRONG
    uint64_t (*const function)(uint64_t) = p[0] ? next : triple;
    return function(p[1]);
#else
    return p[0] ? next(p[1]) : triple(p[1]);
#endif
}

#elif CASE == 7
#ifdef WRONG
static const char *const colours[] = {"red", "green"};
#else
static const char colours[2][8] = {"red", "green"};
#endif
PROGRAM { return colours[p[0] & 1][p[1] & 1]; }

#elif CASE == 8
#ifdef WRONG
FARSIDE_FUNCTION uint64_t sum(uint64_t count, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, count);
    return __builtin_va_arg(list, uint64_t) + __builtin_va_arg(list, uint64_t);
}
PROGRAM { return sum(2, p[0], p[1]); }
#else
struct pair {
    uint64_t a, b;
};
FARSIDE_FUNCTION uint64_t sum(const struct pair *pair) { return pair->a + pair->b; }
PROGRAM {
    struct pair pair = {p[0], p[1]};
    return sum(&pair);
}
#endif

#elif CASE == 9
struct six {
    uint64_t a, b, c, d, e, f;
};
#ifdef WRONG
FARSIDE_FUNCTION uint64_t sum(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f) {
    return a * b + c * d + e * f;
}
PROGRAM { return sum(p[0], p[1], p[2], p[3], p[4], p[5]); }
#else
FARSIDE_FUNCTION uint64_t sum(const struct six *six) {
    return six->a * six->b + six->c * six->d + six->e * six->f;
}
PROGRAM {
    struct six six = {p[0], p[1], p[2], p[3], p[4], p[5]};
    return sum(&six);
}
#endif

#elif CASE == 10
struct three {
    uint64_t a, b, c;
};
#ifdef WRONG
FARSIDE_FUNCTION struct three three(uint64_t n) { return (struct three){n, n + 1, n + 2}; }
PROGRAM { return three(p[0]).b; }
#else
FARSIDE_FUNCTION void three(struct three *three, uint64_t n) { *three = (struct three){n, n + 1, n + 2}; }
PROGRAM {
    struct three result;
    three(&result, p[0]);
    return result.b;
}
#endif

#elif CASE == 11
/* Eight functions deep at most, of which the program is one. */
FARSIDE_FUNCTION uint64_t product(uint64_t n) { return n < 2 ? n : product(n - 1) * product(n - 2); }
PROGRAM {
#ifdef WRONG
    return product(p[0] & 15);
#else
    return product(p[0] & 7);
#endif
}

#else
#error there is no such case
#endif
