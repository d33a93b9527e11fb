/* A list in the global memory: nodes of 24 bytes on any node of the cluster, linked by global addresses.
 * The executor has to be part of a node (CallServer::share, farside rmc serve --cluster). */
#include "farside_rmc.h"

struct node {
    farside_u64 key, value, next;
};

struct parameters {
    farside_u64 head; /* the global address of a word that has the first node's, or 0 */
    farside_u64 key;  /* to look for, or the global address of a node to be put in front */
};

#define NODES_MAX 64

/* One read for each node, at hand where the executor's node has cached it; FARSIDE_NOT_FOUND where the key
 * is not there, another negative number where a node cannot be read. */
FARSIDE_PROGRAM(find)(const struct parameters *p, farside_u64 size) {
    farside_u64 at = farside_global_load_u64(p->head);
    for (int n = 0; n < NODES_MAX && at; n++) {
        struct node node;
        farside_i64 status = farside_global_read(at, &node, sizeof node);
        if (status)
            return status;
        if (node.key == p->key)
            return node.value;
        at = node.next;
    }
    return FARSIDE_NOT_FOUND;
}

/* Inserts a node that its caller has filled at the front of the list. The swap follows the store, so that a reader that
 * finds the node finds the rest of the list. FARSIDE_BUSY if each attempt lost against another call. */
FARSIDE_PROGRAM(push)(const struct parameters *p, farside_u64 size) {
    farside_u64 first = farside_global_load_u64(p->head);
    for (int tries = 0; tries < 100; tries++) {
        farside_global_store_u64(p->key + 16, first);
        farside_u64 found = farside_global_compare_swap(p->head, first, p->key);
        if (found == first)
            return FARSIDE_OK;
        first = found;
    }
    return FARSIDE_BUSY;
}
