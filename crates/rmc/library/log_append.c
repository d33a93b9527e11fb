/* log_append: appends a record to a log of fixed slots, also while others do.
 *
 * FETCH_ADD on the log's first word reserves a slot, the record's bytes are written there, and then its
 * commit word: length and CRC32C, never 0. So readers see a record whole or not at all, records are
 * never lost, and one caller's records stand in the order of its calls. A caller that dies in between
 * leaves a slot without a commit word: once it is known to be gone, readers pass over that slot.
 *
 * The log has to be cleared before its first use, and is full for good when its slots are taken: take
 * another one. The caller says how large it is, since reading that here would cost an access.
 *
 * returns   the record's slot, counted from 0; FARSIDE_FULL; FARSIDE_OUT_OF_RANGE for more bytes than 128
 *           or than a slot holds, slots of no multiple of 8 bytes or of more than 4,096, or 2^32 of them;
 *           another negative number where the record cannot be written, which leaves its slot without
 *           a commit word.
 * accesses  3: FETCH_ADD, one write of the record, one word. Of an empty record 2, in a full log 1.
 */
#include "farside_rmc.h"

#define RECORD_BYTES_MAX 128
#define SLOT_BYTES_MAX 4096

/* The parameters: 160 bytes, zeros after the record. */
struct parameters {
    farside_u64 log;        /* its place */
    farside_u64 slots;      /* how many it has */
    farside_u64 slot_bytes; /* of each, its commit word included */
    farside_u64 bytes;      /* of the record */
    farside_u8 record[RECORD_BYTES_MAX];
};

/* What a log is made of. */
struct log {
    farside_u64 taken; /* slots that are reserved; it goes on counting where there are none left */
    /* The slots follow: a commit word (0x80000000 | bytes, with the CRC32C in its upper half), then the
     * record. */
};

FARSIDE_PROGRAM(log_append)(const struct parameters *p, farside_u64 size) {
    farside_u64 bytes = p->bytes, slot_bytes = p->slot_bytes;
    farside_u64 region = FARSIDE_REGION(p->log), offset = FARSIDE_OFFSET(p->log);
    if (bytes > RECORD_BYTES_MAX || slot_bytes % 8 || slot_bytes < 8 + bytes || slot_bytes > SLOT_BYTES_MAX ||
        p->slots >> 32)
        return FARSIDE_OUT_OF_RANGE;
    farside_u64 slot = farside_fetch_add(region, offset, 1);
    if (slot >= p->slots)
        return FARSIDE_FULL;
    offset += sizeof(struct log) + slot * slot_bytes;
    if (bytes) {
        farside_i64 status = farside_write(region, offset + 8, p->record, bytes);
        if (status)
            return status;
    }
    farside_u64 crc = farside_crc32c(p->record, bytes, 0);
    farside_store_u64(region, offset, crc << 32 | 0x80000000ULL | bytes);
    return slot;
}
