/* Remote memory calls in C.
 *
 *     clang -target bpf -O2 -g -Wall -ffreestanding -c search.c -o search.o
 *
 * or `farside rmc build search.c`, which finds this header by itself and checks what came out.
 * -ffreestanding says that there is no C library: its names, such as index and log, are free, loops do not
 * become calls of memcpy and memset, and <stdint.h> is clang's own.
 *
 * A program is a function that FARSIDE_PROGRAM makes one. It gets its parameters, which are read-only,
 * and their size; what it returns, and what it emits, goes to the caller. It may have local variables
 * (512 bytes in each function, eight functions deep), constants, global variables, which outlive calls,
 * and loops. It may call functions of its own file and those declared here, and nothing else.
 *
 * What is read must have been written before: a buffer that is filled up to a length that only the run
 * knows has to start with zeros.
 *
 * Memory of the host is reached by regions and offsets. A call of a word (farside_load_u64 and others)
 * that may not be accessed ends the program, and its caller hears why; calls with buffers return one of
 * the negative numbers below.
 *
 * What of C does not work here, and what does instead:
 * - / and % of signed numbers, which the instruction set has not up to -mcpu=v3: divide farside_u64, and
 *   put the sign back.
 * - float and double: count in small units.
 * - memset, memcpy, memcmp and all else of the C library: assign, initialise with {0}, or write
 *   __builtin_memset or __builtin_memcpy where the length is a constant of at most some hundred bytes and
 *   what is copied are words. Loops do the rest.
 * - More than 512 bytes of local variables: static ones. Each queue pair has its own, and finds in them
 *   what its call before left there.
 * - Calls by pointers to functions: switch or if.
 * - Pointers in global variables and constants, also tables of strings: arrays in arrays, such as
 *   char colours[3][8], and indices.
 * - Variable arguments, more than five, and structures as results: the address of a structure.
 * - Recursion deeper than those eight functions: a loop, with an array of what is left to do.
 */
#ifndef FARSIDE_RMC_H
#define FARSIDE_RMC_H

typedef unsigned char farside_u8;
typedef unsigned short farside_u16;
typedef unsigned int farside_u32;
typedef unsigned long long farside_u64;
typedef signed int farside_i32;
typedef signed long long farside_i64;

/* Defines a program:
 *     struct parameters { farside_u64 least, most; };
 *     FARSIDE_PROGRAM(middle)(const struct parameters *p, farside_u64 size) {
 *         return (p->least + p->most) / 2;
 *     }
 */
#define FARSIDE_PROGRAM(name) __attribute__((section("rmc/" #name), used)) farside_u64 name

/* The value, about which the compiler knows nothing from here on, so that it keeps a comparison that it could prove
 * and the verifier cannot: i = FARSIDE_OPAQUE(i); if (i >= 40) return FARSIDE_OUT_OF_RANGE; */
#define FARSIDE_OPAQUE(value)                                                                          \
    ({                                                                                                 \
        __typeof__(value) farside_opaque_ = (value);                                                   \
        __asm__ volatile("" : "+r"(farside_opaque_));                                                  \
        farside_opaque_;                                                                               \
    })

/* A function that is called rather than copied into its callers:
 *     FARSIDE_FUNCTION farside_u64 square(farside_u64 n) { return n * n; }
 */
#define FARSIDE_FUNCTION static __attribute__((noinline))

/* A global variable that all queue pairs share which registered the program; without it, each has its
 * own:
 *     FARSIDE_SHARED farside_u64 calls;
 */
#define FARSIDE_SHARED __attribute__((section(".data.shared")))

/* What calls with buffers return. */
#define FARSIDE_OK 0
#define FARSIDE_NOT_PERMITTED (-1)
#define FARSIDE_NOT_FOUND (-2)
#define FARSIDE_OUT_OF_RANGE (-3)
#define FARSIDE_FULL (-4)
#define FARSIDE_TIMED_OUT (-5)
#define FARSIDE_BUSY (-6)
#define FARSIDE_PEER_LOST (-7)

