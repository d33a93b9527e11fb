//! What a fabric can do and what it promises, as data. A machine or channel states what it needs;
//! what is missing is refused by name and never emulated in silence.

/// Against whom a remote atomic is atomic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum AtomicScope {
    /// No remote atomics.
    None,
    /// Only against remote atomics through the same adapter (`IBV_ATOMIC_HCA`): the processor must
    /// not write such a word.
    Adapter,
    /// Against every access of processors and adapters to that memory (`IBV_ATOMIC_GLOB`).
    System,
}

/// Which words change at once: aligned ones of 8 bytes, all of whose bytes come from one slice.
///
/// Regions with `Access::RELAXED_ORDERING` keep none whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum WordScope {
    /// None: a word may be seen with some of its bytes old and others new.
    None,
    /// Those at the target of a WRITE that begins and ends at multiples of 8, and those at the source
    /// of a READ that begins and ends at multiples of 8 on both sides.
    Aligned,
    /// Those at the target of a WRITE that begins and ends anywhere; of READs as `Aligned`.
    Any,
}

/// How far a FLUSH reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum FlushScope {
    /// No FLUSH.
    None,
    /// To where every processor and adapter of the target sees it ("global visibility").
    Visible,
    /// To where it survives the loss of power.
    Persistent,
}

/// What happens to a SEND whose target has posted no receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum BackPressure {
    /// `post` stops before it and says so; nothing is lost and the caller posts it again later.
    AtPost,
    /// The fabric holds it and tries again; it completes late, or with `ReceiverNotReady`.
    Retried,
    /// It ends its link: it completes with `ReceiverNotReady`, and what follows is flushed. Whoever
    /// sends must know that a receive is there.
    EndsLink,
}

/// Sizes and guarantees of a fabric.
///
/// Words of one request keep no order among each other but for `byte_order`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// One-sided WRITE.
    pub write: bool,
    /// One-sided READ.
    pub read: bool,
    /// FETCH_ADD and COMPARE_SWAP, and against whom they are atomic.
    pub atomics: AtomicScope,
    /// SWAP and the masked forms of FETCH_ADD and COMPARE_SWAP.
    pub extended_atomics: bool,
    /// ATOMIC WRITE.
    pub atomic_write: bool,
    /// FLUSH, and how far it can reach. `Persistent` is of regions whose memory can keep it only.
    pub flush: FlushScope,
    /// Memory that the caller brings can be registered (`Fabric::register_memory`).
    pub own_memory: bool,
    /// What travels is encrypted and authenticated, data and all. Where this is false, data packets
    /// are plaintext, whatever protects the hand-over of keys.
    pub protected: bool,
    /// SEND and RECEIVE.
    pub send: bool,
    /// WRITE and SEND with 32 bits of immediate data.
    pub immediate: bool,
    /// Several links may share one receive queue.
    pub shared_receive_queue: bool,
    /// Requests of one link take effect, and messages arrive, in the order of posting.
    pub message_order: bool,
    /// The bytes of one WRITE land in rising address order and once, over a whole gather list and with
    /// inline bytes too: whoever sees, by an acquire load, an aligned word of the WRITE (or a byte of
    /// it) sees by later loads every byte of it before that word, and what he stores there stays.
    /// Nothing is said of the bytes that a READ or SEND puts down.
    pub byte_order: bool,
    /// Which words of a WRITE or READ are never torn. InfiniBand promises nothing of words but by
    /// atomics, and no query tells: adapters move whole lines, and soft-RoCE copies by words that it
    /// counts from the first or last byte, which `Aligned` allows. iWARP's bytes come as segments of a
    /// stream that end anywhere.
    pub words: WordScope,
    /// A completed WRITE is visible to every later access at the target.
    pub completion_means_placed: bool,
    /// The target's processor executes nothing for one-sided requests.
    pub one_sided: bool,
    /// A port can put its caller to sleep until something arrives.
    pub sleep: bool,
    /// How a SEND without a receive behaves.
    pub receiver_not_ready: BackPressure,
    /// Most bytes copied out of the request itself (`Source::Inline`).
    pub inline_bytes_max: u32,
    /// Most bytes of one SEND.
    pub send_bytes_max: u32,
    /// Most bytes of one WRITE or READ.
    pub transfer_bytes_max: u64,
    /// Most slices of a gather or scatter list.
    pub slices_max: u32,
    /// Most work requests of a link that are posted and not yet completed.
    pub outstanding_max: u32,
    /// Most links of a port.
    pub links_max: u32,
    /// Most bytes of one region.
    pub region_bytes_max: u64,
    /// Regions whose end joins their beginning (`RegionKind::Mirrored`).
    pub mirrored_regions: bool,
    /// Most bytes of all regions at the adapter (`RegionKind::Device`) that one fabric has at a
    /// time; zero for none.
    pub device_bytes_max: u64,
    /// A word that its owner stores at the adapter is never seen in halves. Where this is false, a
    /// peer may see the new low half with the old high one, and the owner has whole words of what
    /// peers store.
    pub device_words: bool,
}

/// What somebody needs of a fabric. Start from [`Requirements::NOTHING`] and switch on.
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
    /// No WRITE lands upon one that was posted after its completion: `message_order`, or
    /// `completion_means_placed`.
    pub ordered_or_placed: bool,
    /// Sleep until something arrives.
    pub sleep: bool,
    /// Bytes of one SEND, at least.
    pub send_bytes: u32,
    /// Bytes copied out of a request itself, at least.
    pub inline_bytes: u32,
    /// Slices of a gather or scatter list, at least.
    pub slices: u32,
    /// Bytes of one WRITE or READ, at least.
    pub transfer_bytes: u64,
    /// Regions whose end joins their beginning.
    pub mirrored_regions: bool,
    /// Bytes of regions at the adapter, at least.
    pub device_bytes: u64,
    /// Words that their owner stores at the adapter are never seen in halves.
    pub device_words: bool,
}

/// The first thing a fabric lacks; its name is what a user greps for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing(pub &'static str);

impl Requirements {
    /// Needs nothing.
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

    /// What is needed and what there is of a capability that [`check`](Self::check) named, where that
    /// is a number.
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
