//! Global addresses: which node, which line size, which byte.
//!
//! ```text
//!  63       56 55        46 45    42 41                        0
//! +-----------+------------+--------+---------------------------+
//! | home node | generation | class  |  byte within the memory   |
//! +-----------+------------+--------+---------------------------+
//! ```
//! Node numbers are reused, generations are not: each node that lends memory gets the next generation of
//! its number, so that an address of memory that is gone never names bytes of a later node.
//!
//! The line size is part of the address (class 0 is 64 B, class 10 is 64 KiB), so that no node needs a
//! table of a peer's allocations to split an access into lines. Arithmetic within an allocation stays
//! ordinary addition. A forged class is refused by the home, which has the true one in its tags.

use crate::{Generation, NodeId, NodeSet};
use core::fmt;
use core::str::FromStr;

/// The unit of transfer and ownership in bytes; a power of two from 64 B to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineSize(u8);

impl LineSize {
    /// The smallest class: 64 B.
    pub const MIN: Self = Self(0);
    /// 512 B, the paper's choice (004 §2.2) and the default.
    pub const DEFAULT: Self = Self(3);
    /// The largest class: 64 KiB.
    pub const MAX: Self = Self(10);
    /// The number of classes.
    pub const CLASSES: usize = 11;

    /// The class of lines of `bytes`, which must be a power of two from 64 to 65,536.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= 64 && bytes <= 65_536 {
            Some(Self(bytes.trailing_zeros() as u8 - 6))
        } else {
            None
        }
    }

    /// The class with this number (0 to 10).
    pub const fn from_class(class: u8) -> Option<Self> {
        if class <= Self::MAX.0 { Some(Self(class)) } else { None }
    }

    /// The number of the class, 0 to 10.
    pub const fn class(self) -> u8 {
        self.0
    }

    /// Bytes of a line.
    pub const fn bytes(self) -> usize {
        64 << self.0
    }

    /// The exponent: a line has `1 << log2()` bytes.
    pub const fn log2(self) -> u32 {
        self.0 as u32 + 6
    }

    /// Every class, smallest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::CLASSES as u8).map(Self)
    }
}

impl fmt::Debug for LineSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.bytes())
    }
}

/// Why a number is no global address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AddressError {
    /// The class bits name no line size.
    UnknownLineSize,
    /// The byte does not fit the 42 bits of an offset.
    OffsetTooLarge,
    /// The node number does not fit 8 bits, or its generation 10.
    HomeTooLarge,
}

/// The memory that one node lends while it is a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct MemoryId(u32);

impl MemoryId {
    const NODE_BITS: u32 = 8;

    /// The memory of this generation of a node number; `None` when a part is out of range.
    pub const fn new(node: NodeId, generation: Generation) -> Option<Self> {
        if node.0 >> Self::NODE_BITS != 0 || generation.0 >= Generation::COUNT {
            return None;
        }
        Some(Self((node.0 as u32) << GENERATION_BITS | generation.0 as u32))
    }

    /// The leading bits of its addresses.
    pub const fn to_bits(self) -> u32 {
        self.0
    }

    /// The node that lends it, or lent it.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> GENERATION_BITS) as u16)
    }

    /// The generation among the memories of that node number.
    pub const fn generation(self) -> Generation {
        Generation(self.0 as u16 % Generation::COUNT)
    }
}

impl fmt::Debug for MemoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation() {
            Generation(0) => write!(f, "{}", self.node()),
            generation => write!(f, "{}.{generation}", self.node()),
        }
    }
}

const GENERATION_BITS: u32 = Generation::COUNT.trailing_zeros();

const _: () = assert!(NodeSet::CAPACITY <= 1 << MemoryId::NODE_BITS);

/// One byte of the cluster's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct GlobalAddress(u64);

impl GlobalAddress {
    /// Bits of an offset within a memory: 4 TiB a node.
    pub const OFFSET_BITS: u32 = 42;
    const OFFSET_MASK: u64 = (1 << Self::OFFSET_BITS) - 1;
    const MEMORY_SHIFT: u32 = Self::OFFSET_BITS + 4;

