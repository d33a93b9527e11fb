//! Programs from bytes: an ELF object, or text for the assembler.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use super::{LoadError, Program, load};
use crate::assembler::{AssembleError, assemble};
use crate::limits::Limits;

/// Why bytes hold no programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadError {
    /// As an ELF object.
    Object(Box<LoadError>),
    /// As text.
    Text(AssembleError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(error) => error.fmt(out),
            Self::Text(error) => error.fmt(out),
        }
    }
}

impl core::error::Error for ReadError {}

/// The programs of an ELF object, or the one of a text for the [`crate::assembler`].
///
/// # Errors
/// The problem and its position. Bytes that are not UTF-8 text are loaded as an object.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Vec<Program>, ReadError> {
    let text = core::str::from_utf8(bytes).ok().filter(|_| !bytes.starts_with(b"\x7fELF"));
    match text {
        Some(text) if bytes.len() <= limits.file_bytes_max => {
            assemble(text).map(|program| alloc::vec![program]).map_err(ReadError::Text)
        }
        _ => load(bytes, limits).map_err(ReadError::Object),
    }
}
