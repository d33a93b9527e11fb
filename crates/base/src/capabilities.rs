//! The capabilities and guarantees of a fabric, as data. A machine or channel states its requirements; what
//! is missing is refused by name and never emulated silently.

/// The accesses against which a remote atomic is atomic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum AtomicScope {
    /// No remote atomics.
    None,
    /// Only against remote atomics through the same adapter (`IBV_ATOMIC_HCA`): the processor must not
    /// write such a word.
    Adapter,
    /// Against every access of processors and adapters to that memory (`IBV_ATOMIC_GLOB`).
    System,
}

/// Which words never tear: aligned ones of 8 bytes, with all bytes from one slice.
///
/// Regions with `Access::RELAXED_ORDERING` guarantee none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum WordScope {
    /// None: a word may be seen with some of its bytes old and others new.
    None,
    /// Words at the target of a WRITE that begins and ends at multiples of 8. Also words at the source of a
    /// READ that begins and ends at multiples of 8 on both sides.
    Aligned,
    /// Words at the target of a WRITE that begins and ends anywhere; for READs as `Aligned`.
    Any,
}

/// How far a FLUSH makes bytes visible or durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum FlushScope {
    /// No FLUSH.
    None,
    /// Until every processor and adapter of the target sees them ("global visibility").
    Visible,
    /// Until they survive the loss of power.
    Persistent,
}

/// What happens to a SEND whose target has posted no receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum BackPressure {
    /// `post` stops before it and reports that; nothing is lost and the caller posts it again later.
    AtPost,
    /// The fabric keeps it and retries; it completes late, or with `ReceiverNotReady`.
    Retried,
    /// It ends its link: it completes with `ReceiverNotReady`, and later requests are flushed. Senders must
    /// know that a receive is posted.
    EndsLink,
}

/// Limits and guarantees of a fabric.
///
/// Words of one request have no order among each other except by `byte_order`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// One-sided WRITE.
    pub write: bool,
    /// One-sided READ.
    pub read: bool,
    /// FETCH_ADD and COMPARE_SWAP, and the accesses against which they are atomic.
    pub atomics: AtomicScope,
    /// SWAP and the masked forms of FETCH_ADD and COMPARE_SWAP.
    pub extended_atomics: bool,
    /// ATOMIC WRITE.
    pub atomic_write: bool,
    /// FLUSH, and how far it can reach. `Persistent` only for regions in persistent memory.
    pub flush: FlushScope,
    /// Memory that the caller brings can be registered (`Fabric::register_memory`).
    pub own_memory: bool,
    /// Data is encrypted and authenticated. If false, data packets are plaintext, however the exchange of
    /// keys is protected.
    pub protected: bool,
    /// SEND and RECEIVE.
    pub send: bool,
    /// WRITE and SEND with 32 bits of immediate data.
    pub immediate: bool,
    /// Several links may share one receive queue.
    pub shared_receive_queue: bool,
    /// Requests of one link take effect, and messages arrive, in the order of posting.
    pub message_order: bool,
    /// The bytes of one WRITE land in rising address order and once, over a whole gather list and for
    /// inline bytes too. A reader whose acquire load sees an aligned word of the WRITE (or a byte of it)
    /// sees by later loads every byte of it before that word, and its own later stores there are not
    /// overwritten. Nothing is guaranteed about the bytes that a READ or SEND writes.
    pub byte_order: bool,
    /// Which words of a WRITE or READ never tear. InfiniBand guarantees words only for atomics, and has no
    /// query for it: adapters move whole lines, and soft-RoCE copies by words counted from the first or
    /// last byte, which `Aligned` allows. iWARP's bytes come as segments of a stream that end anywhere.
    pub words: WordScope,
    /// A completed WRITE is visible to every later access at the target.
    pub completion_means_placed: bool,
    /// The target's processor executes nothing for one-sided requests.
    pub one_sided: bool,
    /// `Port::reach` gives the regions of every peer that READ allows: loads there see stores of the owner's
    /// processor, and WRITEs of its other peers, as another thread of the owner would.
    pub loads: bool,
    /// A port can block its caller until an arrival.
    pub sleep: bool,
    /// How a SEND without a receive behaves.
    pub receiver_not_ready: BackPressure,
    /// Maximum bytes copied out of the request itself (`Source::Inline`).
    pub inline_bytes_max: u32,
    /// Maximum bytes of one SEND.
    pub send_bytes_max: u32,
    /// Maximum bytes of one WRITE or READ.
    pub transfer_bytes_max: u64,
    /// Maximum slices of a gather or scatter list.
    pub slices_max: u32,
    /// Maximum work requests of a link that are posted and not yet completed.
    pub outstanding_max: u32,
    /// Maximum links of a port.
    pub links_max: u32,
    /// Maximum bytes of one region.
    pub region_bytes_max: u64,
    /// Regions that wrap around (`RegionKind::Mirrored`).
    pub mirrored_regions: bool,
    /// Maximum bytes of all regions at the adapter (`RegionKind::Device`) that one fabric has at a time;
    /// zero for none.
    pub device_bytes_max: u64,
    /// A word that its owner stores at the adapter never tears. If false, a peer may see the new low half
    /// with the old high one, while the owner sees whole words of peers' stores.
    pub device_words: bool,
}

