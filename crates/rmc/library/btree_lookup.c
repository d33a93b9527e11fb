/* btree_lookup: the value of a key in a B+tree (nodes: btree.h).
 *
 * returns   FARSIDE_OK; FARSIDE_NOT_FOUND; FARSIDE_OUT_OF_RANGE where no leaf is within 12 levels, as in
 *           a tree with a cycle, or for the key of all ones; another negative number where a node cannot be read.
 * emits     the value's 8 bytes.
 * accesses  h: one read of 256 bytes for each level.
 */
#include "btree.h"

/* What a call takes: 16 bytes. */
struct parameters {
    farside_u64 root; /* the root's place, or 0 */
    farside_u64 key;
};

FARSIDE_PROGRAM(btree_lookup)(const struct parameters *p, farside_u64 size) {
    farside_u64 key = p->key;
    struct node node;
    if (key == ~0ULL)
        return FARSIDE_OUT_OF_RANGE;
    farside_i64 status = descend(p->root, key, &node);
    if (status)
        return status;
    farside_u64 rank = keys_below(&node, key);
    if (rank >= KEYS || node.keys[rank] != key)
        return FARSIDE_NOT_FOUND;
    return farside_emit(&node.values[rank], sizeof node.values[rank]);
}
