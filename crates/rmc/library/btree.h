/* The B+tree of btree_lookup.c and range_scan.c. */
#ifndef BTREE_H
#define BTREE_H

#include "farside_rmc.h"

#define KEYS 15
#define LEVELS_MAX 12

/* A node: 256 bytes. Keys rise, and those behind the last are all ones: so that key is no entry's. No leaf
 * but that of an empty tree is empty. */
struct node {
    farside_u32 level; /* 0 is a leaf; a child's is one less */
    farside_u32 count; /* of keys */
    farside_u64 keys[KEYS];
    /* A leaf: the value of each key, and in the last the place of the next leaf or 0. An inner node:
     * child i, of count + 1, holds the keys below keys[i] that are not below keys[i - 1]. */
    farside_u64 values[KEYS + 1];
};

static __attribute__((always_inline)) farside_i64 read_node(farside_u64 at, struct node *node) {
    return farside_read(FARSIDE_REGION(at), FARSIDE_OFFSET(at), node, sizeof *node);
}

/* Whether a < b, as 1 or 0, without a jump: so that there is one path through a search in a node, and
 * the verifier has little to walk. The borrow of a - b; hidden from the compiler, which would make jumps
 * of it again. */
static __attribute__((always_inline)) farside_u64 below(farside_u64 a, farside_u64 b) {
    farside_u64 borrow = (~a & b) | ((~a | b) & (a - b));
    asm("%0 >>= 63" : "+r"(borrow));
    return borrow;
}

/* How many keys are below this one, 0 to 15. */
static __attribute__((always_inline)) farside_u64 keys_below(const struct node *node, farside_u64 key) {
    farside_u64 rank = 0;
    rank += below(node->keys[7], key) << 3;
    rank += below(node->keys[rank + 3], key) << 2;
    rank += below(node->keys[rank + 1], key) << 1;
    rank += below(node->keys[rank], key);
    return rank;
}

/* Goes down to the leaf that has a key or would have it; FARSIDE_OUT_OF_RANGE where there is none within
 * twelve levels. */
static __attribute__((always_inline)) farside_i64 descend(farside_u64 at, farside_u64 key, struct node *node) {
    for (farside_u64 turn = 0; turn < LEVELS_MAX; turn++) {
        if (!at)
            return FARSIDE_NOT_FOUND;
        farside_i64 status = read_node(at, node);
        if (status)
            return status;
        if (!node->level)
            return FARSIDE_OK;
        /* Children are right of keys that are not above: those below the next number. */
        at = node->values[keys_below(node, key + 1)];
        /* Lest the compiler makes one load of it and that of the root, from an address in one of two
         * memories, which the verifier does not follow in a loop. */
        asm("" : "+r"(at));
    }
    return FARSIDE_OUT_OF_RANGE;
}

#endif
