/* The list search of 003 figure 1: nodes of 24 bytes somewhere in a region. */
#include "farside_rmc.h"

struct node {
    farside_u64 key, value, next;
};

struct parameters {
    farside_u64 region, head, key;
};

#define NODES_MAX 64

/* One read for each node; all ones where the key is not there. */
FARSIDE_PROGRAM(search)(const struct parameters *p, farside_u64 size) {
    farside_u64 at = p->head;
    for (int n = 0; n < NODES_MAX && at; n++) {
        struct node node;
        if (farside_read(p->region, at, &node, sizeof node))
            break;
        if (node.key == p->key)
            return node.value;
        at = node.next;
    }
    return -1;
}

/* The same by words, for lists of any length: metered. */
FARSIDE_PROGRAM(search_words)(const struct parameters *p, farside_u64 size) {
    farside_u64 region = p->region, key = p->key;
    farside_u64 at = p->head;
    while (at) {
        if (farside_load_u64(region, at) == key)
            return farside_load_u64(region, at + 8);
        at = farside_load_u64(region, at + 16);
    }
    return -1;
}
