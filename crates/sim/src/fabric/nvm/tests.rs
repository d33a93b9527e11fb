//! Each mechanism of the model by itself.

use super::*;
use crate::fabric::{CXL_NVM, OPTANE_NVM};
use farside_base::Random;

const REGION: u64 = 1 << 30;

fn near(address: u64, bytes: u64) -> NvmAccess {
    NvmAccess { address, bytes, is_across: false }
}

fn random(random: &mut Random, bytes: u64) -> NvmAccess {
    near(random.below(REGION / bytes) * bytes, bytes)
}

/// Writes one access after the other as soon as the memory takes it. Returns the counters of the second half, and its
/// writes per microsecond.
fn saturate(
    profile: NvmProfile,
    writer: NvmWriter,
    count: u64,
    mut next: impl FnMut(u64) -> NvmAccess,
) -> (NvmCounters, f64) {
    let mut socket = NvmSocket::new(profile);
    let mut at_ps = 0;
    let (mut before, mut start_ps) = (NvmCounters::default(), 0);
    for number in 0..2 * count {
        if number == count {
            (before, start_ps) = (socket.counters(), at_ps);
        }
        at_ps = socket.write(at_ps, &next(number), writer).accepted_ps;
    }
    let rate = count as f64 * 1e6 / (at_ps - start_ps) as f64;
    (socket.counters().since(&before), rate)
}

fn gbps(rate: f64, bytes: u64) -> f64 {
    rate * bytes as f64 * 8.0 / 1e3
}

const DDIO_OFF: NvmProfile = NvmProfile { ddio: false, ..OPTANE_NVM };

#[test]
fn sequential_whole_lines_amplify_nothing_and_reach_the_bandwidth() {
    let next = |number| near(number * 256, 256);
    let (counters, rate) = saturate(DDIO_OFF, NvmWriter::Adapter, 20_000, next);
    assert_eq!(counters.write_amplification(), 1.0);
    assert_eq!(counters.read_requests, 0);
    assert_eq!(counters.media_read_bytes, 0, "a whole line is not read");
    let peak = OPTANE_NVM.write_gbps();
    assert!((0.9..=1.01).contains(&(gbps(rate, 256) / peak)), "{} of {peak}", gbps(rate, 256));
}

#[test]
fn random_lines_of_64_bytes_amplify_four_times_with_a_read_of_the_media() {
    let mut draw = Random::new(1);
    let (counters, rate) =
        saturate(DDIO_OFF, NvmWriter::Adapter, 20_000, |_| random(&mut draw, 64));
    assert!((3.95..=4.0).contains(&counters.write_amplification()), "{counters:?}");
    assert_eq!(counters.read_requests, 0, "no request: the controller reads by itself");
    let merged = counters.media_read_bytes as f64 / counters.media_write_bytes as f64;
    assert!((0.98..=1.02).contains(&merged), "read-modify-write: {merged}");
    let share = rate / OPTANE_NVM.writes_per_us();
    assert!((0.85..=1.0).contains(&share), "full queues of other DIMMs: {share}");
}

#[test]
fn part_of_a_line_is_read_and_costs_a_third_of_the_rate() {
    let (mut one, mut other) = (Random::new(2), Random::new(2));
    let (counters, part) = saturate(DDIO_OFF, NvmWriter::Adapter, 20_000, |_| random(&mut one, 16));
    assert!((0.99..=1.0).contains(&(counters.read_requests as f64 / 20_000.0)));
    let (_, whole) = saturate(DDIO_OFF, NvmWriter::Adapter, 20_000, |_| random(&mut other, 64));
    assert!((0.55..=0.75).contains(&(part / whole)), "{part} of {whole}");
}

#[test]
fn eight_bytes_at_0x40_are_one_read_and_one_write() {
    let mut socket = NvmSocket::new(DDIO_OFF);
    socket.write(0, &near(0x40, 8), NvmWriter::Adapter);
    let counters = socket.counters();
    assert_eq!((counters.read_requests, counters.write_requests), (1, 1));
    socket.write(0, &near(0x60, 64), NvmWriter::Adapter);
    let counters = socket.counters();
    assert_eq!((counters.read_requests, counters.write_requests), (3, 3), "two parts of lines");
}

#[test]
fn ddio_evicts_at_random_and_halves_the_bandwidth() {
    let next = |number| near(number * 4_096, 4_096);
    let (counters, on) = saturate(OPTANE_NVM, NvmWriter::Adapter, 2_000, next);
    let amplified = counters.write_amplification();
    assert!((1.7..=2.4).contains(&amplified), "{amplified}");
    let (_, off) = saturate(DDIO_OFF, NvmWriter::Adapter, 2_000, next);
    assert!((0.35..=0.6).contains(&(on / off)), "{on} of {off}");
}