/* State that the executor keeps near the memory, declared at the top of the file:
 *     struct entry { farside_u64 first, last; };
 *     FARSIDE_MAP(index, farside_u64, struct entry, 1024, FARSIDE_PER_QUEUE_PAIR);
 * and named by its address:
 *     FARSIDE_PROGRAM(last_of)(const farside_u64 *key, farside_u64 size) {
 *         struct entry entry;
 *         __sync_fetch_and_add(&calls, 1);
 *         if (farside_map_get(&index, key, &entry))
 *             return FARSIDE_NOT_FOUND;
 *         return square(entry.last);
 *     }
 * All programs of a file name the same state. What it takes when it is full counts towards a tenant's quota:
 * for a map 12 bytes with each key and value, for a lock 8. A call holds at most 64 locks of each scope at
 * once. */
struct farside_state {
    farside_u32 kind, key_bytes, value_bytes, entries, scope;
};

#define FARSIDE_PER_QUEUE_PAIR 0
#define FARSIDE_BETWEEN_QUEUE_PAIRS 1

#define FARSIDE_STATE(name, kind, key_bytes, value_bytes, entries, scope)                              \
    __attribute__((section(".farside.state"), used)) const struct farside_state name = {               \
        kind, key_bytes, value_bytes, entries, scope}
#define FARSIDE_ARRAY(name, value_type, entries, scope)                                                \
    FARSIDE_STATE(name, 1, 0, sizeof(value_type), entries, scope)
#define FARSIDE_COUNTERS(name, entries, scope) FARSIDE_STATE(name, 2, 0, 8, entries, scope)
#define FARSIDE_MAP(name, key_type, value_type, entries, scope)                                        \
    FARSIDE_STATE(name, 3, sizeof(key_type), sizeof(value_type), entries, scope)
#define FARSIDE_LOCKS(name, entries, scope) FARSIDE_STATE(name, 4, 0, 0, entries, scope)

/* A place in host memory as one word, for structures that link to each other: the region in the upper
 * 16 bits, the offset in the lower 48. In region 0 it is the offset itself. */
#define FARSIDE_PLACE(region, offset) ((farside_u64)(region) << 48 | (farside_u64)(offset))
#define FARSIDE_REGION(place) ((farside_u64)(place) >> 48)
#define FARSIDE_OFFSET(place) ((farside_u64)(place) & 0xffffffffffffULL)

/* A piece of a vectored access. */
struct farside_piece {
    farside_u64 offset;
    farside_u32 length;
    farside_u32 zero;
};

/* Words of host memory. */
static farside_u64 (*const farside_load_u64)(farside_u64 region, farside_u64 offset) = (void *)1;
static farside_i64 (*const farside_store_u64)(farside_u64 region, farside_u64 offset, farside_u64 value) = (void *)2;
static farside_u64 (*const farside_load_u32)(farside_u64 region, farside_u64 offset) = (void *)3;
static farside_i64 (*const farside_store_u32)(farside_u64 region, farside_u64 offset, farside_u64 value) = (void *)4;

/* Buffers of host memory, at most 64 KiB. */
static farside_i64 (*const farside_read)(farside_u64 region, farside_u64 offset, void *out, farside_u64 length) = (void *)5;
static farside_i64 (*const farside_write)(farside_u64 region, farside_u64 offset, const void *bytes, farside_u64 length) = (void *)6;

/* At most 64 pieces of a region, which together are exactly as long as the buffer. */
static farside_i64 (*const farside_read_vector)(farside_u64 region, const struct farside_piece *pieces, farside_u64 count, void *out, farside_u64 length) = (void *)7;
static farside_i64 (*const farside_write_vector)(farside_u64 region, const struct farside_piece *pieces, farside_u64 count, const void *bytes, farside_u64 length) = (void *)8;

/* Atomics on host memory; both return the old value. */
static farside_u64 (*const farside_compare_swap)(farside_u64 region, farside_u64 offset, farside_u64 expected, farside_u64 desired) = (void *)9;
static farside_u64 (*const farside_fetch_add)(farside_u64 region, farside_u64 offset, farside_u64 addend) = (void *)10;

/* Hashes of host memory, at most 1 MiB, computed where it is. */
static farside_u64 (*const farside_crc32c_of)(farside_u64 region, farside_u64 offset, farside_u64 length, farside_u64 previous) = (void *)11;
static farside_u64 (*const farside_xxhash64_of)(farside_u64 region, farside_u64 offset, farside_u64 length, farside_u64 seed) = (void *)12;

