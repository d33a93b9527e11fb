/* Text and packets: positions depend on what was read. */
#include "corpus.h"

/* A record of two parts with jointly bounded lengths, as in every packet. */
PROGRAM(key_and_value) {
    u8 bytes[128];
    READ(bytes);
    u64 key = bytes[0], value = bytes[1];
    if (2 + key + value > sizeof bytes)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + 2 + key, value);
}

/* Lengths of runs of equal bytes; both loops compare with the length. */
PROGRAM(runs) {
    u8 b[N];
    u64 found = 0;
    READ(b);
    for (unsigned i = 0; i < N;) {
        unsigned j = i + 1;
        while (j < N && b[j] == b[i])
            j++;
        found += j - i > 2;
        i = j;
    }
    return found;
}

PROGRAM(parse_decimal) {
    char text[N];
    READ(text);
    u64 value = 0;
    for (int i = 0; i < N && text[i] >= '0' && text[i] <= '9'; i++)
        value = value * 10 + (text[i] - '0');
    return value;
}

PROGRAM(parse_hex) {
    u8 text[N];
    READ(text);
    u64 value = 0;
    for (u32 i = 0; i < N; i++) {
        u8 c = text[i] | 32;
        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value << 4 | (c - 'a' + 10);
        else
            break;
    }
    return value;
}

PROGRAM(varint) {
    u8 bytes[10];
    READ(bytes);
    u64 value = 0;
    for (int i = 0; i < 10; i++) {
        value |= (u64)(bytes[i] & 127) << 7 * i;
        if (!(bytes[i] & 128))
            return value;
    }
    return -1;
}

PROGRAM(count_words) {
    u8 text[N];
    u32 words = 0, inside = 0;
    READ(text);
    for (int i = 0; i < N; i++) {
        u32 blank = text[i] == ' ' || text[i] == '\n';
        words += !inside && !blank;
        inside = !blank;
    }
    return words;
}

PROGRAM(string_length) {
    char text[N];
    READ(text);
    u32 length = 0;
    while (length < N && text[length])
        length++;
    return farside_emit(text, length);
}

PROGRAM(find_byte) {
    u8 text[N];
    READ(text);
    const u8 *at = text, *end = text + N;
    while (at != end && *at != (u8)p[1])
        at++;
    return at - text;
}

PROGRAM(find_substring) {
    u8 text[N];
    const u8 needle[3] = {p[1], p[1] >> 8, p[1] >> 16};
    READ(text);
    for (int i = 0; i + 3 <= N; i++) {
        int k = 0;
        while (k < 3 && text[i + k] == needle[k])
            k++;
        if (k == 3)
            return i;
    }
    return -1;
}

PROGRAM(compare_strings) {
    u8 a[N], b[N];
    READ(a);
    if (farside_read(0, p[1], b, sizeof b))
        return FARSIDE_NOT_PERMITTED;
    for (int i = 0; i < N; i++) {
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
        if (!a[i])
            break;
    }
    return 0;
}

PROGRAM(palindrome) {
    u8 text[N];
    READ(text);
    u32 low = 0, high = N - 1;
    while (low < high)
        if (text[low++] != text[high--])
            return 0;
    return 1;
}

PROGRAM(upper_case) {
    char text[N];
    READ(text);
    for (char *at = text; at < text + N; at++)
        if (*at >= 'a' && *at <= 'z')
            *at -= 32;
    return farside_emit(text, sizeof text);
}

PROGRAM(brackets_match) {
    u8 text[N], stack[N];
    u32 depth = 0;
    READ(text);
    for (int i = 0; i < N; i++) {
        u8 c = text[i] & 3;
        if (c == 0)
            stack[depth++] = text[i];
        else if (c == 1) {
            if (depth == 0)
                return i;
            depth--;
        }
    }
    return depth;
}

/* Consecutive options of type, length and value. */
PROGRAM(type_length_value) {
    u8 bytes[N];
    READ(bytes);
    u32 at = 0;
    while (at + 2 <= N) {
        u32 length = bytes[at + 1];
        if (at + 2 + length > N)
            return FARSIDE_OUT_OF_RANGE;
        if (bytes[at] == (u8)p[1])
            return farside_emit(bytes + at + 2, length);
        at += 2 + length;
    }
    return FARSIDE_NOT_FOUND;
}

PROGRAM(internet_header) {
    u8 bytes[64];
    READ(bytes);
    u32 words = bytes[0] & 15, total = bytes[2] << 8 | bytes[3];
    if (words < 5 || total < words * 4 || total > sizeof bytes)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + words * 4, total - words * 4);
}

PROGRAM(run_length_decode) {
    u8 bytes[N], out[N];
    u32 to = 0;
    READ(bytes);
    for (u32 i = 0; i + 1 < N; i += 2)
        for (u32 k = 0; k < bytes[i] && to < N; k++)
            out[to++] = bytes[i + 1];
    while (to < N)
        out[to++] = 0;
    return farside_emit(out, sizeof out);
}

PROGRAM(to_decimal) {
    char text[20];
    u64 value = p[1];
    u32 at = sizeof text;
    do {
        text[--at] = '0' + value % 10;
        value /= 10;
    } while (value && at);
    return farside_emit(text + at, sizeof text - at);
}

PROGRAM(to_hex) {
    static const char digits[] = "0123456789abcdef";
    u8 bytes[N];
    char text[2 * N];
    READ(bytes);
    for (int i = 0; i < N; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    return farside_emit(text, sizeof text);
}