/// Requirements on a fabric. Start from [`Requirements::NOTHING`] and switch on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requirements {
    /// One-sided WRITE.
    pub write: bool,
    /// One-sided READ.
    pub read: bool,
    /// Remote atomics at least this strong.
    pub atomics: AtomicScope,
    /// SWAP and masked atomics.
    pub extended_atomics: bool,
    /// ATOMIC WRITE.
    pub atomic_write: bool,
    /// FLUSH at least this far.
    pub flush: FlushScope,
    /// Registration of memory that the caller brings.
    pub own_memory: bool,
    /// Encrypted and authenticated data.
    pub protected: bool,
    /// SEND and RECEIVE.
    pub send: bool,
    /// Immediate data.
    pub immediate: bool,
    /// Shared receive queues.
    pub shared_receive_queue: bool,
    /// Order between requests of one link.
    pub message_order: bool,
    /// Rising order of bytes within one WRITE.
    pub byte_order: bool,
    /// Words that are never torn, at least these.
    pub words: WordScope,
    /// No WRITE lands after one that was posted after its completion: `message_order`, or
    /// `completion_means_placed`.
    pub ordered_or_placed: bool,
    /// Blocking until an arrival.
    pub sleep: bool,
    /// Bytes of one SEND, at least.
    pub send_bytes: u32,
    /// Bytes copied out of a request itself, at least.
    pub inline_bytes: u32,
    /// Slices of a gather or scatter list, at least.
    pub slices: u32,
    /// Bytes of one WRITE or READ, at least.
    pub transfer_bytes: u64,
    /// Regions that wrap around.
    pub mirrored_regions: bool,
    /// Bytes of regions at the adapter, at least.
    pub device_bytes: u64,
    /// Words that their owner stores at the adapter never tear.
    pub device_words: bool,
}

/// The first missing capability; users grep for its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing(pub &'static str);

impl Requirements {
    /// No requirements.
    pub const NOTHING: Self = Self {
        write: false,
        read: false,
        atomics: AtomicScope::None,
        extended_atomics: false,
        atomic_write: false,
        flush: FlushScope::None,
        own_memory: false,
        protected: false,
        send: false,
        immediate: false,
        shared_receive_queue: false,
        message_order: false,
        byte_order: false,
        words: WordScope::None,
        ordered_or_placed: false,
        sleep: false,
        send_bytes: 0,
        inline_bytes: 0,
        slices: 0,
        transfer_bytes: 0,
        mirrored_regions: false,
        device_bytes: 0,
        device_words: false,
    };

    /// The required and the available amount of a capability that [`check`](Self::check) named, if it is a
    /// number.
    pub fn amounts(&self, missing: Missing, has: &Capabilities) -> Option<(u64, u64)> {
        let pair = |needed: u32, has: u32| Some((u64::from(needed), u64::from(has)));
        match missing.0 {
            "send_bytes_max" => pair(self.send_bytes, has.send_bytes_max),
            "inline_bytes_max" => pair(self.inline_bytes, has.inline_bytes_max),
            "slices_max" => pair(self.slices, has.slices_max),
            "transfer_bytes_max" => Some((self.transfer_bytes, has.transfer_bytes_max)),
            "device_bytes_max" => Some((self.device_bytes, has.device_bytes_max)),
            _ => None,
        }
    }

    /// Whether `has` suffices; otherwise the first capability that is missing.
    pub fn check(&self, has: &Capabilities) -> Result<(), Missing> {
        let table = [
            (self.write && !has.write, "write"),
            (self.read && !has.read, "read"),
            (self.atomics > has.atomics, "atomics"),
            (self.extended_atomics && !has.extended_atomics, "extended_atomics"),
            (self.atomic_write && !has.atomic_write, "atomic_write"),
            (self.flush > has.flush, "flush"),
            (self.own_memory && !has.own_memory, "own_memory"),
            (self.protected && !has.protected, "protected"),
            (self.send && !has.send, "send"),
            (self.immediate && !has.immediate, "immediate"),
            (self.shared_receive_queue && !has.shared_receive_queue, "shared_receive_queue"),
            (self.message_order && !has.message_order, "message_order"),
            (self.byte_order && !has.byte_order, "byte_order"),
            (self.words > has.words, "words"),
            (
                self.ordered_or_placed && !(has.message_order || has.completion_means_placed),
                "message_order",
            ),
            (self.sleep && !has.sleep, "sleep"),
            (self.send_bytes > has.send_bytes_max, "send_bytes_max"),
            (self.inline_bytes > has.inline_bytes_max, "inline_bytes_max"),
            (self.slices > has.slices_max, "slices_max"),
            (self.transfer_bytes > has.transfer_bytes_max, "transfer_bytes_max"),
            (self.mirrored_regions && !has.mirrored_regions, "mirrored_regions"),
            (self.device_bytes > has.device_bytes_max, "device_bytes_max"),
            (self.device_words && !has.device_words, "device_words"),
        ];
        match table.into_iter().find(|(lacking, _)| *lacking) {
            Some((_, name)) => Err(Missing(name)),
            None => Ok(()),
        }
    }
}
