//! Requests: what each does, and what it needs.

use super::ranges::RangeList;
use crate::buffer::Buffer;
use crate::{Error, ErrorCode};
use farside_base::{Access, FlushScope, LocalSlice, Operation, RegionToken, RemoteSlice, Source};

/// What a request does at its remote address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Read,
    /// Into the result word.
    ReadWord,
    Write,
    FetchAdd(u64),
    CompareSwap {
        expected: u64,
        new: u64,
    },
    Swap(u64),
    MaskedCompareSwap {
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    },
    MaskedFetchAdd {
        add: u64,
        boundaries: u64,
    },
    AtomicWrite(u64),
    Flush(FlushScope),
}

impl Action {
    /// Whether repeating it could have another effect than one execution.
    pub(super) const fn is_atomic(self) -> bool {
        !matches!(
            self,
            Self::Read | Self::ReadWord | Self::Write | Self::Flush(_) | Self::AtomicWrite(_)
        )
    }

    /// Whether its outcome is the value of a word.
    pub(super) const fn has_value(self) -> bool {
        self.is_atomic() || matches!(self, Self::ReadWord)
    }

    const fn access(self) -> Access {
        match self {
            Self::Read | Self::ReadWord => Access::READ,
            Self::Write | Self::AtomicWrite(_) => Access::WRITE,
            Self::Flush(_) => Access::FLUSH,
            _ => Access::ATOMIC,
        }
    }

    /// Returns the operation of its work request.
    pub(super) fn operation<'a>(
        &self,
        at: RemoteSlice,
        local: &'a [LocalSlice],
        bytes: u64,
    ) -> Operation<'a> {
        let into = local[0];
        match *self {
            Self::Read | Self::ReadWord => Operation::Read { into: local, from: at },
            Self::Write => {
                Operation::Write { source: Source::Gather(local), to: at, immediate: None }
            }
            Self::FetchAdd(add) => Operation::FetchAdd { at, add, into },
            Self::CompareSwap { expected, new } => {
                Operation::CompareSwap { at, expected, new, into }
            }
            Self::Swap(new) => Operation::Swap { at, new, into },
            Self::MaskedCompareSwap { expected, compare_mask, new, swap_mask } => {
                Operation::MaskedCompareSwap { at, expected, compare_mask, new, swap_mask, into }
            }
            Self::MaskedFetchAdd { add, boundaries } => {
                Operation::MaskedFetchAdd { at, add, boundaries, into }
            }
            Self::AtomicWrite(value) => Operation::AtomicWrite { to: at, value },
            Self::Flush(scope) => Operation::Flush { from: at, bytes, scope },
        }
    }
}

/// A request of a caller.
#[derive(Clone, Copy)]
pub(super) struct RequestSpec<'a> {
    pub(super) memory: u32,
    pub(super) action: Action,
    /// The remote bytes.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// The local bytes of a READ or WRITE.
    pub(super) local: Option<(&'a Buffer, u64)>,
    /// The ranges of both, from there on; `bytes` is theirs.
    pub(super) ranges: Option<&'a RangeList>,
}

impl RequestSpec<'_> {
    /// Checks it against what the server lends, so that a wrong request fails alone and not with its connection.
    pub(super) fn check(&self, lent: &RegionToken, bytes_max: u32) -> Result<(), Error> {
        let Self { action, offset, bytes, .. } = *self;
        if bytes == 0 && !matches!(action, Action::Flush(_)) {
            return Err(ErrorCode::ZeroSize.into());
        }
        let largest = self.ranges.map_or(bytes, |ranges| ranges.range_bytes_max().into());
        if largest > u64::from(bytes_max) && self.local.is_some() {
            let text = format!("{largest} B; a request has at most {bytes_max} B");
            return Err(Error::with(ErrorCode::TooLarge, text));
        }
        if let (Some(ranges), Some((buffer, at))) = (self.ranges, self.local) {
            self.check_access(lent)?;
            return ranges.check((at, buffer.len() as u64), (offset, lent.bytes));
        }
        if offset > lent.bytes || bytes > lent.bytes - offset {
            let text = format!("{bytes} B at {offset} of a memory of {} B", lent.bytes);
            return Err(Error::with(ErrorCode::OutOfBounds, text));
        }
        let is_word = action.has_value() || matches!(action, Action::AtomicWrite(_));
        if is_word && !offset.is_multiple_of(8) {
            return Err(Error::with(ErrorCode::Misaligned, format!("a word at {offset}")));
        }
        self.check_access(lent)?;
        match self.local {
            Some((buffer, at)) if at > buffer.len() as u64 || bytes > buffer.len() as u64 - at => {
                let text = format!("{bytes} B at {at} of a buffer of {} B", buffer.len());
                Err(Error::with(ErrorCode::OutOfBounds, text))
            }
            _ => Ok(()),
        }
    }

    fn check_access(&self, lent: &RegionToken) -> Result<(), Error> {
        let action = self.action;
        if !lent.access.allows(action.access()) {
            let text = format!("{action:?} on memory lent for {:?}", lent.access);
            return Err(Error::with(ErrorCode::AccessDenied, text));
        }
        Ok(())
    }
}
