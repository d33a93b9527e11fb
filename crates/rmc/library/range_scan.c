/* range_scan: the entries of a B+tree (btree.h) with keys in a range and values that a filter passes.
 *
 * Goes down to the first key of the range, then from leaf to leaf, as many as the caller says: call again
 * with `first` as returned to continue. It is metered, since only the caller knows how many leaves.
 *
 * returns   0 if the range was read to its end, else the key to continue with; a negative number where
 *           a node cannot be read, or FARSIDE_OUT_OF_RANGE where no leaf is within 12 levels. Keys from
 *           -4095 to -1 look like those: do not store them.
 * emits     16 bytes for each entry, key and value, in the order of keys.
 * accesses  h + l - 1: one read of 256 bytes for each level and for each leaf after the first. Where it
 *           returns a key for want of leaves, one more, which found that key.
 */
#include "btree.h"

/* What a call takes: 48 bytes. */
struct parameters {
    farside_u64 root;  /* the root's place, or 0 */
    farside_u64 first; /* the least key wanted */
    farside_u64 last;  /* the greatest */
    farside_u64 mask;  /* entries pass whose value & mask == wanted: with 0 and 0 all */
    farside_u64 wanted;
    farside_u64 leaves; /* most leaves of this call */
};

struct pair {
    farside_u64 key, value;
};

FARSIDE_PROGRAM(range_scan)(const struct parameters *p, farside_u64 size) {
    farside_u64 first = p->first, last = p->last;
    struct node node;
    if (first > last)
        return 0;
    farside_i64 status = descend(p->root, first, &node);
    if (status)
        return status == FARSIDE_NOT_FOUND ? 0 : status;
    for (farside_u64 leaves = p->leaves; leaves; leaves--) {
        for (farside_u64 i = keys_below(&node, first);; i++) {
            /* An index that the compiler makes no address of: of indices the verifier sees the bound. */
            asm("" : "+r"(i));
            if (i >= KEYS)
                break;
            struct pair pair = {node.keys[i], node.values[i]};
            if (pair.key == ~0ULL)
                break;
            if (pair.key > last)
                return 0;
            if ((pair.value & p->mask) == p->wanted && farside_emit(&pair, sizeof pair))
                return pair.key;
        }
        farside_u64 next = node.values[KEYS];
        if (!next)
            return 0;
        status = read_node(next, &node);
        if (status)
            return status;
    }
    return node.keys[0] > last ? 0 : node.keys[0];
}
