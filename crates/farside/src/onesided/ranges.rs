//! Lists of ranges that one call moves: explicit, strided, or by a block table.

use super::vector::{ListForm, VectorCosts, VectorIo, VectorPlan};
use crate::{Error, ErrorCode};
use farside_base::{Capabilities, LocalSlice};
use std::fmt;
use std::sync::Arc;

/// Most ranges of a list.
pub const RANGES_MAX: usize = 1 << 24;

/// A range of a [`RangeList`], relative to the addresses of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferRange {
    /// Its offset in the buffer.
    pub local: u64,
    /// Its offset in the remote memory.
    pub remote: u64,
    /// Its length.
    pub bytes: u32,
}

/// Ranges that [`MemoryClient::read_ranges`](super::MemoryClient::read_ranges) and
/// [`write_ranges`](super::MemoryClient::write_ranges) move by one call. Prepared once, used any number of times at
/// different addresses, which takes no memory; a clone shares the ranges.
///
/// ```
/// use farside::onesided::RangeList;
///
/// // Every second row of a matrix of 1 KiB rows, dense in the buffer.
/// let rows = RangeList::strided(512, 1024, 1024, 2048)?;
/// assert_eq!((rows.count(), rows.bytes()), (512, 512 * 1024));
/// // Blocks 7, 3 and 9 of the remote memory to blocks 0, 1 and 2 of the buffer: 8 B each.
/// let blocks = RangeList::blocks(4096, &[[0, 7], [1, 3], [2, 9]])?;
/// assert_eq!(blocks.bytes(), 3 * 4096);
/// # Ok::<(), farside::Error>(())
/// ```
#[derive(Clone)]
pub struct RangeList {
    form: Form,
    count: u32,
    bytes: u64,
    /// The ends of the last bytes.
    local_end: u64,
    remote_end: u64,
    /// Runs of ranges that are adjacent in the remote memory, and their pieces in the buffer.
    runs: u32,
    pieces: u32,
    /// Bytes of the largest range.
    range_bytes_max: u32,
    vector_io: VectorIo,
}

#[derive(Clone)]
enum Form {
    Explicit(Arc<[TransferRange]>),
    Strided {
        bytes: u32,
        local: u64,
        remote: u64,
    },
    /// Numbers of blocks in the buffer and in the remote memory.
    Blocks {
        bytes: u32,
        table: Arc<[[u32; 2]]>,
    },
}

impl RangeList {
    /// A list of any ranges: 24 B each.
    ///
    /// # Errors
    /// `ZeroSize` for no ranges or an empty one; `TooLarge` for more than [`RANGES_MAX`] ranges; `OutOfBounds` for a
    /// range whose end is no offset. The text names the range.
    pub fn explicit(ranges: &[TransferRange]) -> Result<Self, Error> {
        Self::new(Form::Explicit(Arc::from(ranges)), ranges.len())
    }

    /// Ranges of `bytes` whose beginnings are `local_stride` and `remote_stride` apart.
    ///
    /// # Errors
    /// As [`explicit`](Self::explicit).
    pub fn strided(
        count: usize,
        bytes: u32,
        local_stride: u64,
        remote_stride: u64,
    ) -> Result<Self, Error> {
        Self::new(Form::Strided { bytes, local: local_stride, remote: remote_stride }, count)
    }

    /// Blocks of `bytes`: each row of the table has the number of a block in the buffer and in the remote memory.
    /// 8 B a block, and nothing for further uses of the table at other addresses (the layers of a model's cache).
    ///
    /// # Errors
    /// As [`explicit`](Self::explicit).
    pub fn blocks(bytes: u32, table: &[[u32; 2]]) -> Result<Self, Error> {
        Self::new(Form::Blocks { bytes, table: Arc::from(table) }, table.len())
    }

