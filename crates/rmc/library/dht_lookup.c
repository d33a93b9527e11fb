/* dht_lookup: the value of a key in the distributed hash table of crates/apps, from one bucket, read once.
 *
 * The caller hashes the key and names the bucket where its directory says that the key is; the bucket itself
 * shows whether it is. A record is valid only if its header matches the bucket's entry and each of its lines
 * is of the entry's generation, as for a client that reads bucket and record itself (layout.rs and table.rs
 * there say why that suffices). Nothing is retried here: a key that is being moved or is inconsistent, the
 * caller looks up itself.
 *
 * The record is read as a whole into memory that the calls of one caller share, so these have it one at a
 * time. It takes the global memory: register it where the executor is part of a node.
 *
 * returns   FARSIDE_OK; FARSIDE_NOT_FOUND; 1 if the bucket cannot decide: it is another table's, or the key
 *           has left it or is on the move; 2 where a record is gone or not one of its entry;
 *           FARSIDE_OUT_OF_RANGE for a key of 0 or more than 64 bytes or one that goes beyond its record's
 *           first line, a value of more than 4,096 bytes, or a record of more than 16 lines or 8,192 bytes;
 *           FARSIDE_FULL where the value is more than a call may emit; FARSIDE_BUSY; another
 *           negative number where memory cannot be read: FARSIDE_NOT_PERMITTED also for a record with
 *           memory that has been freed.
 * emits     the value, with FARSIDE_OK; with others what there is means nothing.
 * accesses  1 + n: the bucket of 256 bytes, and one read for each record with the key's tag up to the one
 *           that is found: nearly always one. A lock besides, where the bucket can tell.
 */
#include "farside_rmc.h"

#define SLOTS 15
#define TAG_BITS 24
#define KEY_BYTES_MAX 64
#define HEADER_BYTES 16
#define LINE_HEADER_BYTES 4
#define ROOM_BYTES 8192
#define VALUE_BYTES_MAX 4096
#define LINES_MAX 16
#define CLASS_BIT 42
#define MOVED 1
#define STALE 2
#define OTHER 3 /* not returned */
#define FROZEN_RECORD 0x80000000u

/* What a call takes: 88 bytes. */
struct parameters {
    farside_u64 table;  /* the table's id */
    farside_u64 bucket; /* its global address */
    farside_u32 tag;    /* of the key's hash */
    farside_u32 key_bytes;
    farside_u64 key[KEY_BYTES_MAX / 8]; /* zeros behind it */
};

enum { NORMAL, FROZEN, PENDING };

struct bucket {
    farside_u64 table;
    farside_u32 prefix;
    farside_u8 depth, state;
    farside_u16 zero;
    farside_u64 metas[SLOTS]; /* tag 24 bits, lines 8, generation 32 */
    farside_u64 links[SLOTS]; /* the record's address, bit 0 set */
};

/* The record that is looked at: of every line the first four bytes are the generation. */
static union {
    struct {
        farside_u32 generation;
        farside_u32 key_bytes; /* bit 31: not changed in place any more */
        farside_u32 value_bytes;
        farside_u32 tag;
        farside_u64 key[KEY_BYTES_MAX / 8];
    };
    /* A piece of the value could begin at its end, by what the verifier knows. */
    farside_u8 bytes[ROOM_BYTES + VALUE_BYTES_MAX];
} record;

/* Bytes of its value that are still to be emitted: in memory that the verifier does not track, so that the
 * paths through an iteration of the loop join after it. */
static volatile farside_u64 left;

/* Bytes of a line of it: here, where it takes no register, so that what counts slots and lines has one. */
static volatile farside_u64 line;

FARSIDE_LOCKS(room, 1, FARSIDE_PER_QUEUE_PAIR);

/* Whether entries of keys with this tag are in the bucket now. */
static __attribute__((always_inline)) int is_here(const struct bucket *bucket, farside_u64 table, farside_u64 tag) {
    farside_u64 depth = bucket->depth;
    if (bucket->table != table || depth > TAG_BITS || (tag ^ bucket->prefix) >> (TAG_BITS - depth))
        return 0;
    if (bucket->state == FROZEN)
        return depth == TAG_BITS || !(tag >> (TAG_BITS - 1 - depth) & 1);
    return bucket->state == NORMAL;
}

