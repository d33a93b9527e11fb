//! Values and arrays of plain types in global memory.

use crate::session::Session;
use crate::{AllocationSpec, Error, ErrorCode, GlobalAddress};
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Plain old data: types without padding of which every bit pattern is a value: integers, floats, arrays of these, and
/// structures that derive `FromBytes`, `IntoBytes` and `Immutable` of [`zerocopy`](crate::zerocopy).
///
/// Values have the byte order of the processor: all nodes that share them must have the same one.
pub trait Pod: FromBytes + IntoBytes + Immutable + Copy {}

impl<T: FromBytes + IntoBytes + Immutable + Copy> Pod for T {}

/// An array of plain values in global memory, or a part of one: an address and a length. Copy it, and pass
/// it to other nodes by [`Root`](crate::Root) or as its parts.
///
/// *Guarantees*: as [`Session::read`] and [`Session::write`]: an element is atomic if it lies in one line.
///
/// # Examples
/// ```
/// # use farside::{Config, Node};
/// # fn main() -> Result<(), farside::Error> {
/// # let mut config = Config::new(format!("slice-{}", std::process::id()));
/// # config.memory_bytes = 1 << 20;
/// # config.cache_bytes = 1 << 20;
/// let node = Node::create(&config)?;
/// let mut session = node.session()?;
/// let ranks = session.alloc_array::<f64>(1000)?;
/// ranks.fill(&mut session, 0.5)?;
/// ranks.set(&mut session, 7, 2.0)?;
/// let part = ranks.slice(5..10)?;
/// assert_eq!(part.to_vec(&mut session)?, [0.5, 0.5, 2.0, 0.5, 0.5]);
/// assert!(part.get(&mut session, 5).is_err(), "past its end");
/// # Ok(())
/// # }
/// ```
pub struct GlobalSlice<T> {
    address: GlobalAddress,
    len: usize,
    values: PhantomData<fn() -> T>,
}

impl<T> Clone for GlobalSlice<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GlobalSlice<T> {}

impl<T> PartialEq for GlobalSlice<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.address, self.len) == (other.address, other.len)
    }
}

impl<T> Eq for GlobalSlice<T> {}

impl<T> fmt::Debug for GlobalSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GlobalSlice({} x {} at {})", self.len, std::any::type_name::<T>(), self.address)
    }
}

impl<T: Pod> GlobalSlice<T> {
    /// The array of `len` values at an address. Accesses check that the memory is allocated, not that it
    /// has these values.
    pub fn new(address: GlobalAddress, len: usize) -> Self {
        Self { address, len, values: PhantomData }
    }

    /// The address of the first element.
    pub fn address(&self) -> GlobalAddress {
        self.address
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of an element.
    ///
    /// # Errors
    /// `OutOfBounds` past the end.
    pub fn address_of(&self, index: usize) -> Result<GlobalAddress, Error> {
        self.range(index, 1)
    }

    /// A part of it.
    ///
    /// # Errors
    /// `OutOfBounds` if the range passes the end.
    pub fn slice(&self, range: Range<usize>) -> Result<Self, Error> {
        let len = range.end.checked_sub(range.start);
        let len = len.ok_or_else(|| Error::at(ErrorCode::OutOfBounds, self.address))?;
        Ok(Self::new(self.range(range.start, len)?, len))
    }

    fn range(&self, first: usize, len: usize) -> Result<GlobalAddress, Error> {
        let inside = first.checked_add(len).is_some_and(|end| end <= self.len);
        let address = || self.address.checked_add(first.checked_mul(size_of::<T>())? as u64);
        inside
            .then(address)
            .flatten()
            .ok_or_else(|| Error::at(ErrorCode::OutOfBounds, self.address))
    }

    /// Reads an element.
    ///
    /// *Blocks* and *Cost*: as [`Session::read`].
    ///
    /// # Errors
    /// `OutOfBounds` past the end, and as `Session::read`.
    #[inline]
    pub fn get(&self, session: &mut Session, index: usize) -> Result<T, Error> {
        session.read_value(self.address_of(index)?)
    }

    /// Writes an element.
    ///
    /// *Blocks* and *Cost*: as [`Session::write`].
    ///
    /// # Errors
    /// `OutOfBounds` past the end, and as `Session::write`.
    #[inline]
    pub fn set(&self, session: &mut Session, index: usize, value: T) -> Result<(), Error> {
        session.write_value(self.address_of(index)?, &value)
    }

    /// Reads elements from the one with index `first` on.
    ///
    /// *Blocks* and *Cost*: as [`Session::read`], which is repeated if the size is over its limit.
    ///
    /// # Errors
    /// `OutOfBounds` past the end, and as `Session::read`; earlier elements have been read then.
    pub fn read(&self, session: &mut Session, first: usize, out: &mut [T]) -> Result<(), Error> {
        let address = self.range(first, out.len())?;
        session.read_chunks(address, out.as_mut_bytes())
    }

    /// Writes elements from the one with index `first` on.
    ///
    /// *Blocks* and *Cost*: as [`Session::write`], which is repeated if the size is over its limit.
    ///
    /// # Errors
    /// `OutOfBounds` past the end, and as `Session::write`; earlier elements are in flight then.
    pub fn write(&self, session: &mut Session, first: usize, values: &[T]) -> Result<(), Error> {
        let address = self.range(first, values.len())?;
        session.write_chunks(address, values.as_bytes())
    }

    /// Reads all elements.
    ///
    /// # Errors
    /// As [`read`](Self::read), and `System` if this process has no memory for them.
    pub fn to_vec(&self, session: &mut Session) -> Result<Vec<T>, Error> {
        let mut values = Vec::new();
        values.try_reserve_exact(self.len).map_err(|error| {
            let detail = format!("no memory in this process for {} elements: {error}", self.len);
            Error::with(ErrorCode::System, detail)
        })?;
        values.resize(self.len, T::new_zeroed());
        self.read(session, 0, &mut values)?;
        Ok(values)
    }

    /// Writes one value to all elements.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn fill(&self, session: &mut Session, value: T) -> Result<(), Error> {
        let count = (FILL_BYTES / size_of::<T>().max(1)).clamp(1, self.len.max(1));
        let values = vec![value; count];
        for first in (0..self.len).step_by(count) {
            self.write(session, first, &values[..count.min(self.len - first)])?;
        }
        Ok(())
    }
}

