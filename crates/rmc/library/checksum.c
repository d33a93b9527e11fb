/* checksum_crc32c, checksum_xxhash64: the checksum of a buffer, computed where it is.
 *
 * returns   the checksum; FARSIDE_OUT_OF_RANGE for more than 1 MiB. A CRC32C is never negative; a hash
 *           can be, so ask for at most 1 MiB of it. A buffer that must not be read ends the call.
 * accesses  1: of the whole buffer. Far from the memory it has to be read there.
 */
#include "farside_rmc.h"

#define BYTES_MAX (1 << 20)

/* What a call takes: 24 bytes. */
struct parameters {
    farside_u64 buffer; /* its place */
    farside_u64 bytes;
    farside_u64 start; /* the seed of xxHash64; the CRC32C of the bytes before these, or 0 */
};

FARSIDE_PROGRAM(checksum_crc32c)(const struct parameters *p, farside_u64 size) {
    if (p->bytes > BYTES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    return farside_crc32c_of(FARSIDE_REGION(p->buffer), FARSIDE_OFFSET(p->buffer), p->bytes, p->start);
}

FARSIDE_PROGRAM(checksum_xxhash64)(const struct parameters *p, farside_u64 size) {
    if (p->bytes > BYTES_MAX)
        return FARSIDE_OUT_OF_RANGE;
    return farside_xxhash64_of(FARSIDE_REGION(p->buffer), FARSIDE_OFFSET(p->buffer), p->bytes, p->start);
}
