//! Records of a log as they are stored: one record, several, a cut of the lanes, or nothing.

use super::error::LogError;
use super::layout::GRANULE;
use farside::ErrorCode;
use farside::onesided::{Buffer, MemoryClient, VectorIo};
use farside::record::{PlaceState, RECORD_BYTES_MAX, RecordHeader};
use std::ops::Range;

/// One record.
pub(super) const RECORD: u8 = 1;
/// Several records: their number and lengths, 4 bytes each, then their bytes.
pub(super) const GROUP: u8 = 2;
/// How far each lane is part of the log: two words a lane.
pub(super) const CUT: u8 = 3;
/// Nothing, for as many granules as the header has bytes. Only its first word is stored.
pub(super) const VOID: u8 = 4;
/// As `VOID`, of a length that is being decided.
pub(super) const CLOSING: u8 = 5;

/// Returns the first word of nothing.
pub(super) fn void_word(seed: u64, position: u64, kind: u8, granules: u64) -> u64 {
    let bytes = granules as u32;
    let header = RecordHeader { kind, bytes, sequence: position, counter: 0, address: 0 };
    first_word(&header.encode(seed, []))
}

/// Decodes a first word.
pub(super) fn place(seed: u64, position: u64, word: u64) -> PlaceState {
    let Some((kind, bytes)) = RecordHeader::first_word(word) else {
        return if word == 0 { PlaceState::Open } else { PlaceState::Other };
    };
    let is_void = || word == void_word(seed, position, kind, bytes.into());
    match kind {
        RECORD | GROUP | CUT => PlaceState::Record(RecordHeader::footprint(bytes.into())),
        VOID if bytes > 0 && is_void() => PlaceState::Void(u64::from(bytes) * GRANULE),
        CLOSING if is_void() => PlaceState::Closing,
        _ => PlaceState::Other,
    }
}

/// Returns the first word of a header.
pub(super) fn first_word(header: &[u8; 32]) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| header[byte]))
}

/// Decodes the record of a position from the bytes there; `None` if it is none, or not whole.
pub(super) fn decode(seed: u64, position: u64, bytes: &[u8]) -> Option<(RecordHeader, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<32>()?;
    let (_, length) = RecordHeader::first_word(first_word(header))?;
    let payload = rest.get(..length as usize)?;
    let header = RecordHeader::decode(seed, header, payload)?;
    (header.sequence == position).then_some((header, payload))
}

/// Returns where the records of a group are in its payload; `None` if the group is malformed.
pub(super) fn group(payload: &[u8]) -> Option<Vec<Range<usize>>> {
    let word = |at: usize| {
        let bytes = payload.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let count = word(0)?;
    let mut at = count.checked_mul(4)?.checked_add(4)?;
    if at > payload.len() {
        return None;
    }
    let mut ranges = Vec::with_capacity(count);
    for record in 0..count {
        let end = at.checked_add(word(4 + 4 * record)?)?;
        ranges.push(at..end);
        at = end;
    }
    (at == payload.len()).then_some(ranges)
}

/// Ranges of a program's buffer, as the records of a batch.
#[derive(Clone, Copy)]
pub(super) struct BatchTable<'a> {
    pub(super) buffer: &'a Buffer,
    /// Offset and length of each record.
    pub(super) records: &'a [(u64, u32)],
    pub(super) way: VectorIo,
}

/// A record on its way to a log, in registered memory.
pub(super) struct RecordFrame {
    pub(super) buffer: Buffer,
    kind: u8,
    /// Bytes of the payload.
    bytes: u32,
    /// Those of them that the buffer has; a table has the others.
    pub(super) own_bytes: u32,
    /// The payload once more, for checksums.
    payload: Vec<u8>,
    /// A request that did not end may still read the buffer.
    pub(super) in_flight: bool,
}

impl RecordFrame {
    pub(super) fn new(client: &MemoryClient) -> Result<Self, LogError> {
        let buffer = client.register(4096)?;
        Ok(Self {
            buffer,
            kind: RECORD,
            bytes: 0,
            own_bytes: 0,
            payload: Vec::new(),
            in_flight: false,
        })
    }

    /// Makes it one record, or a cut.
    pub(super) fn fill(
        &mut self,
        client: &MemoryClient,
        kind: u8,
        bytes: &[u8],
    ) -> Result<(), LogError> {
        self.begin(kind);
        self.payload.extend_from_slice(bytes);
        self.finish(client, None)
    }

    /// Makes it a batch of records.
    pub(super) fn fill_batch(
        &mut self,
        client: &MemoryClient,
        records: &[&[u8]],
    ) -> Result<(), LogError> {
        self.begin(GROUP);
        self.directory(records.iter().map(|record| record.len()));
        records.iter().for_each(|record| self.payload.extend_from_slice(record));
        self.finish(client, None)
    }

    /// Makes it a batch of records that are in a table.
    pub(super) fn fill_table(
        &mut self,
        client: &MemoryClient,
        table: &BatchTable<'_>,
    ) -> Result<(), LogError> {
        self.begin(GROUP);
        self.directory(table.records.iter().map(|(_, bytes)| *bytes as usize));
        self.finish(client, Some(table))
    }

    fn begin(&mut self, kind: u8) {
        self.kind = kind;
        self.payload.clear();
    }

    fn directory(&mut self, lengths: impl ExactSizeIterator<Item = usize>) {
        self.payload.extend((lengths.len() as u32).to_le_bytes());
        // Longer ones are refused by their sum.
        lengths.for_each(|bytes| self.payload.extend((bytes as u32).to_le_bytes()));
    }

    fn finish(
        &mut self,
        client: &MemoryClient,
        table: Option<&BatchTable<'_>>,
    ) -> Result<(), LogError> {
        let own = self.payload.len();
        let records = table.map_or(&[][..], |table| table.records);
        let bytes = own as u64 + records.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
        if bytes > RECORD_BYTES_MAX as u64 {
            return Err(LogError::TooLarge(bytes, RECORD_BYTES_MAX as u64));
        }
        (self.bytes, self.own_bytes) = (bytes as u32, own as u32);
        let needs = own as u64 + 64;
        if (self.buffer.len() as u64) < needs || self.in_flight {
            self.buffer = client.register(needs.next_power_of_two().max(4096))?;
            self.in_flight = false;
        }
        self.buffer.write(GRANULE, &self.payload)?;
        if let Some(BatchTable { buffer, records, .. }) = table {
            self.payload.resize(self.bytes as usize, 0);
            let mut at = own;
            for (offset, bytes) in *records {
                let end = at + *bytes as usize;
                buffer.read(*offset, &mut self.payload[at..end])?;
                at = end;
            }
        }
        Ok(())
    }

    /// Returns the bytes that it takes in a log.
    pub(super) fn footprint(&self) -> u64 {
        RecordHeader::footprint(self.bytes.into())
    }

    /// Writes its header for a position; returns the first word.
    pub(super) fn seal(
        &self,
        seed: u64,
        position: u64,
        (counter, address): (u64, u64),
    ) -> Result<u64, LogError> {
        let Self { kind, bytes, .. } = *self;
        let header = RecordHeader { kind, bytes, sequence: position, counter, address };
        let header = header.encode(seed, [&self.payload[..]]);
        self.buffer.write(0, &header)?;
        Ok(first_word(&header))
    }
}

/// The error of a deadline that has passed.
pub(super) fn timed_out() -> LogError {
    LogError::Memory(ErrorCode::TimedOut.into())
}
