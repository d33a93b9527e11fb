//! Every bound of remote memory calls, with its reason.

/// Bytes of stack that a frame has: what clang reserves at most for eBPF.
pub const FRAME_BYTES: u32 = 512;
/// Most frames of a call, its own counted: what eBPF has everywhere.
pub const FRAMES_MAX: usize = 8;

/// Most that straight code weighs between two places where a call can pause, in sums: some hundred nanoseconds
/// of them, as a slice of the executor.
pub(crate) const STRETCH_WEIGHT: u32 = 256;
/// What a call of a helper weighs there. Sixteen words of the host's memory that miss every cache take two to five
/// microseconds; searches that load the fields of a record or a bucket shall have no such place within.
pub(crate) const HELPER_WEIGHT: u32 = 16;
/// What a division or an atomic change of memory weighs: some nanoseconds, interpreted or not.
pub(crate) const SLOW_WEIGHT: u32 = 8;
/// What a call of a helper weighs in a program that does not pause at all: as many sums as take as long as a
/// word that misses every cache, interpreted.
pub(crate) const UNPAUSED_HELPER_WEIGHT: u64 = 64;

/// Bounds on what is loaded and verified. An executor may lower them for a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most bytes of an ELF file: an attacker's file is not read further.
    pub file_bytes_max: usize,
    /// Most sections or symbols of an ELF file.
    pub entries_max: usize,
    /// Most programs of one file.
    pub programs_max: usize,
    /// Most slots of one program with all functions that it calls.
    pub slots_max: usize,
    /// Most bytes of constant data of one program.
    pub constants_bytes_max: usize,
    /// Most bytes of variables of one program, each of own and shared ones.
    pub variables_bytes_max: usize,
    /// Most states that a program declares.
    pub states_max: usize,
    /// Most bytes that one declared state may take when it is full, as
    /// [`StateDeclaration::bytes`](crate::program::StateDeclaration::bytes) counts them.
    pub state_bytes_max: u64,
    /// Most bytes of parameters of a call.
    pub context_bytes_max: usize,
    /// Most bytes of result that a call may emit.
    pub output_bytes_max: usize,
    /// Maximum number of instructions that the verifier analyses while it explores every path; once more if loop
    /// summarization gave too high a cost, and once more before a program is refused, with the whole limit or with the
    /// registers widened that loops without a bound change.
    pub walked_max: u32,
    /// Maximum number of further instructions analysed in search of a fixpoint.
    pub widened_max: u32,
    /// Most instructions of a program whose jumps are not counted, so that it cannot pause: it ends within
    /// some microseconds anyway, interpreted too, which is what a slice of the executor takes. A call of a
    /// helper, also one for a single word, counts as 64 there, a division or an atomic change as 8.
    pub unpaused_max: u64,
    /// The budget of a call, proven or metered.
    pub budget: Budget,
}

/// What one call may use up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Budget {
    /// Instructions.
    pub instructions: u64,
    /// Calls of helpers.
    pub helper_calls: u64,
    /// Bytes that helpers move or hash.
    pub bytes: u64,
}

impl Limits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        file_bytes_max: 1 << 20,
        entries_max: 4_096,
        programs_max: 64,
        slots_max: 8_192,
        constants_bytes_max: 64 * 1024,
        variables_bytes_max: 64 * 1024,
        states_max: 32,
        state_bytes_max: 64 << 20,
        context_bytes_max: 4_096,
        output_bytes_max: 64 * 1024,
        walked_max: 100_000,
        widened_max: 400_000,
        unpaused_max: 4_096,
        budget: Budget { instructions: 1 << 20, helper_calls: 1 << 16, bytes: 64 << 20 },
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