/// Bytes of one write of [`GlobalSlice::fill`].
const FILL_BYTES: usize = 64 << 10;

impl Session {
    /// Reads a value; as [`read`](Self::read).
    ///
    /// # Errors
    /// As `read`.
    #[inline]
    pub fn read_value<T: Pod>(&mut self, address: GlobalAddress) -> Result<T, Error> {
        let mut value = T::new_zeroed();
        self.read(address, value.as_mut_bytes())?;
        Ok(value)
    }

    /// Writes a value; as [`write`](Self::write).
    ///
    /// # Errors
    /// As `write`.
    #[inline]
    pub fn write_value<T: Pod>(&mut self, address: GlobalAddress, value: &T) -> Result<(), Error> {
        self.write(address, value.as_bytes())
    }

    /// Allocates a zeroed array; as [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// As `alloc`.
    pub fn alloc_array<T: Pod>(&mut self, len: usize) -> Result<GlobalSlice<T>, Error> {
        self.alloc_array_with(len, AllocationSpec::default())
    }

    /// Allocates a zeroed array with a placement hint and a line size; as [`alloc_with`](Self::alloc_with).
    ///
    /// # Errors
    /// As `alloc_with`.
    pub fn alloc_array_with<T: Pod>(
        &mut self,
        len: usize,
        spec: AllocationSpec,
    ) -> Result<GlobalSlice<T>, Error> {
        let bytes = (len as u64).checked_mul(size_of::<T>() as u64);
        let bytes = bytes.ok_or_else(|| Error::new(ErrorCode::TooLarge))?;
        Ok(GlobalSlice::new(self.alloc_with(bytes, spec)?, len))
    }

    /// Reads a range in parts that are within the limit of an access; all have one deadline.
    fn read_chunks(&mut self, address: GlobalAddress, out: &mut [u8]) -> Result<(), Error> {
        let most = self.core.limits.access_bytes_max as usize;
        let mut deadline = self.next_deadline();
        for (index, part) in out.chunks_mut(most).enumerate() {
            self.deadline = Some(deadline);
            self.read(offset(address, index * most)?, part)?;
            deadline = self.last_deadline();
        }
        Ok(())
    }

    /// Writes a range, as [`read_chunks`](Self::read_chunks).
    fn write_chunks(&mut self, address: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        let most = self.core.limits.access_bytes_max as usize;
        let mut deadline = self.next_deadline();
        for (index, part) in bytes.chunks(most).enumerate() {
            self.deadline = Some(deadline);
            self.write(offset(address, index * most)?, part)?;
            deadline = self.last_deadline();
        }
        Ok(())
    }
}

fn offset(address: GlobalAddress, bytes: usize) -> Result<GlobalAddress, Error> {
    address.checked_add(bytes as u64).ok_or_else(|| Error::at(ErrorCode::OutOfBounds, address))
}
