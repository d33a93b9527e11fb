/* What the programs of the corpus share: parameters, and an array of N that is read from region 0. */
#include "farside_rmc.h"

#ifndef N
#define N 20
#endif

typedef farside_u8 u8;
typedef farside_u16 u16;
typedef farside_u32 u32;
typedef farside_u64 u64;
typedef farside_i32 i32;
typedef farside_i64 i64;

#define PROGRAM(name) FARSIDE_PROGRAM(name)(const u64 *p, u64 size)
#define READ(array)                                                                                    \
    if (farside_read(0, p[0], array, sizeof array))                                                    \
    return FARSIDE_NOT_PERMITTED