    /// The byte `offset` of the first memory lent under the number `node`, in lines of `line_size`.
    /// [`new_in`](Self::new_in) names a later one.
    ///
    /// # Errors
    /// [`AddressError`]: a part is out of range.
    pub const fn new(node: NodeId, line_size: LineSize, offset: u64) -> Result<Self, AddressError> {
        match MemoryId::new(node, Generation(0)) {
            Some(memory) => Self::new_in(memory, line_size, offset),
            None => Err(AddressError::HomeTooLarge),
        }
    }

    /// The byte `offset` of a memory, in lines of `line_size`.
    ///
    /// # Errors
    /// [`AddressError::OffsetTooLarge`].
    pub const fn new_in(
        memory: MemoryId,
        line_size: LineSize,
        offset: u64,
    ) -> Result<Self, AddressError> {
        if offset > Self::OFFSET_MASK {
            return Err(AddressError::OffsetTooLarge);
        }
        let class = (line_size.0 as u64) << Self::OFFSET_BITS;
        Ok(Self((memory.0 as u64) << Self::MEMORY_SHIFT | class | offset))
    }

    /// Decodes an address from 64 bits that a program stored, for example in a linked structure.
    pub const fn from_bits(bits: u64) -> Result<Self, AddressError> {
        if (bits >> Self::OFFSET_BITS) & 15 > LineSize::MAX.0 as u64 {
            return Err(AddressError::UnknownLineSize);
        }
        Ok(Self(bits))
    }

    /// The 64 bits, to be stored by a program.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The memory that contains this byte.
    pub const fn memory(self) -> MemoryId {
        MemoryId((self.0 >> Self::MEMORY_SHIFT) as u32)
    }

    /// The node whose memory this is.
    pub const fn home(self) -> NodeId {
        self.memory().node()
    }

    /// The generation among the memories of that node number.
    pub const fn generation(self) -> Generation {
        self.memory().generation()
    }

    /// The size of its line.
    pub const fn line_size(self) -> LineSize {
        LineSize(((self.0 >> Self::OFFSET_BITS) & 15) as u8)
    }

    /// The offset within the home's memory.
    pub const fn offset(self) -> u64 {
        self.0 & Self::OFFSET_MASK
    }

    /// The line that contains this byte.
    pub const fn line(self) -> LineAddress {
        LineAddress(self.0 & !((1 << self.line_size().log2()) - 1))
    }

    /// The byte's offset within its line.
    pub const fn offset_in_line(self) -> usize {
        (self.0 & ((1 << self.line_size().log2()) - 1)) as usize
    }

    /// The address `bytes` further on; `None` if it leaves the home's address range.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        if bytes > Self::OFFSET_MASK - self.offset() {
            return None;
        }
        Some(Self(self.0 + bytes))
    }
}

impl fmt::Debug for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{:#x}/{:?}", self.memory(), self.offset(), self.line_size())
    }
}

impl fmt::Display for GlobalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a text is no global address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseAddressError {
    /// It has not the form `NODE:OFFSET/LINE` or `NODE.GENERATION:OFFSET/LINE`.
    Form,
    /// The node is no number from 0 to 255.
    Node,
    /// The generation is no number from 0 to 1,023.
    Generation,
    /// The offset is no number with up to 42 bits.
    Offset,
    /// The line is no power of two from 64 to 65,536.
    Line,
}

impl fmt::Display for ParseAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Form => "no global address: write NODE:OFFSET/LINE, as in 2:0x1000/512B",
            Self::Node => "the node of a global address is 0 to 255, as in 2:0x1000/512B",
            Self::Generation => {
                "the generation of a global address is 0 to 1023, as in 2.7:0x1000/512B, or left out \
                 as in 2:0x1000/512B"
            }
            Self::Offset => {
                "the offset of a global address is hexadecimal and under 2^42, as in 2:0x1000/512B"
            }
            Self::Line => {
                "the line of a global address is a power of two from 64B to 65536B, as in \
                 2:0x1000/512B"
            }
        })
    }
}

