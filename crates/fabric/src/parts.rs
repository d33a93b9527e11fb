//! What a request accesses, by kind, and the checks that need no table, shared so that all fabrics
//! refuse the same requests with the same names.

use crate::Stop;
use farside_base::{
    Access, AtomicScope, Capabilities, CompletionKind, FlushScope, LocalSlice, Operation,
    RemoteSlice, Source,
};

/// An [`Operation`] taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The whole-word name of the operation, for display.
    pub name: &'static str,
    /// The kind of its completion.
    pub kind: CompletionKind,
    /// Local slices it reads (WRITE, SEND) or fills (READ, atomics).
    pub local: &'a [LocalSlice],
    /// Bytes that travel in the request itself.
    pub inline: Option<&'a [u8]>,
    /// The remote slice; a SEND has none.
    pub remote: Option<RemoteSlice>,
    /// The access that it needs at the peer.
    pub access: Access,
    /// Immediate data, which takes a receive at the peer.
    pub immediate: Option<u32>,
    /// SWAP or a masked form.
    pub extended: bool,
    /// The remote bytes, if its local side does not give them.
    pub remote_bytes: u64,
    /// The scope of a FLUSH; `None` for everything else.
    pub flush: FlushScope,
}

impl<'a> Parts<'a> {
    /// Takes `operation` apart.
    pub fn of(operation: &'a Operation<'a>) -> Self {
        match operation {
            Operation::Write { source, to, immediate } => Self {
                immediate: *immediate,
                ..Self::outgoing("write", CompletionKind::Write, source, Some(*to))
            },
            Operation::Send { source, immediate } => Self {
                immediate: *immediate,
                ..Self::outgoing("send", CompletionKind::Send, source, None)
            },
            Operation::Read { into, from } => Self {
                name: "read",
                kind: CompletionKind::Read,
                local: into,
                inline: None,
                remote: Some(*from),
                access: Access::READ,
                ..Self::BARE
            },
            Operation::AtomicWrite { to, .. } => Self {
                name: "atomic_write",
                kind: CompletionKind::AtomicWrite,
                remote: Some(*to),
                access: Access::WRITE,
                remote_bytes: 8,
                ..Self::BARE
            },
            Operation::Flush { from, bytes, scope } => Self {
                name: "flush",
                kind: CompletionKind::Flush,
                remote: Some(*from),
                access: match scope {
                    FlushScope::Persistent => Access::FLUSH_PERSISTENT,
                    FlushScope::Visible | FlushScope::None => Access::FLUSH,
                },
                remote_bytes: *bytes,
                flush: *scope,
                ..Self::BARE
            },
            Operation::FetchAdd { at, into, .. } => Self::atomic("fetch_add", *at, into, false),
            Operation::CompareSwap { at, into, .. } => {
                Self::atomic("compare_swap", *at, into, false)
            }
            Operation::Swap { at, into, .. } => Self::atomic("swap", *at, into, true),
            Operation::MaskedCompareSwap { at, into, .. } => {
                Self::atomic("masked_compare_swap", *at, into, true)
            }
            Operation::MaskedFetchAdd { at, into, .. } => {
                Self::atomic("masked_fetch_add", *at, into, true)
            }
        }
    }

    const BARE: Self = Self {
        name: "",
        kind: CompletionKind::Write,
        local: &[],
        inline: None,
        remote: None,
        access: Access::NONE,
        immediate: None,
        extended: false,
        remote_bytes: 0,
        flush: FlushScope::None,
    };

    fn outgoing(
        name: &'static str,
        kind: CompletionKind,
        source: &Source<'a>,
        remote: Option<RemoteSlice>,
    ) -> Self {
        let (local, inline): (&[LocalSlice], _) = match *source {
            Source::Gather(slices) => (slices, None),
            Source::Inline(bytes) => (&[], Some(bytes)),
        };
        Self {
            name,
            kind,
            local,
            inline,
            remote,
            access: if remote.is_some() { Access::WRITE } else { Access::NONE },
            ..Self::BARE
        }
    }

    fn atomic(name: &'static str, at: RemoteSlice, into: &'a LocalSlice, extended: bool) -> Self {
        Self {
            name,
            kind: CompletionKind::Atomic,
            local: std::slice::from_ref(into),
            remote: Some(at),
            access: Access::ATOMIC,
            extended,
            ..Self::BARE
        }
    }

    /// Returns the bytes that the request moves.
    pub fn bytes(&self) -> u64 {
        let gathered: u64 = self.local.iter().map(|slice| u64::from(slice.bytes)).sum();
        gathered + self.inline.map_or(0, |bytes| bytes.len() as u64)
    }

    /// Returns the bytes at the peer that it touches.
    pub fn reach(&self) -> u64 {
        self.remote_bytes.max(self.bytes())
    }

    /// Returns whether it is about one aligned word at the peer.
    pub fn is_word(&self) -> bool {
        matches!(self.kind, CompletionKind::Atomic | CompletionKind::AtomicWrite)
    }

    /// Returns whether it takes a receive at the peer.
    pub fn takes_receive(&self) -> bool {
        self.kind == CompletionKind::Send || self.immediate.is_some()
    }

    /// Refuses requests that a fabric with these capabilities does not support, whatever its tables
    /// say.
    ///
    /// # Errors
    /// `Stop::Invalid` with the names listed there.
    pub fn check(&self, capabilities: &Capabilities) -> Result<(), Stop> {
        let (send, atomic) =
            (self.kind == CompletionKind::Send, self.kind == CompletionKind::Atomic);
        let lacking = match self.kind {
            CompletionKind::Write if !capabilities.write => Some("lacks write"),
            CompletionKind::Read if !capabilities.read => Some("lacks read"),
            CompletionKind::Send if !capabilities.send => Some("lacks send"),
            CompletionKind::Atomic if capabilities.atomics == AtomicScope::None => {
                Some("lacks atomics")
            }
            _ if self.extended && !capabilities.extended_atomics => Some("lacks extended_atomics"),
            CompletionKind::AtomicWrite if !capabilities.atomic_write => Some("lacks atomic_write"),
            CompletionKind::Flush
                if self.flush > capabilities.flush || self.flush == FlushScope::None =>
            {
                Some("lacks flush")
            }
            _ if self.immediate.is_some() && !capabilities.immediate => Some("lacks immediate"),
            _ => None,
        };
        let bytes = self.bytes();
        let inline = self.inline.map_or(0, <[u8]>::len);
        let wrong_slice = |slice: &LocalSlice| slice.bytes != 8 || !slice.offset.is_multiple_of(8);
        let wrong = if lacking.is_some() {
            lacking
        } else if self.local.len() > capabilities.slices_max as usize {
            Some("too many slices")
        } else if inline > capabilities.inline_bytes_max as usize {
            Some("inline too long")
        } else if send && bytes > u64::from(capabilities.send_bytes_max) {
            Some("send too long")
        } else if !send && bytes > capabilities.transfer_bytes_max {
            Some("transfer too long")
        } else if atomic && self.local.iter().any(wrong_slice) {
            Some("atomic slice")
        } else {
            None
        };
        wrong.map_or(Ok(()), |name| Err(Stop::Invalid(name)))
    }
}
