/* multi_read: several pieces of memory as they were at one moment, each with a version word.
 *
 * A writer of a piece makes its version odd, changes the piece, and makes the version even again and
 * greater (a sequence lock). The versions are read, then all pieces, then the versions again. Where all
 * are even and none has changed, every piece was whole and all of them were there together, between the
 * two reads of the versions. Otherwise it retries, three times at most.
 *
 * returns   FARSIDE_OK; FARSIDE_BUSY where writers were in the way each time; FARSIDE_OUT_OF_RANGE for
 *           more than 4 pieces, or more than 256 bytes of them together; another negative number
 *           where memory cannot be read.
 * emits     the versions, 8 bytes each, then the pieces, consecutively.
 * accesses  3 where no writer is in the way, at most 9: all versions or all pieces are one access.
 */
#include "farside_rmc.h"

#define PIECES_MAX 4
#define BYTES_MAX 256
#define TRIES 3

/* The parameters: 112 bytes, zeros after the pieces. */
struct parameters {
    farside_u64 region;
    farside_u64 count;
    struct {
        farside_u64 version; /* the offset of its version word */
        farside_u64 offset;
        farside_u64 bytes;
    } pieces[PIECES_MAX];
};

FARSIDE_PROGRAM(multi_read)(const struct parameters *p, farside_u64 size) {
    struct farside_piece versions[PIECES_MAX], pieces[PIECES_MAX];
    farside_u64 before[PIECES_MAX] = {0}, after[PIECES_MAX] = {0};
    farside_u8 bytes[BYTES_MAX] = {0};
    farside_u64 region = p->region, count = p->count, total = 0;
    if (count > PIECES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    /* From here on the compiler knows nothing of it, so that the check stays before it goes to the stack. */
    asm("" : "+r"(count));
    for (farside_u64 i = 0; i < PIECES_MAX; i++) {
        farside_u64 length = p->pieces[i].bytes;
        if (length > BYTES_MAX)
            return FARSIDE_OUT_OF_RANGE;
        versions[i] = (struct farside_piece){p->pieces[i].version, 8, 0};
        pieces[i] = (struct farside_piece){p->pieces[i].offset, length, 0};
        total += length;
    }
    if (total > BYTES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    for (farside_u64 try = 0; try < TRIES; try++) {
        farside_i64 status = farside_read_vector(region, versions, count, before, count * 8);
        if (status)
            return status;
        status = farside_read_vector(region, pieces, count, bytes, total);
        if (status)
            return status;
        status = farside_read_vector(region, versions, count, after, count * 8);
        if (status)
            return status;
        farside_u64 changed = 0;
        for (farside_u64 i = 0; i < PIECES_MAX; i++)
            changed |= (before[i] ^ after[i]) | (before[i] & 1);
        if (changed)
            continue;
        status = farside_emit(before, count * 8);
        return status ? status : farside_emit(bytes, total);
    }
    return FARSIDE_BUSY;
}