#[test]
fn adapter_writes_are_volatile_in_the_cache_until_they_are_flushed() {
    let mut socket = NvmSocket::new(OPTANE_NVM);
    assert!(!socket.write(0, &near(0, 256), NvmWriter::Adapter).is_durable);
    assert_eq!((socket.volatile_lines(), socket.counters().write_requests), (4, 0));
    socket.flush(0, &near(64, 64));
    assert_eq!((socket.volatile_lines(), socket.counters().write_requests), (3, 1));
    let mut persistent = NvmSocket::new(NvmProfile { caches_persist: true, ..OPTANE_NVM });
    assert!(persistent.write(0, &near(0, 256), NvmWriter::Adapter).is_durable);
    assert_eq!(persistent.volatile_lines(), 0);
    let mut off = NvmSocket::new(DDIO_OFF);
    assert!(off.write(0, &near(0, 256), NvmWriter::Adapter).is_durable);
    assert_eq!(off.volatile_lines(), 0);
}

#[test]
fn plain_stores_read_each_line_and_non_temporal_stores_none() {
    let mut draw = Random::new(3);
    let (stored, plain) =
        saturate(OPTANE_NVM, NvmWriter::Store, 4_000, |_| random(&mut draw, 2_048));
    let reads = stored.read_requests as f64 / stored.write_requests as f64;
    assert!((0.97..=1.03).contains(&reads), "{reads}");
    let mut draw = Random::new(3);
    let (counters, streamed) =
        saturate(OPTANE_NVM, NvmWriter::NonTemporal, 4_000, |_| random(&mut draw, 2_048));
    assert_eq!(counters.read_requests, 0);
    assert_eq!(counters.write_amplification(), 1.0);
    assert!(plain < 0.4 * streamed, "{plain} of {streamed}");
}

#[test]
fn other_socket_is_limited_by_its_interconnect() {
    let mut draw = Random::new(4);
    let across = |access: NvmAccess| NvmAccess { is_across: true, ..access };
    let (_, far) =
        saturate(OPTANE_NVM, NvmWriter::Adapter, 20_000, |_| across(random(&mut draw, 16)));
    let mut draw = Random::new(4);
    let (_, close) = saturate(OPTANE_NVM, NvmWriter::Adapter, 20_000, |_| random(&mut draw, 16));
    assert!((0.4..=0.6).contains(&(far / close)), "{far} of {close}");
}

#[test]
fn many_threads_disturb_each_other_at_one_dimm() {
    let share = |threads: usize| {
        let mut socket = NvmSocket::new(OPTANE_NVM);
        let mut clocks = vec![0_u64; threads];
        for number in 0..2_000_u64 {
            let thread = (0..threads).min_by_key(|thread| clocks[*thread]).unwrap_or(0);
            // The first 4 KiB of every 24 KiB.
            let access = near(number / 2 * 6 * 4_096 + number % 2 * 2_048, 2_048);
            let at_ps = clocks[thread] + 500_000;
            clocks[thread] = socket.write(at_ps, &access, NvmWriter::NonTemporal).accepted_ps;
        }
        2_000.0 * 1e6 / clocks.into_iter().max().unwrap_or(1) as f64
    };
    let (few, many) = (share(4), share(20));
    assert!((0.55..=0.75).contains(&(many / few)), "{many} of {few}");
    assert!((12.0..=18.5).contains(&gbps(few, 2_048)), "a sixth of the socket: {few}");
}

#[test]
fn reads_compete_with_writes_for_the_buffer() {
    let mut socket = NvmSocket::new(DDIO_OFF);
    // Half a line, then as many reads as the buffer has lines, then the other half.
    socket.write(0, &near(0, 128), NvmWriter::Adapter);
    for number in 1..=u64::from(OPTANE_NVM.buffer_lines) {
        socket.read(0, &near(number * 6 * 4_096, 64));
    }
    socket.write(0, &near(128, 128), NvmWriter::Adapter);
    assert_eq!(socket.counters().media_write_bytes, 256, "the first half was replaced");
    let read = socket.counters().media_read_bytes;
    assert_eq!(read, 256 * (1 + u64::from(OPTANE_NVM.buffer_lines)), "and merged with its rest");
}

#[test]
fn cxl_memory_amplifies_nothing_and_reaches_32_gb_a_second() {
    let mut draw = Random::new(5);
    let profile = NvmProfile { ddio: false, ..CXL_NVM };
    let (counters, rate) = saturate(profile, NvmWriter::Adapter, 20_000, |_| random(&mut draw, 64));
    assert_eq!(counters.write_amplification(), 1.0);
    assert!((240.0..=257.0).contains(&gbps(rate, 64)), "{}", gbps(rate, 64));
}

#[test]
fn a_profile_fits_one_line() {
    assert_eq!(OPTANE_NVM.to_string().lines().count(), 1);
}