impl core::error::Error for ParseAddressError {}

impl FromStr for GlobalAddress {
    type Err = ParseAddressError;

    /// Parses the output of `Display`; digits may also be upper case or begin with zeros.
    ///
    /// # Errors
    /// Which part of it is wrong.
    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let (node, rest) = text.split_once(':').ok_or(ParseAddressError::Form)?;
        let (offset, line) = rest.split_once('/').ok_or(ParseAddressError::Form)?;
        // Number parsers accept a sign, which no address has.
        let is_number = |text: &str| !text.starts_with('+');
        let (node, generation) = node.split_once('.').unwrap_or((node, "0"));
        let number = |text: &str| Some(text).filter(|t| is_number(t)).and_then(|t| t.parse().ok());
        let node = number(node).filter(|node| *node < NodeSet::CAPACITY as u16);
        let generation = number(generation).filter(|number| *number < Generation::COUNT);
        let offset = offset.strip_prefix("0x").filter(|text| is_number(text));
        let offset = offset.and_then(|text| u64::from_str_radix(text, 16).ok());
        let line = line.strip_suffix('B').filter(|text| is_number(text));
        let line = line.and_then(|text| text.parse().ok()).and_then(LineSize::from_bytes);
        let node = NodeId(node.ok_or(ParseAddressError::Node)?);
        let generation = Generation(generation.ok_or(ParseAddressError::Generation)?);
        let memory = MemoryId::new(node, generation).ok_or(ParseAddressError::Node)?;
        let line = line.ok_or(ParseAddressError::Line)?;
        let offset = offset.ok_or(ParseAddressError::Offset)?;
        Self::new_in(memory, line, offset).map_err(|_| ParseAddressError::Offset)
    }
}

/// The first byte of a line, which identifies the line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LineAddress(u64);

impl LineAddress {
    /// The line whose first byte has these bits; `None` when they name no line start.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match GlobalAddress::from_bits(bits) {
            Ok(address) if address.offset_in_line() == 0 => Some(Self(bits)),
            _ => None,
        }
    }

    /// The 64 bits of the first byte.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The first byte.
    pub const fn address(self) -> GlobalAddress {
        GlobalAddress(self.0)
    }

    /// The memory that contains this line.
    pub const fn memory(self) -> MemoryId {
        self.address().memory()
    }

    /// The node whose memory this is.
    pub const fn home(self) -> NodeId {
        self.address().home()
    }

    /// The size of the line, as a class.
    pub const fn line_size(self) -> LineSize {
        self.address().line_size()
    }

    /// The first byte within the home's memory.
    pub const fn offset(self) -> u64 {
        self.address().offset()
    }

    /// The line `count` lines further on; `None` if it leaves the home's address range.
    pub const fn checked_add(self, count: u64) -> Option<Self> {
        let Some(bytes) = count.checked_mul(self.line_size().bytes() as u64) else {
            return None;
        };
        match self.address().checked_add(bytes) {
            Some(address) => Some(Self(address.0)),
            None => None,
        }
    }
}