    fn new(form: Form, count: usize) -> Result<Self, Error> {
        if count == 0 {
            return Err(Error::with(ErrorCode::ZeroSize, "a list of no ranges"));
        }
        if count > RANGES_MAX {
            let text = format!("{count} ranges; a list has at most {RANGES_MAX}");
            return Err(Error::with(ErrorCode::TooLarge, text));
        }
        let count = count as u32;
        let (runs, pieces, range_bytes_max, vector_io) = (0, 0, 0, VectorIo::Auto);
        let (bytes, local_end, remote_end) = (0, 0, 0);
        let mut list = Self {
            form,
            count,
            bytes,
            local_end,
            remote_end,
            runs,
            pieces,
            range_bytes_max,
            vector_io,
        };
        let mut ends = (u64::MAX, u64::MAX);
        for number in 0..count {
            let range = list.checked(number).filter(|range| range.bytes > 0);
            let Some(TransferRange { local, remote, bytes }) = range else {
                return Err(list.wrong(number));
            };
            let (is_near, is_run) = (local == ends.0, remote == ends.1);
            list.runs += u32::from(!is_run);
            list.pieces += u32::from(!(is_run && is_near));
            let its_ends = (local.checked_add(bytes.into()), remote.checked_add(bytes.into()));
            let (Some(local), Some(remote)) = its_ends else {
                return Err(list.wrong(number));
            };
            ends = (local, remote);
            list.range_bytes_max = list.range_bytes_max.max(bytes);
            list.bytes = list.bytes.saturating_add(bytes.into());
            list.local_end = list.local_end.max(local);
            list.remote_end = list.remote_end.max(remote);
        }
        Ok(list)
    }

    /// The error of a range that is empty or whose end is no offset.
    fn wrong(&self, number: u32) -> Error {
        let range = self.checked(number);
        let is_empty = range.is_some_and(|range| range.bytes == 0);
        let code = if is_empty { ErrorCode::ZeroSize } else { ErrorCode::OutOfBounds };
        Error::with(code, format!("range {number} of the list: {range:?}"))
    }

    /// Returns the number of ranges.
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// Returns the bytes of its largest range.
    pub(super) const fn range_bytes_max(&self) -> u32 {
        self.range_bytes_max
    }

    /// Returns the bytes that it moves.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a range; `None` if there is none of this number or its offsets overflow.
    fn checked(&self, number: u32) -> Option<TransferRange> {
        let index = u64::from(number);
        match &self.form {
            Form::Explicit(ranges) => ranges.get(number as usize).copied(),
            Form::Strided { bytes, local, remote } => Some(TransferRange {
                local: local.checked_mul(index)?,
                remote: remote.checked_mul(index)?,
                bytes: *bytes,
            }),
            Form::Blocks { bytes, table } => {
                let [local, remote] = *table.get(number as usize)?;
                let at = |block: u32| u64::from(block) * u64::from(*bytes);
                Some(TransferRange { local: at(local), remote: at(remote), bytes: *bytes })
            }
        }
    }

    /// Whether its ranges fit these lengths from these offsets on.
    ///
    /// # Errors
    /// `OutOfBounds`, which names the first range that does not.
    pub(super) fn check(
        &self,
        (local, local_bytes): (u64, u64),
        (remote, remote_bytes): (u64, u64),
    ) -> Result<(), Error> {
        let fits =
            |at: u64, end: u64, bytes: u64| at.checked_add(end).is_some_and(|end| end <= bytes);
        if fits(local, self.local_end, local_bytes) && fits(remote, self.remote_end, remote_bytes) {
            return Ok(());
        }
        let is_wrong = |range: &TransferRange| {
            let bytes = u64::from(range.bytes);
            !fits(local, range.local + bytes, local_bytes)
                || !fits(remote, range.remote + bytes, remote_bytes)
        };
        let mut numbers = 0..self.count;
        let number = numbers.find(|number| self.checked(*number).as_ref().is_some_and(is_wrong));
        let text = format!(
            "range {} of the list: {:?} from {local} of a buffer of {local_bytes} B and {remote} of a memory of \
             {remote_bytes} B",
            number.unwrap_or_default(),
            number.and_then(|number| self.checked(number)),
        );
        Err(Error::with(ErrorCode::OutOfBounds, text))
    }

