/* hash_lookup: the value of a key in a hash table with chained buckets.
 *
 * The key's bucket is the lower bits of xxHash64 of its 8 bytes with seed 0. Its chain is searched as a
 * list; then the value is emitted. A value that is replaced meanwhile may come out torn, as by READs:
 * link a new entry rather than writing into an old one, or check a version (multi_read).
 *
 * returns   FARSIDE_OK; FARSIDE_NOT_FOUND; FARSIDE_OUT_OF_RANGE where the chain has more than 32 entries
 *           or the value more than 2,048 bytes; another negative number where memory cannot be read.
 * emits     the value.
 * accesses  1 + n + v: the bucket, one read of 24 bytes for each entry up to the one found, and one
 *           read for each 256 bytes of the value that are begun.
 */
#include "farside_rmc.h"

#define ENTRIES_MAX 32
#define VALUE_BYTES_MAX 2048
#define PIECE 256

/* What a call takes: 24 bytes. */
struct parameters {
    farside_u64 buckets; /* the place of the first of them: each is a word, the first entry's place or 0 */
    farside_u64 mask;    /* how many there are, less one: a power of two less one */
    farside_u64 key;
};

/* What chains are made of. */
struct entry {
    farside_u64 key;
    farside_u64 next; /* the next entry's place, or 0 */
    farside_u64 value_bytes;
    /* The value follows. */
};

/* Emits the value at a place: whole pieces, then the rest. */
static __attribute__((always_inline)) farside_i64 emit(farside_u64 at, farside_u64 left, farside_u8 *piece) {
    if (left > VALUE_BYTES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    if (!left)
        return FARSIDE_OK;
    farside_u64 region = FARSIDE_REGION(at), offset = FARSIDE_OFFSET(at);
    while (left > PIECE) {
        farside_i64 status = farside_read(region, offset, piece, PIECE);
        if (!status)
            status = farside_emit(piece, PIECE);
        if (status)
            return status;
        offset += PIECE;
        left -= PIECE;
    }
    farside_i64 status = farside_read(region, offset, piece, left);
    return status ? status : farside_emit(piece, left);
}

FARSIDE_PROGRAM(hash_lookup)(const struct parameters *p, farside_u64 size) {
    /* Cleared here and not where it is needed, so that it is one step for the verifier and not 32. */
    farside_u8 piece[PIECE] = {0};
    farside_u64 key = p->key;
    farside_u64 bucket = farside_xxhash64(&p->key, sizeof p->key, 0) & p->mask;
    farside_u64 at = farside_load_u64(FARSIDE_REGION(p->buckets), FARSIDE_OFFSET(p->buckets) + bucket * 8);
    for (farside_u64 turn = 0; turn < ENTRIES_MAX; turn++) {
        struct entry entry;
        if (!at)
            return FARSIDE_NOT_FOUND;
        farside_i64 status = farside_read(FARSIDE_REGION(at), FARSIDE_OFFSET(at), &entry, sizeof entry);
        if (status)
            return status;
        if (entry.key == key)
            return emit(at + sizeof entry, entry.value_bytes, piece);
        at = entry.next;
    }
    return at ? FARSIDE_OUT_OF_RANGE : FARSIDE_NOT_FOUND;
}
