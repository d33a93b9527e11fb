/* list_search: the value of a key in a linked list (003 figure 1).
 *
 * Reads one node after the other until it finds the key or the end. Lists have any length: a meter ends
 * the call in one that is a cycle or has more nodes than the budget has helper calls.
 *
 * returns   the node's value; FARSIDE_NOT_FOUND where no node has the key; another negative number
 *           where a node cannot be read. Values from -4095 to -1 look like those: do not store them.
 * accesses  n: one read of 24 bytes for each node up to the one found.
 */
#include "farside_rmc.h"

/* What a call takes: 16 bytes, 24 with the program's id. */
struct parameters {
    farside_u64 head; /* the first node's place, or 0 */
    farside_u64 key;
};

/* What the list is made of; place 0 is none. */
struct node {
    farside_u64 key;
    farside_u64 value;
    farside_u64 next; /* the next node's place, or 0 */
};

FARSIDE_PROGRAM(list_search)(const struct parameters *p, farside_u64 size) {
    farside_u64 key = p->key, at = p->head;
    while (at) {
        struct node node;
        farside_i64 status = farside_read(FARSIDE_REGION(at), FARSIDE_OFFSET(at), &node, sizeof node);
        if (status)
            return status;
        if (node.key == key)
            return node.value;
        at = node.next;
    }
    return FARSIDE_NOT_FOUND;
}
