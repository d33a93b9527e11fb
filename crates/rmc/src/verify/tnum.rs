//! Tristate numbers: what is known of each bit of a number, as Linux's `tnum`.

/// Bits that are known, and those that are not. A bit of `mask` is unknown and zero in `value`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bits {
    pub(super) value: u64,
    pub(super) mask: u64,
}

impl Bits {
    pub(super) const UNKNOWN: Self = Self { value: 0, mask: u64::MAX };

    pub(super) const fn constant(value: u64) -> Self {
        Self { value, mask: 0 }
    }

    /// All numbers from `low` to `high` have the bits above their highest difference in common.
    pub(super) const fn range(low: u64, high: u64) -> Self {
        let differing = 64 - (low ^ high).leading_zeros();
        let mask = if differing == 64 { u64::MAX } else { (1 << differing) - 1 };
        Self { value: low & !mask, mask }
    }

    pub(super) const fn contains(self, other: Self) -> bool {
        other.mask & !self.mask == 0 && (self.value ^ other.value) & !self.mask == 0
    }

    pub(super) const fn join(self, other: Self) -> Self {
        let mask = self.mask | other.mask | (self.value ^ other.value);
        Self { value: self.value & !mask, mask }
    }

    /// The intersection; `None` if it is empty.
    pub(super) const fn meet(self, other: Self) -> Option<Self> {
        if (self.value ^ other.value) & !(self.mask | other.mask) != 0 {
            return None;
        }
        let mask = self.mask & other.mask;
        Some(Self { value: (self.value | other.value) & !mask, mask })
    }

    pub(super) const fn and(self, other: Self) -> Self {
        let value = self.value & other.value;
        let may = (self.value | self.mask) & (other.value | other.mask);
        Self { value, mask: may & !value }
    }

    pub(super) const fn or(self, other: Self) -> Self {
        let value = self.value | other.value;
        Self { value, mask: (self.mask | other.mask) & !value }
    }

    pub(super) const fn xor(self, other: Self) -> Self {
        let mask = self.mask | other.mask;
        Self { value: (self.value ^ other.value) & !mask, mask }
    }

    /// Sums: a carry is unknown where it depends on an unknown bit.
    pub(super) const fn add(self, other: Self) -> Self {
        let least = self.value.wrapping_add(other.value);
        let unknown = self.mask.wrapping_add(other.mask);
        let carries = least.wrapping_add(unknown) ^ least;
        let mask = carries | self.mask | other.mask;
        Self { value: least & !mask, mask }
    }

    pub(super) const fn sub(self, other: Self) -> Self {
        let difference = self.value.wrapping_sub(other.value);
        let greatest = difference.wrapping_add(self.mask);
        let least = difference.wrapping_sub(other.mask);
        let mask = (greatest ^ least) | self.mask | other.mask;
        Self { value: difference & !mask, mask }
    }

    /// Products have at least as many low zeros as their factors together.
    pub(super) const fn mul(self, other: Self) -> Self {
        let zeros = self.zeros() + other.zeros();
        let mask = if zeros >= 64 { 0 } else { u64::MAX << zeros };
        Self { value: 0, mask }
    }

    const fn zeros(self) -> u32 {
        (self.value | self.mask).trailing_zeros()
    }

    pub(super) const fn shift_left(self, by: u32) -> Self {
        Self { value: self.value << by, mask: self.mask << by }
    }

    pub(super) const fn shift_right(self, by: u32) -> Self {
        Self { value: self.value >> by, mask: self.mask >> by }
    }

    pub(super) const fn shift_right_signed(self, by: u32) -> Self {
        let mask = (self.mask as i64 >> by) as u64;
        Self { value: (self.value as i64 >> by) as u64 & !mask, mask }
    }

    /// The lower 32 bits, the rest zero.
    pub(super) const fn low(self) -> Self {
        Self { value: self.value & 0xffff_ffff, mask: self.mask & 0xffff_ffff }
    }
}
