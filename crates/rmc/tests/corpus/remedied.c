/* Programs that are refused as they are in the other files, written as their refusals say. */
#include "corpus.h"

/* key_and_value: offset and length are bounded apart. */
PROGRAM(key_and_value_remedied) {
    u8 bytes[128];
    READ(bytes);
    u64 key = FARSIDE_OPAQUE((u64)bytes[0]), value = FARSIDE_OPAQUE((u64)bytes[1]);
    if (key > 62 || value > 64)
        return FARSIDE_OUT_OF_RANGE;
    return farside_emit(bytes + 2 + key, value);
}

/* slice: the same. */
PROGRAM(slice_remedied) {
    u8 bytes[N * 4] = {0};
    u64 at = p[1], length = p[2];
    if (at > N * 2 || length > N * 2)
        return FARSIDE_OUT_OF_RANGE;
    farside_read(0, p[0], bytes, sizeof bytes);
    return farside_emit(bytes + at, length);
}

/* selection_sort: indices that clang knows to be bounded. */
PROGRAM(selection_sort_remedied) {
    u32 a[N];
    READ(a);
    for (u64 i = 0; i < N - 1; i++) {
        u64 least = i;
        for (u64 j = i + 1; j < N; j++) {
            least = FARSIDE_OPAQUE(least);
            u64 at = FARSIDE_OPAQUE(j);
            if (least >= N || at >= N)
                return FARSIDE_OUT_OF_RANGE;
            if (a[at] < a[least])
                least = at;
        }
        least = FARSIDE_OPAQUE(least);
        u64 to = FARSIDE_OPAQUE(i);
        if (least >= N || to >= N)
            return FARSIDE_OUT_OF_RANGE;
        u32 t = a[to];
        a[to] = a[least];
        a[least] = t;
    }
    return farside_emit(a, sizeof a);
}
