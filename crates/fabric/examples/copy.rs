//! How fast `Arena` copies, as a ratio to the standard library's copy of the same bytes in the same
//! run: `cargo run --release -p farside-fabric --example copy`. Each figure is the best of several
//! short windows, in cache, with both sides at the offsets named.
#![allow(clippy::print_stdout, reason = "an example that prints a table")]

use farside_fabric::Arena;
use std::hint::black_box;
use std::time::Instant;

const LENGTHS: [usize; 12] = [1, 7, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 65_536];
const WINDOWS: usize = 25;

/// Best time of one call, in nanoseconds.
fn best_ns(bytes: usize, mut call: impl FnMut()) -> f64 {
    let calls = (400_000 / (bytes + 32)).max(20);
    let mut best = f64::MAX;
    for _ in 0..WINDOWS {
        let start = Instant::now();
        for _ in 0..calls {
            call();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / calls as f64);
    }
    best
}

fn compare(arena_offset: usize, slice_offset: usize) {
    println!("arena at {arena_offset}, slice at {slice_offset}: ns (ratio to memcpy)");
    println!("{:>7} {:>9} {:>17} {:>17} {:>17}", "bytes", "memcpy", "read", "write", "copy_from");
    let arena = Arena::heap(1 << 18);
    let other = Arena::heap(1 << 18);
    let mut slice = vec![1_u8; 1 << 18];
    let plain = vec![2_u8; 1 << 18];
    for bytes in LENGTHS {
        let at = slice_offset..slice_offset + bytes;
        let from = arena_offset..arena_offset + bytes;
        let base = best_ns(bytes, || {
            let (from, to) = (black_box(&plain[from.clone()]), &mut slice[at.clone()]);
            black_box(to).copy_from_slice(from);
        });
        let place = arena_offset as u64;
        let times = [
            best_ns(bytes, || {
                let _ = black_box(&arena).read(place, black_box(&mut slice[at.clone()]));
            }),
            best_ns(bytes, || {
                let _ = black_box(&arena).write(place, black_box(&slice[at.clone()]));
            }),
            best_ns(bytes, || {
                let (to, bytes) = (slice_offset as u64, black_box(bytes));
                let _ = black_box(&other).copy_from(to, black_box(&arena), place, bytes);
            }),
        ];
        print!("{bytes:>7} {base:>9.2}");
        for time in times {
            print!("  {time:>8.2} ({:>4.2})", time / base);
        }
        println!();
    }
}

fn main() {
    for (arena_offset, slice_offset) in [(0, 0), (64, 2112), (3, 17), (8, 4000)] {
        compare(arena_offset, slice_offset);
    }
    let arena = Arena::heap(4096);
    let mut sum = 0_u64;
    let word = best_ns(8, || {
        let mut word = [0; 8];
        let _ = black_box(&arena).read(black_box(13), &mut word);
        sum = sum.wrapping_add(u64::from_le_bytes(word));
    });
    println!("an 8-byte read at an odd offset into a register: {word:.2} ns ({sum})");
}