    /// The same remote ranges, one after the other in the buffer.
    pub(super) fn packed(&self) -> Self {
        let (local_end, pieces) = (self.bytes, self.runs);
        if let Form::Strided { bytes, remote, .. } = self.form {
            let form = Form::Strided { bytes, local: u64::from(bytes), remote };
            return Self { form, local_end, pieces, ..self.clone() };
        }
        let mut local = 0;
        let ranges = self.iter().map(|range| {
            let at = local;
            local += u64::from(range.bytes);
            TransferRange { local: at, ..range }
        });
        Self { form: Form::Explicit(ranges.collect()), local_end, pieces, ..self.clone() }
    }

    /// The ranges, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = TransferRange> + '_ {
        (0..self.count).filter_map(|number| self.checked(number))
    }

    /// How it is moved; [`VectorIo::Auto`] unless set.
    #[must_use]
    pub const fn by(mut self, vector_io: VectorIo) -> Self {
        self.vector_io = vector_io;
        self
    }

    /// Returns how a client whose fabric has these capabilities would move it, with the expected costs of each way.
    pub fn explain(&self, has: &Capabilities, costs: &VectorCosts) -> VectorPlan {
        let (ranges, bytes) = (self.count.into(), self.bytes);
        let (runs, pieces) = (self.runs.into(), self.pieces.into());
        VectorPlan::new(ListForm { ranges, bytes, runs, pieces }, has, costs)
    }

    /// Whether its ranges may be moved one by one.
    pub(super) const fn is_by_one(&self) -> bool {
        matches!(self.vector_io, VectorIo::Auto | VectorIo::Doorbell)
    }

    /// The way to move it.
    pub(super) fn way(&self, has: &Capabilities, costs: &VectorCosts, staged_max: u64) -> VectorIo {
        match self.vector_io {
            VectorIo::Auto => match self.explain(has, costs).chosen {
                VectorIo::Stage if self.bytes > staged_max => VectorIo::Gather,
                chosen => chosen,
            },
            way => way,
        }
    }

    /// Appends the local slices of the ranges from `first` on that one request moves: they are adjacent in the remote
    /// memory, and have at most `slices_max` pieces in the buffer; zero: one range. Returns the number of ranges and the
    /// first offset in the remote memory.
    #[inline]
    pub(super) fn group(
        &self,
        first: u32,
        local: LocalSlice,
        (slices_max, bytes_max): (usize, u32),
        slices: &mut Vec<LocalSlice>,
    ) -> (u32, u64) {
        let begins = slices.len();
        let (mut ranges, mut start, mut total) = (0, 0, 0_u32);
        while let Some(range) = self.checked(first + ranges).filter(|_| first + ranges < self.count)
        {
            if ranges == 0 {
                start = range.remote;
            } else if range.remote != start + u64::from(total) {
                break;
            }
            let sum = total.checked_add(range.bytes).filter(|sum| ranges == 0 || *sum <= bytes_max);
            let Some(sum) = sum else {
                break;
            };
            let offset = local.offset + range.local;
            if slices_max == 0 && ranges == 1 {
                break;
            }
            let is_full = slices.len() - begins == slices_max.max(1);
            match slices.last_mut() {
                Some(last) if ranges > 0 && last.offset + u64::from(last.bytes) == offset => {
                    last.bytes += range.bytes;
                }
                _ if is_full => break,
                _ => slices.push(LocalSlice { offset, bytes: range.bytes, ..local }),
            }
            (total, ranges) = (sum, ranges + 1);
        }
        (ranges, start)
    }
}

