//! The conformance suite of log devices. A device passes it with an empty log: `open` opens it again each time, after the one
//! before was dropped.
//!
//! A failure panics and names the property.

use super::device::{LogDevice, Segment};
use crate::ErrorCode;

const BYTES: u64 = 4096;

/// Runs the suite.
///
/// # Panics
/// If the device fails.
pub fn run(open: &mut dyn FnMut() -> Box<dyn LogDevice>) {
    let segment = |number: u64| Segment { begin: number * BYTES, bytes: BYTES };
    let (one, two, three) = (segment(0), segment(1), segment(2));
    let mut device = open();
    let id = device.log_id();
    assert_eq!(listed(&mut *device), [], "an empty log has no segments");
    for new in [one, two, three] {
        assert!(device.create(new).is_ok(), "a segment is made");
    }
    assert_eq!(read(&mut *device, two), [0; BYTES as usize], "a new segment is zero");
    // Each byte at its place, over several writes, up to both ends.
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 256) as u8 | 1).collect();
    for (from, to) in [(0, 1), (1, 96), (96, 4000), (4000, 4096)] {
        let part = &bytes[from..to];
        assert!(device.write(two, BYTES + from as u64, part).is_ok(), "a part is written");
    }
    assert!(device.sync(two).is_ok(), "a segment is synced");
    assert!(read(&mut *device, two) == bytes, "a read returns what was written");
    assert_eq!(read(&mut *device, one), [0; BYTES as usize], "its neighbour is unchanged");
    assert_eq!(read(&mut *device, three), [0; BYTES as usize], "its other neighbour too");
    drop(device);

    let mut device = open();
    assert_eq!(device.log_id(), id, "the number of the log stays");
    assert_eq!(listed(&mut *device), [one, two, three], "segments are listed in order");
    assert!(read(&mut *device, two) == bytes, "what was synced is there");
    assert!(device.remove(one).is_ok(), "a segment is removed");
    assert_eq!(listed(&mut *device), [two, three], "it is not listed any more");
    // Its space may be used again, with any bytes.
    let four = segment(3);
    assert!(device.create(four).is_ok(), "a segment is made after another was removed");
    assert!(device.write(four, 3 * BYTES, &bytes).is_ok() && device.sync(four).is_ok());
    drop(device);

    let mut device = open();
    assert_eq!(listed(&mut *device), [two, three, four], "after a removal too");
    assert!(read(&mut *device, two) == bytes && read(&mut *device, four) == bytes);
    let absent = device.read(one, 0, &mut [0; 8]);
    assert!(absent.is_err_and(|error| error.code != ErrorCode::DeviceFailed), "it is gone");
    assert!(!device.promise().to_string().is_empty());
}

fn listed(device: &mut dyn LogDevice) -> Vec<Segment> {
    device.segments().unwrap_or_default()
}

fn read(device: &mut dyn LogDevice, segment: Segment) -> Vec<u8> {
    let mut out = vec![0xff; segment.bytes as usize];
    assert!(device.read(segment, segment.begin, &mut out).is_ok(), "a segment is read");
    out
}
