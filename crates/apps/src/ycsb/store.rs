//! The store interface of the driver.

use crate::dht::{DhtError, Handle};

/// A store of records by key, as one client uses it.
pub trait Store {
    /// Why an operation failed.
    type Error: std::error::Error;

    /// Copies the record of `key` into `out`; false if there is none.
    ///
    /// # Errors
    /// The store's own.
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, Self::Error>;

    /// Sets the record of `key`, new or not.
    ///
    /// # Errors
    /// The store's own; the record may be there then.
    fn insert(&mut self, key: &[u8], record: &[u8]) -> Result<(), Self::Error>;

    /// Changes the record of `key` in one step; false if there is none. `change` may run several times; the
    /// last run counts.
    ///
    /// # Errors
    /// The store's own; the record may be changed then.
    fn update(
        &mut self,
        key: &[u8],
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<bool, Self::Error>;
}

impl Store for Handle<'_> {
    type Error = DhtError;

    #[inline]
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DhtError> {
        self.get(key, out)
    }

    fn insert(&mut self, key: &[u8], record: &[u8]) -> Result<(), DhtError> {
        self.put(key, record).map(|_new| ())
    }

    fn update(
        &mut self,
        key: &[u8],
        change: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<bool, DhtError> {
        Handle::update(self, key, change)
    }
}