/* Whether the record's key is this one, whose length it has. */
static __attribute__((always_inline)) int key_is(const farside_u64 *key, farside_u64 key_bytes) {
    farside_u64 words = key_bytes / 8, last = key_bytes % 8, at = words % (KEY_BYTES_MAX / 8), i;
    /* What is behind its words comes first: so what is known of it does not depend on how many there are. */
    if (last && (record.key[at] ^ key[at]) << (64 - 8 * last))
        return 0;
    /* An index that the compiler makes no address of: of indices the verifier sees the bound. */
    asm volatile("%0 = 0" : "=r"(i));
    for (; i < words; i++) {
        asm("" : "+r"(i));
        if (record.key[i] != key[i])
            return 0;
    }
    return 1;
}

/* Emits the value of the record that was read, which begins there. */
static __attribute__((always_inline)) farside_i64 emit(farside_u64 at) {
    farside_u64 end = line;
    for (farside_u64 turn = 0; turn < LINES_MAX; turn++) {
        farside_u64 bytes = end - at, most = left;
        if (bytes > most)
            bytes = most;
        /* From here on the compiler knows nothing of them, so that the check stays. */
        asm("" : "+r"(at), "+r"(bytes));
        if (at > ROOM_BYTES || bytes > VALUE_BYTES_MAX)
            return STALE;
        farside_i64 status = farside_emit(&record.bytes[at], bytes);
        if (status)
            return status;
        most = left - bytes;
        if (!most)
            return FARSIDE_OK;
        left = most;
        at = end;
        asm("" : "+r"(at));
        if (at > ROOM_BYTES)
            return STALE;
        const farside_u32 *generation = (const void *)&record.bytes[at]; /* as records are aligned */
        if (*generation != record.generation)
            return STALE;
        at += LINE_HEADER_BYTES;
        end += line;
        asm volatile("" : "+r"(turn)); /* counted up, as it stands here */
    }
    return STALE;
}

/* Reads the record of an entry, which has lines of `line` bytes: FARSIDE_OK if it belongs to the key, OTHER
 * if it does not. */
static __attribute__((always_inline)) farside_i64 look(const farside_u64 *key, farside_u64 wanted_bytes,
                                                       farside_u64 meta, farside_u64 link) {
    farside_u64 lines = meta >> 32 & 255, room = line * lines;
    if (!(link & 1) || !lines)
        return STALE;
    asm("" : "+r"(room));
    if (room > ROOM_BYTES || lines > LINES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    farside_i64 status = farside_global_read(link - 1, record.bytes, room);
    if (status)
        return status;
    /* Computed once more, rather than kept. */
    asm volatile("" : "+r"(meta));
    lines = meta >> 32 & 255;
    farside_u64 first = line - HEADER_BYTES, others = first + HEADER_BYTES - LINE_HEADER_BYTES;
    farside_u64 key_bytes = record.key_bytes & ~FROZEN_RECORD;
    left = record.value_bytes;
    farside_u64 payload = key_bytes + left;
    if (record.generation != (farside_u32)meta || payload > first + (lines - 1) * others ||
        (lines > 1 && payload <= first + (lines - 2) * others))
        return STALE;
    if (key_bytes != wanted_bytes)
        return OTHER;
    if (key_bytes > first || left > VALUE_BYTES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    return key_is(key, wanted_bytes) ? FARSIDE_OK : OTHER;
}

FARSIDE_PROGRAM(dht_lookup)(const struct parameters *p, farside_u64 size) {
    struct bucket bucket;
    farside_u64 tag = p->tag, key_bytes = p->key_bytes;
    if (!key_bytes || key_bytes > KEY_BYTES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    farside_i64 status = farside_global_read(p->bucket, &bucket, sizeof bucket);
    if (status)
        return status;
    if (!is_here(&bucket, p->table, tag))
        return MOVED;
    status = farside_lock(&room, 0);
    if (status)
        return status;
    /* What the compiler may not keep is read once more: what is kept on the stack costs the verifier more. */
    const volatile struct parameters *again = p;
    for (farside_u64 slot = 0; slot < SLOTS; slot++) {
        asm volatile("" : "+r"(key_bytes), "+r"(slot));
        farside_u64 meta = bucket.metas[slot];
        if (meta >> (64 - TAG_BITS) != again->tag || !meta)
            continue;
        farside_u64 link = bucket.links[slot];
        line = 64ULL << (link >> CLASS_BIT & 15);
        status = look(p->key, key_bytes, meta, link);
        if (status == OTHER)
            continue;
        if (status)
            return status;
        return emit(HEADER_BYTES + key_bytes);
    }
    return FARSIDE_NOT_FOUND;
}
