//! Which bytes of a write differ from the image.

use crate::canary;
use crate::record::RecordHeader;
use std::ops::Range;

/// Bytes that are compared at a time: changed ranges begin and end at multiples of it.
const GRANULE: u64 = 8;

/// Returns the changed ranges of a write at an offset, as offsets of the memory: none, one, or two if the equal bytes
/// between them would cost more than the second range. `old` and `new` have the same length.
pub(super) fn changes(
    offset: u64,
    old: &[u8],
    new: &[u8],
) -> Option<(Range<u64>, Option<Range<u64>>)> {
    if old == new {
        return None;
    }
    let bytes = new.len() as u64;
    // Granules are those of the memory: the first one of the write may be a part of one.
    let lead = offset % GRANULE;
    let granules = (lead + bytes).div_ceil(GRANULE);
    let part = |granule: u64| {
        let from = (granule * GRANULE).saturating_sub(lead);
        from as usize..((granule + 1) * GRANULE - lead).min(bytes) as usize
    };
    let differs = |granule: &u64| old[part(*granule)] != new[part(*granule)];
    let first = (0..granules).find(differs)?;
    let last = (0..granules).rev().find(differs)?;
    let place = |granules: Range<u64>| {
        let range = part(granules.start).start..part(granules.end - 1).end;
        offset + range.start as u64..offset + range.end as u64
    };
    if canary::mutant!(canary::nodes(), StateChangeTooShort) && last > first {
        return Some((place(first..last), None));
    }
    // The longest run of equal granules between them.
    let (mut gap, mut run) = (first..first, first);
    for granule in first..=last {
        if differs(&granule) {
            run = granule + 1;
        } else if granule + 1 - run > gap.end - gap.start {
            gap = run..granule + 1;
        }
    }
    let length = |range: &Range<u64>| range.end - range.start;
    let one = place(first..last + 1);
    if gap.is_empty() {
        return Some((one, None));
    }
    let two = (place(first..gap.start), place(gap.end..last + 1));
    let takes_two = RecordHeader::footprint(8 + length(&two.0) + length(&two.1));
    match takes_two < RecordHeader::footprint(length(&one)) {
        true => Some((two.0, Some(two.1))),
        false => Some((one, None)),
    }
}

/// Returns the range of bytes from the first to the last that is not zero.
pub(super) fn not_zero(bytes: &[u8]) -> Range<usize> {
    let words = bytes.chunks(64);
    let lead = words.clone().take_while(|word| word.iter().all(|byte| *byte == 0)).count() * 64;
    if lead >= bytes.len() {
        return 0..0;
    }
    let is_set = |byte: &u8| *byte != 0;
    let start = lead + bytes[lead..].iter().position(is_set).unwrap_or(0);
    let tail = words.rev().take_while(|word| word.iter().all(|byte| *byte == 0));
    let tail: usize = tail.map(<[u8]>::len).sum();
    let until = bytes.len() - tail;
    start..bytes[..until].iter().rposition(is_set).map_or(start, |last| last + 1)
}