impl fmt::Debug for RangeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeList({} ranges, {} B)", self.count, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::RegionId;
    use farside_fabric::{Fabric, MemFabric};

    /// The number of ranges of a request, its remote offset, and its pieces.
    type Group = (u32, u64, Vec<(u64, u32)>);

    fn groups(list: &RangeList, slices_max: usize) -> Vec<Group> {
        let local = LocalSlice { region: RegionId(0), offset: 100, bytes: 0 };
        let (mut found, mut first) = (Vec::new(), 0);
        while (first as usize) < list.count() {
            let mut slices = Vec::new();
            let (ranges, remote) = list.group(first, local, (slices_max, u32::MAX), &mut slices);
            let slices = slices.iter().map(|slice| (slice.offset, slice.bytes)).collect();
            found.push((ranges, remote, slices));
            first += ranges;
        }
        found
    }

    #[test]
    fn adjacent_ranges_are_one_request() {
        // Adjacent on both sides: one slice.
        let dense = RangeList::strided(5, 8, 8, 8).unwrap();
        assert_eq!(groups(&dense, 4), [(5, 0, vec![(100, 40)])]);
        // Adjacent in the remote memory alone: a slice each, up to the limit.
        let gathered = RangeList::strided(5, 8, 64, 8).unwrap();
        let slices = |from: u64, to: u64| (from..to).map(|at| (100 + at * 64, 8)).collect();
        assert_eq!(groups(&gathered, 3), [(3, 0, slices(0, 3)), (2, 24, slices(3, 5))]);
        // Apart in the remote memory: a request each.
        let scattered = RangeList::strided(3, 8, 8, 64).unwrap();
        let single = |at: u64| (1, at * 64, vec![(100 + at * 8, 8)]);
        assert_eq!(groups(&scattered, 4), [single(0), single(1), single(2)]);
        // At most what a request may move, but one range in any case.
        let (local, mut slices) =
            (LocalSlice { region: RegionId(0), offset: 0, bytes: 0 }, Vec::new());
        for (bytes_max, ranges) in [(40, 5), (39, 4), (16, 2), (8, 1), (1, 1)] {
            assert_eq!(dense.group(0, local, (4, bytes_max), &mut slices).0, ranges);
            slices.clear();
        }
        // At most 4 GiB - 1 B.
        let large = RangeList::strided(3, 1 << 31, 1 << 31, 1 << 31).unwrap();
        assert_eq!(groups(&large, 4).len(), 3);
    }

    #[test]
    fn wrong_ranges_are_named() {
        let range = |local, remote, bytes| TransferRange { local, remote, bytes };
        let code = |list: Result<RangeList, Error>| list.unwrap_err().code;
        assert_eq!(code(RangeList::explicit(&[])), ErrorCode::ZeroSize);
        assert_eq!(code(RangeList::strided(RANGES_MAX + 1, 8, 8, 8)), ErrorCode::TooLarge);
        assert_eq!(code(RangeList::strided(3, 8, u64::MAX / 2 + 1, 8)), ErrorCode::OutOfBounds);
        let empty = RangeList::explicit(&[range(0, 0, 1), range(0, 0, 0)]).unwrap_err();
        assert!(empty.code == ErrorCode::ZeroSize && empty.detail.contains("range 1 "), "{empty}");
        let far = RangeList::explicit(&[range(0, u64::MAX, 1)]).unwrap_err();
        assert_eq!(far.code, ErrorCode::OutOfBounds);
        let list =
            RangeList::explicit(&[range(0, 0, 8), range(8, 100, 8), range(0, 64, 8)]).unwrap();
        assert_eq!(list.check((0, 16), (0, 108)), Ok(()));
        let error = list.check((0, 16), (1, 108)).unwrap_err();
        assert!(error.detail.contains("range 1 "), "{error}");
        let error = list.check((1, 16), (0, 108)).unwrap_err();
        assert!(error.detail.contains("range 1 "), "{error}");
        assert!(list.check((u64::MAX, 16), (0, 108)).is_err());
    }

    fn chosen(list: &RangeList, slices_max: u32) -> VectorIo {
        let has = Capabilities { slices_max, ..MemFabric::new().capabilities() };
        list.explain(&has, &VectorCosts::default()).chosen
    }

    #[test]
    fn small_pieces_are_staged_and_large_ones_gathered() {
        let adjacent = |bytes: u32| RangeList::strided(16, bytes, 8192, bytes.into()).unwrap();
        assert_eq!(chosen(&adjacent(32), 16), VectorIo::Stage);
        assert_eq!(chosen(&adjacent(4096), 16), VectorIo::Gather);
        // Nothing to merge: a copy and a list gain nothing.
        let apart = RangeList::strided(16, 4096, 8192, 8192).unwrap();
        assert_eq!(chosen(&apart, 16), VectorIo::Gather);
        let plan = apart.explain(&MemFabric::new().capabilities(), &VectorCosts::default());
        assert_eq!(plan.ways.map(|(requests, _)| requests), [16, 16, 16]);
        assert!(plan.to_string().starts_with("gather: 16 ranges, 65536 B; doorbell 16 requests"));
    }
}