impl fmt::Debug for LineAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.address(), f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn text_of_any_address_parses_to_the_same_address() {
        let mut random = crate::Random::new(1);
        let mut addresses = 0;
        for _ in 0..100_000 {
            let state = random.word();
            let shifted = state.rotate_right(17) >> (state % 42);
            for bits in [state, shifted, shifted | state << 48] {
                if let Ok(address) = GlobalAddress::from_bits(bits) {
                    assert_eq!(address.to_string().parse(), Ok(address), "{bits:#x}");
                    addresses += 1;
                }
            }
        }
        assert!(addresses > 100_000, "{addresses}");
    }

    #[test]
    fn text_that_is_no_address_is_refused_by_its_part() {
        let address = GlobalAddress::new(NodeId(2), LineSize::DEFAULT, 0x1000).unwrap();
        assert_eq!("2:0x1000/512B".parse(), Ok(address));
        let max = "255.1023:0x3ffffffffff/65536B".parse::<GlobalAddress>();
        assert_eq!(max.unwrap().offset(), (1 << 42) - 1);
        assert_eq!(max.unwrap().generation(), Generation(1023));
        for (text, error) in [
            ("", ParseAddressError::Form),
            ("2", ParseAddressError::Form),
            ("2:0x1000", ParseAddressError::Form),
            (":0x1000/512B", ParseAddressError::Node),
            ("+2:0x1000/512B", ParseAddressError::Node),
            (" 2:0x1000/512B", ParseAddressError::Node),
            ("256:0x1000/512B", ParseAddressError::Node),
            ("65536:0x1000/512B", ParseAddressError::Node),
            ("2.:0x1000/512B", ParseAddressError::Generation),
            ("2.1024:0x1000/512B", ParseAddressError::Generation),
            ("2.1.1:0x1000/512B", ParseAddressError::Generation),
            ("2:1000/512B", ParseAddressError::Offset),
            ("2:0x/512B", ParseAddressError::Offset),
            ("2:0x+1/512B", ParseAddressError::Offset),
            ("2:0x40000000000/512B", ParseAddressError::Offset),
            ("2:0x1000/512", ParseAddressError::Line),
            ("2:0x1000/500B", ParseAddressError::Line),
            ("2:0x1000/512B ", ParseAddressError::Line),
            ("2:0x1000/131072B", ParseAddressError::Line),
        ] {
            assert_eq!(text.parse::<GlobalAddress>(), Err(error), "{text}");
            assert!(error.to_string().contains("2:0x1000/512B"), "{error}");
        }
    }

    #[test]
    fn parts_come_back() {
        let address = GlobalAddress::new(NodeId(9), LineSize::DEFAULT, 0x1234).unwrap();
        assert_eq!(address.home(), NodeId(9));
        assert_eq!(address.line_size(), LineSize::DEFAULT);
        assert_eq!(address.offset(), 0x1234);
        assert_eq!(address.line().offset(), 0x1200);
        assert_eq!(address.offset_in_line(), 0x34);
        assert_eq!(GlobalAddress::from_bits(address.to_bits()), Ok(address));
        assert_eq!(LineAddress::from_bits(address.to_bits()), None);
        assert_eq!(LineAddress::from_bits(address.line().to_bits()), Some(address.line()));
    }

    #[test]
    fn generation_distinguishes_memories_of_one_number() {
        let memory = MemoryId::new(NodeId(200), Generation(700)).unwrap();
        let address = GlobalAddress::new_in(memory, LineSize::MIN, 64).unwrap();
        assert_eq!((address.memory(), address.line().memory()), (memory, memory));
        assert_eq!((address.home(), address.generation()), (NodeId(200), Generation(700)));
        assert_eq!(address.to_string(), "200.700:0x40/64B");
        assert_ne!(GlobalAddress::new(NodeId(200), LineSize::MIN, 64), Ok(address));
        assert_eq!(MemoryId::new(NodeId(256), Generation(0)), None);
        assert_eq!(MemoryId::new(NodeId(0), Generation(1024)), None);
        let foreign = GlobalAddress::new(NodeId(256), LineSize::MIN, 0);
        assert_eq!(foreign, Err(AddressError::HomeTooLarge));
    }

    #[test]
    fn classes_beyond_64_kib_are_refused() {
        for class in 11..16_u64 {
            let bits = class << GlobalAddress::OFFSET_BITS;
            assert_eq!(GlobalAddress::from_bits(bits), Err(AddressError::UnknownLineSize));
        }
        assert_eq!(LineSize::from_bytes(32), None);
        assert_eq!(LineSize::from_bytes(131_072), None);
        assert_eq!(LineSize::from_bytes(96), None);
    }

    #[test]
    fn addition_never_leaves_the_home() {
        let last = GlobalAddress::new(NodeId(1), LineSize::MAX, (1 << 42) - 1).unwrap();
        assert_eq!(last.checked_add(1), None);
        assert_eq!(last.checked_add(0), Some(last));
        assert_eq!(last.line().checked_add(1), None);
    }
}