/* The global memory, coherently, where the executor is part of a node; others refuse the program. A call is
 * one program order: it sees its own writes. Loads and atomics come when they are done, and so does
 * farside_global_write; a store of a word completes asynchronously, and others see it at the latest when a later
 * atomic, farside_lock, farside_unlock, farside_wait_word or farside_notify begins or the caller has the
 * answer. Atomics need an aligned word; loads and stores may be unaligned, and are whole within a line.
 * Host memory and state are not ordered with it otherwise.
 * A bad or freed address is FARSIDE_NOT_PERMITTED, memory lost with its node FARSIDE_PEER_LOST, no place in
 * the node's cache FARSIDE_FULL; from the calls of words each of them ends the program. */
static farside_u64 (*const farside_global_load_u64)(farside_u64 address) = (void *)16;
static farside_i64 (*const farside_global_store_u64)(farside_u64 address, farside_u64 value) = (void *)17;
static farside_i64 (*const farside_global_read)(farside_u64 address, void *out, farside_u64 length) = (void *)18;
static farside_i64 (*const farside_global_write)(farside_u64 address, const void *bytes, farside_u64 length) = (void *)19;
static farside_u64 (*const farside_global_compare_swap)(farside_u64 address, farside_u64 expected, farside_u64 desired) = (void *)20;
static farside_u64 (*const farside_global_fetch_add)(farside_u64 address, farside_u64 addend) = (void *)21;

/* Declared state. Locks are given back at the end of the call. farside_lock waits while another call holds the
 * lock, and is FARSIDE_BUSY after 100 ms of that, or at once where the call holds it itself: calls that take
 * two locks in opposite order do not deadlock. farside_try_lock does not wait. */
static farside_i64 (*const farside_array_read)(const struct farside_state *array, farside_u64 index, void *value) = (void *)32;
static farside_i64 (*const farside_array_write)(const struct farside_state *array, farside_u64 index, const void *value) = (void *)33;
static farside_u64 (*const farside_counter_add)(const struct farside_state *counters, farside_u64 index, farside_u64 addend) = (void *)34;
static farside_i64 (*const farside_map_get)(const struct farside_state *map, const void *key, void *value) = (void *)35;
static farside_i64 (*const farside_map_put)(const struct farside_state *map, const void *key, const void *value) = (void *)36;
static farside_i64 (*const farside_map_remove)(const struct farside_state *map, const void *key) = (void *)37;
static farside_i64 (*const farside_lock)(const struct farside_state *locks, farside_u64 index) = (void *)38;
static farside_i64 (*const farside_try_lock)(const struct farside_state *locks, farside_u64 index) = (void *)39;
static farside_i64 (*const farside_unlock)(const struct farside_state *locks, farside_u64 index) = (void *)40;

/* Waits until the 8 bytes at (region, offset) differ from `old`, at most `timeout_ns` nanoseconds. */
static farside_i64 (*const farside_wait_word)(farside_u64 region, farside_u64 offset, farside_u64 old, farside_u64 timeout_ns) = (void *)48;
/* Sends bytes to the subscribers of a topic. */
static farside_i64 (*const farside_notify)(farside_u64 topic, const void *bytes, farside_u64 length) = (void *)49;
/* Nanoseconds since the executor started. */
static farside_u64 (*const farside_time_ns)(void) = (void *)50;
/* Appends to the output that the caller receives with the returned number. */
static farside_i64 (*const farside_emit)(const void *bytes, farside_u64 length) = (void *)51;

/* Functions of bytes of one's own, at most 64 KiB. */
static farside_u64 (*const farside_crc32c)(const void *bytes, farside_u64 length, farside_u64 previous) = (void *)64;
static farside_u64 (*const farside_xxhash64)(const void *bytes, farside_u64 length, farside_u64 seed) = (void *)65;
/* An LZ4 block; returns its length, or FARSIDE_FULL where it does not fit. */
static farside_i64 (*const farside_compress)(const void *bytes, farside_u64 length, void *out, farside_u64 room) = (void *)66;

#endif
