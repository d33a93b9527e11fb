//! Programs as calls of the library are: what registration is measured with.

/// The list search by words: a node is {key, value, next}.
pub(crate) const LIST_BY_WORDS: &str = "
        r6 = *(u64 *)(r1 + 8)
        r7 = *(u64 *)(r1 + 16)
        r8 = *(u64 *)(r1 + 0)
    again:
        r1 = r8
        r2 = r6
        call load_u64
        if r0 == r7 goto found
        r1 = r8
        r2 = r6
        r2 += 16
        call load_u64
        r6 = r0
        if r6 != 0 goto again
        r0 = -1
        exit
    found:
        r1 = r8
        r2 = r6
        r2 += 8
        call load_u64
        exit
";

/// The list search by one read a node, of at most 64 nodes.
pub(crate) const LIST_BY_READS: &str = "
        r6 = *(u64 *)(r1 + 8)
        r7 = *(u64 *)(r1 + 16)
        r8 = *(u64 *)(r1 + 0)
        r9 = 0
    again:
        r1 = r8
        r2 = r6
        r3 = r10
        r3 += -24
        r4 = 24
        call read
        if r0 != 0 goto lost
        r1 = *(u64 *)(r10 - 24)
        if r1 == r7 goto found
        r6 = *(u64 *)(r10 - 8)
        r9 += 1
        if r9 > 64 goto lost
        if r6 != 0 goto again
    lost:
        r0 = -1
        exit
    found:
        r0 = *(u64 *)(r10 - 16)
        exit
";

/// A look-up in a bucket of eight {key, value}: region, table, buckets less one, key.
const BUCKET: &str = "
        r8 = *(u64 *)(r1 + 0)
        r6 = *(u64 *)(r1 + 8)
        r2 = *(u64 *)(r1 + 16)
        r7 = *(u64 *)(r1 + 24)
        r3 = r7
        r4 = 0x9e3779b97f4a7c15 ll
        r3 *= r4
        r3 >>= 32
        r3 &= r2
        r3 <<= 7
        r6 += r3
        r9 = 0
    again:
        r1 = r8
        r2 = r6
        call load_u64
        if r0 == r7 goto found
        r6 += 16
        r9 += 1
        if r9 < 8 goto again
        r0 = -2
        exit
    found:
        r1 = r8
        r2 = r6
        r2 += 8
        call load_u64
        exit
";

/// A descent by nodes of a count, 15 keys and 16 children, of at most 8 levels: region, root, key, levels.
const DESCENT: &str = "
        r8 = *(u64 *)(r1 + 0)
        r6 = *(u64 *)(r1 + 8)
        r7 = *(u64 *)(r1 + 16)
        r1 = *(u64 *)(r1 + 24)
        *(u64 *)(r10 - 264) = r1
        r9 = 0
    level:
        r1 = r8
        r2 = r6
        r3 = r10
        r3 += -256
        r4 = 256
        call read
        if r0 != 0 goto lost
        r2 = *(u64 *)(r10 - 256)
        if r2 > 15 goto lost
        r3 = r10
        r3 += -248
        r4 = 0
    key:
        if r4 >= r2 goto child
        r5 = *(u64 *)(r3 + 0)
        if r5 > r7 goto child
        r3 += 8
        r4 += 1
        if r4 < 15 goto key
    child:
        r3 = r10
        r3 += -128
        r4 <<= 3
        r3 += r4
        r6 = *(u64 *)(r3 + 0)
        r9 += 1
        if r9 > 8 goto lost
        r1 = *(u64 *)(r10 - 264)
        if r9 < r1 goto level
        r0 = r6
        exit
    lost:
        r0 = -1
        exit
";

/// A scan of at most 64 records {key, value}, of which those with keys in a range are emitted: region,
/// offset, count, least key, greatest key.
const SCAN: &str = "
        r8 = *(u64 *)(r1 + 0)
        r6 = *(u64 *)(r1 + 8)
        r2 = *(u64 *)(r1 + 16)
        r3 = *(u64 *)(r1 + 24)
        r7 = *(u64 *)(r1 + 32)
        *(u64 *)(r10 - 24) = r2
        *(u64 *)(r10 - 32) = r3
        r9 = 0
    again:
        r1 = *(u64 *)(r10 - 24)
        if r9 >= r1 goto end
        r1 = r8
        r2 = r6
        r3 = r10
        r3 += -16
        r4 = 16
        call read
        if r0 != 0 goto lost
        r1 = *(u64 *)(r10 - 16)
        r2 = *(u64 *)(r10 - 32)
        if r1 < r2 goto next
        if r1 > r7 goto next
        r1 = r10
        r1 += -16
        r2 = 16
        call emit
        if r0 != 0 goto lost
    next:
        r6 += 16
        r9 += 1
        if r9 < 64 goto again
    end:
        r0 = 0
        exit
    lost:
        r0 = -1
        exit
