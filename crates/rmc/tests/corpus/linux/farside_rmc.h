/* include/farside_rmc.h with the helpers that the corpus calls replaced by helpers of Linux that have the same requirements
 * on their arguments. ask.py compiles the corpus with this header in place of that one. */
#ifndef FARSIDE_RMC_LINUX_H
#define FARSIDE_RMC_LINUX_H

#include "../../../include/farside_rmc.h"

/* A map of type BPF_MAP_TYPE_RINGBUF. */
extern farside_u8 output_map __attribute__((section("maps")));
farside_u8 output_map = 0;

/* bpf_get_prandom_u32, whose result is any number. */
static farside_u64 (*const linux_random)(farside_u64 region, farside_u64 offset) = (void *)7;
/* bpf_probe_read_kernel writes to `out`, which has `length` bytes; zero is permitted. */
static farside_i64 (*const linux_probe_read)(void *out, farside_u64 length, farside_u64 from) = (void *)113;
/* bpf_ringbuf_output reads from `bytes`, which has `length` bytes; zero is permitted. */
static farside_i64 (*const linux_output)(void *map, const void *bytes, farside_u64 length, farside_u64 flags) = (void *)130;

#define farside_load_u64(region, offset) linux_random(region, offset)
#define farside_read(region, offset, out, length) linux_probe_read(out, length, offset)
#define farside_emit(bytes, length) linux_output(&output_map, bytes, length, 0)
#define farside_crc32c(bytes, length, previous) (farside_u64) linux_output(&output_map, bytes, length, previous)

#endif
