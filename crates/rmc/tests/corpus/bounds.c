/* Offsets and lengths that are bounded together, in the forms that parsers and packers have. */
#include "corpus.h"

/* The sum first, of 64 bits and of 32. */
PROGRAM(sum_of_words) {
    u8 bytes[N * 4];
    READ(bytes);
    u32 at = p[1], length = p[2];
    if ((u64)at + length > sizeof bytes)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + at, length);
}

PROGRAM(sum_of_halves) {
    u8 bytes[N * 4];
    READ(bytes);
    farside_u16 at = p[1], length = p[2];
    if (at + length > (int)sizeof bytes)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + at, length);
}

/* The rest of a buffer, with and without a separate check of the offset. */
PROGRAM(what_is_left) {
    u8 bytes[N * 4];
    READ(bytes);
    u64 at = p[1], length = p[2];
    if (at > sizeof bytes || length > sizeof bytes - at)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + at, length);
}

PROGRAM(at_most_what_is_left) {
    u8 bytes[N * 4];
    READ(bytes);
    u64 at = p[1], length = p[2];
    if (at >= sizeof bytes)
        return FARSIDE_OUT_OF_RANGE;
    if (length > sizeof bytes - at)
        length = sizeof bytes - at;
    return farside_emit(bytes + at, length);
}

/* A start and an end. */
PROGRAM(start_and_end) {
    u8 bytes[N * 4];
    READ(bytes);
    u64 start = p[1], end = p[2];
    if (start > end || end > sizeof bytes)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + start, end - start);
}

PROGRAM(end_and_start) {
    u8 bytes[N * 4];
    READ(bytes);
    i32 start = p[1], end = p[2];
    if (end > (i32)sizeof bytes || start < 0 || end < start)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + start, end - start);
}

/* Sizes that are counted in elements. */
PROGRAM(elements) {
    u32 words[N];
    READ(words);
    u32 first = p[1], count = p[2];
    if (first > N || count > N - first)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(words + first, count * 4);
}

/* A header before what is addressed. */
PROGRAM(behind_a_header) {
    u8 bytes[N * 4];
    READ(bytes);
    u64 at = bytes[0] * 2, length = bytes[1];
    if (8 + at + length > sizeof bytes)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + 8 + at, length);
}

/* Two lengths, the second of which begins where the first ends. */
PROGRAM(two_lengths) {
    u8 bytes[N * 4];
    READ(bytes);
    u32 name = bytes[0], value = bytes[1];
    if (name > sizeof bytes - 2)
        return FARSIDE_OUT_OF_RANGE;
    u32 left = sizeof bytes - 2 - name;
    if (value > left)
        return FARSIDE_OUT_OF_RANGE;
    if (farside_emit(bytes + 2, name))
        return FARSIDE_FULL;
    return farside_emit(bytes + 2 + name, value);
}

/* A pointer that is compared with the end of its buffer. */
PROGRAM(pointers) {
    u8 bytes[N * 4];
    READ(bytes);
    const u8 *at = bytes + (p[1] & 15), *end = bytes + sizeof bytes;
    farside_u16 length = p[2];
    if (at + length > end)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(at, length);
}

PROGRAM(as_much_as_there_is) {
    u8 bytes[N * 4];
    READ(bytes);
    const u8 *at = bytes + (p[1] & 15), *end = bytes + sizeof bytes;
    u64 length = p[2];
    if (length > (u64)(end - at))
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(at, length);
}

/* An index that is a sum. */
PROGRAM(window) {
    u8 bytes[N];
    READ(bytes);
    u64 at = p[1], sum = 0;
    if (at + 4 > N || at > N)
        return FARSIDE_OUT_OF_RANGE;
    for (u64 i = 0; i < 4; i++)
        sum += bytes[at + i];
    return sum;
}

PROGRAM(two_indices) {
    u8 bytes[N];
    READ(bytes);
    u32 row = p[1] & 0xffff, column = p[2] & 0xffff;
    if (row + column >= N)
        return FARSIDE_OUT_OF_RANGE;
    return bytes[row + column];
}

/* Bytes are moved within a buffer. */
PROGRAM(move_within) {
    u8 bytes[N];
    READ(bytes);
    u32 from = p[1], to = p[2], length = p[3];
    if (from > N || to > N || length > N - from || length > N - to)
        return FARSIDE_OUT_OF_RANGE;
    for (u32 i = 0; i < length; i++)
        bytes[to + i] = bytes[from + i];
    return farside_emit(bytes, sizeof bytes);
}

/* Consecutive length-prefixed records. */
PROGRAM(count_records) {
    u8 bytes[N];
    READ(bytes);
    u32 at = 0, count = 0;
    while (at < N) {
        u32 length = bytes[at];
        if (length == 0 || length > N - at)
            return FARSIDE_OUT_OF_RANGE;
        at += length;
        count++;
    }
    return count;
}

/* What is read is appended. */
PROGRAM(append) {
    u8 bytes[N * 2] = {0};
    u64 used = p[1], more = p[2];
    if (used > sizeof bytes || more > sizeof bytes - used)
        return FARSIDE_OUT_OF_RANGE;
    if (farside_read(0, p[0], bytes + used, more))
        return FARSIDE_NOT_PERMITTED;
    return farside_emit(bytes, used + more);
}

/* A tail that ends with the buffer. */
PROGRAM(last_bytes) {
    u8 bytes[N * 2];
    READ(bytes);
    u64 length = p[1];
    if (length > sizeof bytes)
        length = sizeof bytes;
    return farside_emit(bytes + sizeof bytes - length, length);
}
