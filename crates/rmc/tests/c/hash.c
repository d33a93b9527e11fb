/* The hash of a buffer of 003 section 4.2, in pieces that fit the stack. */
#include "farside_rmc.h"

struct parameters {
    farside_u64 region, offset, length;
};

#define PIECE 256

FARSIDE_PROGRAM(hash)(const struct parameters *p, farside_u64 size) {
    /* Whose length is only known when it runs starts with zeros: what is read must have been written. */
    farside_u8 piece[PIECE] = {0};
    farside_u64 crc = 0, at = p->offset, left = p->length;
    if (left > 65536)
        return -1;
    while (left) {
        farside_u64 length = left < PIECE ? left : PIECE;
        if (farside_read(p->region, at, piece, length))
            return -1;
        crc = farside_crc32c(piece, length, crc);
        at += length;
        left -= length;
    }
    return crc;
}

/* The same in one call, where the memory is. */
FARSIDE_PROGRAM(hash_there)(const struct parameters *p, farside_u64 size) {
    if (p->length > 65536)
        return -1;
    return farside_crc32c_of(p->region, p->offset, p->length, 0);
}
