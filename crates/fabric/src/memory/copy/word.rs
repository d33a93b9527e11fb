//! The units of a copy, and how each side of it loads and stores them.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | an [`ArenaMemory`] side | load and store by [`Word`]'s shared accesses | always, also while others do |
//! | a [`Private`] side | load and store as the compiler likes | while its caller has it borrowed |

/// Memory on one side of a copy.
///
/// # Safety
/// `load` and `store` touch exactly the bytes of `W` at the address, at any alignment.
pub(crate) unsafe trait CopySide {
    /// # Safety
    /// The address is readable for a `W`.
    unsafe fn load<W: Word>(from: *const u8) -> W;

    /// # Safety
    /// The address is writable for a `W`.
    unsafe fn store<W: Word>(to: *mut u8, word: W);
}

/// Memory of an arena: only [`Word`]'s shared accesses.
pub(crate) struct ArenaMemory;

/// Memory that the caller borrowed for this copy: the compiler may see through these, so that a
/// short read ends in a register.
pub(crate) struct Private;

// SAFETY: `Word` promises the same.
unsafe impl CopySide for ArenaMemory {
    #[inline(always)]
    unsafe fn load<W: Word>(from: *const u8) -> W {
        // SAFETY: the caller's.
        unsafe { W::load_shared(from) }
    }

    #[inline(always)]
    unsafe fn store<W: Word>(to: *mut u8, word: W) {
        // SAFETY: the caller's.
        unsafe { word.store_shared(to) }
    }
}

// SAFETY: an unaligned access touches just its bytes.
unsafe impl CopySide for Private {
    #[inline(always)]
    unsafe fn load<W: Word>(from: *const u8) -> W {
        // SAFETY: the caller's; no other thread changes what the caller borrowed.
        unsafe { from.cast::<W>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store<W: Word>(to: *mut u8, word: W) {
        // SAFETY: the caller's; no other thread reads what the caller borrowed exclusively.
        unsafe { to.cast::<W>().write_unaligned(word) }
    }
}

/// The unit of one instruction: 1, 2, 4, 8 or 16 bytes, of which any value is valid.
///
/// # Safety
/// The shared accesses touch exactly `size_of::<Self>()` bytes, at any alignment, and are no
/// accesses of the abstract machine that could race: assembly or relaxed atomics. An aligned one of
/// 8 bytes or fewer is not torn.
pub(crate) unsafe trait Word: Copy {
    /// # Safety
    /// The address is readable for these bytes.
    unsafe fn load_shared(from: *const u8) -> Self;

    /// # Safety
    /// The address is writable for these bytes.
    unsafe fn store_shared(self, to: *mut u8);
}

/// Moves `bytes` bytes as two words, of which the first starts at the start and the second
/// ends at the end.
///
/// # Safety
/// Both sides are valid for `bytes`, of which there are one to two words.
#[inline(always)]
pub(super) unsafe fn copy_twice<F: CopySide, T: CopySide, W: Word>(
    from: *const u8,
    to: *mut u8,
    bytes: usize,
) {
    let last = bytes - size_of::<W>();
    // SAFETY: the caller's; `last` and a word more are the `bytes` bytes.
    unsafe {
        let (first, second) = (F::load::<W>(from), F::load::<W>(from.add(last)));
        T::store(to, first);
        T::store(to.add(last), second);
    }
}
