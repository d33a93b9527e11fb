//! The header of a structure in remote memory: a magic number and words that are written once.

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress};
use crate::Error;

/// In the place of the magic number while the structure is being created.
const CREATING: u64 = 1;

/// The header of a structure in remote memory, which is zero at first: a magic number, and words that describe it.
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{Deadline, LendOptions, MemoryClient, MemoryClientOptions, MemoryHeader, MemoryServer};
/// # let (name, second) = (format!("header-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let server = MemoryServer::lend(&fabric, &name, 4096, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let (header, by) = (MemoryHeader::new(memory.at(0), 0x5155_4555), Deadline::after(second));
/// assert_eq!(header.read::<1>(&mut client, &by)?, None);
/// assert!(header.claim(&mut client, &by)? && !header.claim(&mut client, &by)?);
/// header.publish(&mut client, &[7], &by)?;
/// assert_eq!(header.read(&mut client, &by)?, Some([7]));
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Guarantees*: of programs that create a structure at one place one succeeds, and words that are read are those that it has
/// published. A program that ends between claim and publication leaves memory that must be zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryHeader {
    at: RemoteAddress,
    magic: u64,
}

impl MemoryHeader {
    /// Names the header at an aligned address. The magic number is neither 0 nor 1.
    pub const fn new(at: RemoteAddress, magic: u64) -> Self {
        Self { at, magic }
    }

    /// Claims the memory; false if it is not zero there. *Blocks* for a round trip.
    ///
    /// # Errors
    /// As [`MemoryClient::compare_swap`] and [`MemoryClient::wait`].
    pub fn claim(&self, client: &mut MemoryClient, by: &Deadline) -> Result<bool, Error> {
        let claimed = client.compare_swap(self.at, 0, CREATING)?;
        Ok(by.wait(client, claimed)? == 0)
    }

    /// Writes the words of memory that was claimed, then the magic number. *Blocks* for two round trips.
    ///
    /// # Errors
    /// As [`MemoryClient::write`] and [`MemoryClient::wait`].
    pub fn publish(
        &self,
        client: &mut MemoryClient,
        words: &[u64],
        by: &Deadline,
    ) -> Result<(), Error> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        client.write_bytes(self.at.plus(8), &bytes, by.left())?;
        by.replace(client, self.at, (CREATING, self.magic)).map(drop)
    }

    /// Returns the words; `None` if nothing with this magic number was published. *Blocks* for two round trips.
    ///
    /// # Errors
    /// As [`MemoryClient::read`] and [`MemoryClient::wait`].
    pub fn read<const WORDS: usize>(
        &self,
        client: &mut MemoryClient,
        by: &Deadline,
    ) -> Result<Option<[u64; WORDS]>, Error> {
        if by.read_word(client, self.at)? != self.magic {
            return Ok(None);
        }
        // After the magic number was seen: a READ of both might return older words.
        let mut bytes = vec![0; 8 * WORDS];
        client.read_bytes(self.at.plus(8), &mut bytes, by.left())?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        Ok(Some(std::array::from_fn(word)))
    }
}