";

/// Four words {offset, expected, desired} that are swapped all or none: region, words.
const SWAP_WORDS: &str = "
        r6 = r1
        r8 = *(u64 *)(r1 + 0)
        r6 += 8
        r9 = 0
    again:
        r1 = r8
        r2 = *(u64 *)(r6 + 0)
        r3 = *(u64 *)(r6 + 8)
        r4 = *(u64 *)(r6 + 16)
        call compare_swap
        r1 = *(u64 *)(r6 + 8)
        if r0 != r1 goto back
        r6 += 24
        r9 += 1
        if r9 < 4 goto again
        r0 = 0
        exit
    back:
        r7 = -6
    undo:
        if r9 == 0 goto end
        r9 += -1
        r6 += -24
        r1 = r8
        r2 = *(u64 *)(r6 + 0)
        r3 = *(u64 *)(r6 + 16)
        r4 = *(u64 *)(r6 + 8)
        call compare_swap
        goto undo
    end:
        r0 = r7
        exit
";

/// A record of 64 bytes at the end of a log: region, offset of the end, the log's size, the record.
const APPEND: &str = "
        r6 = r1
        r8 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 16)
        r1 = r8
        r2 = *(u64 *)(r6 + 8)
        r3 = 64
        call fetch_add
        r9 = r0
        r9 += 64
        if r9 > r7 goto full
        r1 = r8
        r2 = r0
        r7 = r0
        r3 = r6
        r3 += 24
        r4 = 64
        call write
        if r0 != 0 goto lost
        r0 = r7
        exit
    full:
        r0 = -4
        exit
    lost:
        exit
";

/// Up to eight words of a record with a version that stays even and unchanged: region, record, count.
const READ_SAME: &str = "
        r8 = *(u64 *)(r1 + 0)
        r6 = *(u64 *)(r1 + 8)
        r7 = *(u64 *)(r1 + 16)
        if r7 > 8 goto lost
        r9 = 0
    retry:
        r1 = r8
        r2 = r6
        call load_u64
        *(u64 *)(r10 - 80) = r0
        r0 &= 1
        if r0 != 0 goto other
        r1 = r8
        r2 = r6
        r2 += 8
        r3 = r10
        r3 += -64
        r4 = 64
        call read
        if r0 != 0 goto lost
        r1 = r8
        r2 = r6
        call load_u64
        r1 = *(u64 *)(r10 - 80)
        if r0 == r1 goto same
    other:
        r9 += 1
        if r9 < 4 goto retry
        r0 = -6
        exit
    same:
        r1 = r10
        r1 += -64
        r2 = r7
        r2 <<= 3
        call emit
        exit
    lost:
        r0 = -1
        exit
";

/// CRC32C of at most 64 KiB, by stretches of 4 KiB: region, offset, length.
const CHECKSUM: &str = "
        r8 = *(u64 *)(r1 + 0)
        r6 = *(u64 *)(r1 + 8)
        r7 = *(u64 *)(r1 + 16)
        r0 = 0
        r9 = 0
    again:
        r3 = r7
        if r3 <= 4096 goto last
        r3 = 4096
    last:
        r1 = r8
        r2 = r6
        r4 = r0
        call crc32c_of
        if r7 <= 4096 goto end
        r6 += 4096
        r7 += -4096
        r9 += 1
        if r9 < 16 goto again
        r0 = -1
        exit
    end:
        exit
";

/// All of them, by name.
pub(crate) const PROGRAMS: [(&str, &str); 9] = [
    ("list search by words", LIST_BY_WORDS),
    ("list search by reads", LIST_BY_READS),
    ("hash bucket", BUCKET),
    ("B+tree descent", DESCENT),
    ("range scan", SCAN),
    ("multi-word swap", SWAP_WORDS),
    ("log append", APPEND),
    ("conditional read", READ_SAME),
    ("checksum", CHECKSUM),
];
