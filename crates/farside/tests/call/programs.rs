//! Assembler programs for tests: they need no compiler.

/// Encodes words as parameters.
pub(crate) fn parameters(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// 003 Figure 1: parameters are the offset of the head and the key; nodes are key, value, next.
pub(crate) const LIST_SEARCH: &str = "
.program list_search
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
again:
    if r6 == 0 goto absent
    r1 = 0
    r2 = r6
    r3 = r10
    r3 += -24
    r4 = 24
    call read
    if r0 != 0 goto denied
    r1 = *(u64 *)(r10 - 24)
    if r1 == r7 goto found
    r6 = *(u64 *)(r10 - 8)
    goto again
found:
    r0 = *(u64 *)(r10 - 16)
    exit
absent:
    r0 = 0
    exit
denied:
    // A load of the same word ends the call and says why.
    r1 = 0
    r2 = r6
    call load_u64
    exit
";

/// Each accesses region 0 at the first parameter, 64; the second is 3.
pub(crate) const HELPERS: &[(&str, &str)] = &[
    ("load_u64", "r2 = *(u64 *)(r1 + 0)\nr1 = 0\ncall load_u64\nexit"),
    ("load_u32", "r2 = *(u64 *)(r1 + 0)\nr2 += 1\nr1 = 0\ncall load_u32\nexit"),
    ("store_u64", "r2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 8)\nr1 = 0\ncall store_u64\nexit"),
    ("store_u32", "r2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 8)\nr1 = 0\ncall store_u32\nexit"),
    ("fetch_add", "r2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 8)\nr1 = 0\ncall fetch_add\nexit"),
    (
        "compare_swap",
        "r6 = *(u64 *)(r1 + 0)\nr1 = 0\nr2 = r6\ncall load_u64\nr1 = 0\nr2 = r6\nr3 = r0\nr4 = 77\n\
         call compare_swap\nr1 = 0\nr2 = r6\ncall load_u64\nexit",
    ),
    (
        "write",
        "r2 = *(u64 *)(r1 + 0)\nr3 = 5\n*(u64 *)(r10 - 8) = r3\nr1 = 0\nr3 = r10\nr3 += -8\nr4 = 8\n\
         call write\nexit",
    ),
    (
        "vectors",
        // Reads two pieces, writes them back swapped; returns the first word.
        "r6 = *(u64 *)(r1 + 0)\n\
         *(u64 *)(r10 - 32) = r6\nr2 = 8\n*(u64 *)(r10 - 24) = r2\n\
         r3 = r6\nr3 += 100\n*(u64 *)(r10 - 16) = r3\n*(u64 *)(r10 - 8) = r2\n\
         r1 = 0\n*(u64 *)(r10 - 48) = r1\n*(u64 *)(r10 - 40) = r1\n\
         r2 = r10\nr2 += -32\nr3 = 2\nr4 = r10\nr4 += -48\nr5 = 16\ncall read_vector\n\
         if r0 != 0 goto out\n\
         r2 = *(u64 *)(r10 - 48)\nr3 = *(u64 *)(r10 - 40)\n*(u64 *)(r10 - 48) = r3\n*(u64 *)(r10 - 40) = r2\n\
         r1 = 0\nr2 = r10\nr2 += -32\nr3 = 2\nr4 = r10\nr4 += -48\nr5 = 16\ncall write_vector\n\
         if r0 != 0 goto out\n\
         r1 = 0\nr2 = r6\ncall load_u64\nout:\nexit",
    ),
    ("crc32c_of", "r2 = *(u64 *)(r1 + 0)\nr1 = 0\nr3 = 150000\nr4 = 0\ncall crc32c_of\nexit"),
    ("xxhash64_of", "r2 = *(u64 *)(r1 + 0)\nr1 = 0\nr3 = 150000\nr4 = 9\ncall xxhash64_of\nexit"),
    ("denied", "r1 = 0\nr2 = 0x7fffffff\nr3 = r10\nr3 += -8\nr4 = 8\ncall read\nexit"),
    ("foreign", "r1 = 7\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 8\ncall read\nexit"),
];

/// Returns their expected results.
pub(crate) fn expected(name: &str) -> u64 {
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let hashed = &bytes[64..64 + 150_000];
    match name {
        "load_u64" | "fetch_add" => word(64),
        "load_u32" => word(65) & 0xffff_ffff,
        "compare_swap" => 77,
        "vectors" => word(164),
        "crc32c_of" => u64::from(farside::call::rmc::helpers::crc32c(hashed, 0)),
        "xxhash64_of" => farside::call::rmc::helpers::xxhash64(hashed, 9),
        "denied" | "foreign" => -1_i64 as u64,
        _ => 0,
    }
}

pub(crate) const COUNT_OWN: &str = "
.program count_own
.state hits counters 0 8 4 own
    r1 = state 0
    r2 = 3
    r3 = 1
    call counter_add
    exit
";

pub(crate) const COUNT_SHARED: &str = "
.program count_shared
.state hits counters 0 8 4 shared
    r1 = state 0
    r2 = 3
    r3 = 1
    call counter_add
    exit
";

pub(crate) const VARIABLE_OWN: &str = "
.program variable_own
.own 8
    r1 = own 0
    r0 = *(u64 *)(r1 + 0)
    r0 += 1
    *(u64 *)(r1 + 0) = r0
    exit
";

pub(crate) const BIG_STATE: &str = "
.program big_state
.state hits counters 0 8 200 shared
    r0 = 0
    exit
";

/// Waits until the first word of region 0 differs from the first parameter, for at most the second in nanoseconds.
pub(crate) const WAIT_WORD: &str = "
.program wait_word
    r3 = *(u64 *)(r1 + 0)
    r4 = *(u64 *)(r1 + 8)
    r1 = 0
    r2 = 0
    call wait_word
    exit
";

/// Takes a lock, counts it in word 1 of region 0, and then waits as [`WAIT_WORD`].
pub(crate) const LOCK_AND_WAIT: &str = "
.program lock_and_wait
.state locks locks 0 0 2 shared
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r1 = state 0
    r2 = 1
    call lock
    if r0 != 0 goto out
    r1 = 0
    r2 = 8
    r3 = 1
    call fetch_add
    r1 = 0
    r2 = 0
    r3 = r6
    r4 = r7
    call wait_word
out:
    exit
";

/// Loops until its budget is exhausted.
pub(crate) const ENDLESS: &str = "
.program endless
again:
    r1 = 0
    r2 = 0
    call load_u64
    if r0 != 12345 goto again
    exit
";

/// Notifies the topic of the first parameter with the second parameter.
pub(crate) const NOTIFY: &str = "
.program notify
    r2 = *(u64 *)(r1 + 8)
    *(u64 *)(r10 - 8) = r2
    r1 = *(u64 *)(r1 + 0)
    r2 = r10
    r2 += -8
    r3 = 8
    call notify
    exit
";

/// Emits this many words.
pub(crate) const EMIT: &str = "
.program emit
    r6 = *(u64 *)(r1 + 0)
    r2 = 0x0102
    *(u64 *)(r10 - 8) = r2
again:
    if r6 == 0 goto out
    r1 = r10
    r1 += -8
    r2 = 8
    call emit
    r6 -= 1
    goto again
out:
    r0 = 0
    exit
";
