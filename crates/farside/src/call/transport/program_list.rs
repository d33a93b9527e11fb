//! The list of programs with which an executor answers a registration.
//!
//! ```text
//! for each: number (8) | keeps state (1) | zero (1) | bytes of the name (2) | bytes of parameters (4) | name
//! ```

use crate::call::executor::loading::LoadedProgram;

/// A program that an executor has registered for a caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// Number to invoke it by; derived from the contents of its object.
    pub number: u64,
    /// Name as in the source.
    pub name: String,
    /// Minimum bytes of parameters of a call.
    pub parameter_bytes: u32,
    /// Whether it keeps state between calls at its executor.
    pub keeps_state: bool,
}

/// Appends a program to a list.
pub(crate) fn write(list: &mut Vec<u8>, number: u64, loaded: &LoadedProgram) {
    let name = loaded.name().as_bytes();
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
    list.extend(number.to_le_bytes());
    list.extend([u8::from(loaded.has_state()), 0]);
    list.extend(length.to_le_bytes());
    list.extend(loaded.verified().context_bytes().to_le_bytes());
    list.extend(&name[..usize::from(length)]);
}

/// Decodes a list; `None` if it is malformed.
pub(crate) fn read(mut list: &[u8]) -> Option<Vec<Program>> {
    let mut programs = Vec::new();
    while !list.is_empty() {
        let (number, rest) = list.split_first_chunk::<8>()?;
        let ([keeps, 0, low, high], rest) = rest.split_first_chunk::<4>()? else {
            return None;
        };
        let (parameters, rest) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (name, rest) = rest.split_at_checked(length)?;
        programs.push(Program {
            number: u64::from_le_bytes(*number),
            name: std::str::from_utf8(name).ok()?.to_owned(),
            parameter_bytes: u32::from_le_bytes(*parameters),
            keeps_state: *keeps == 1,
        });
        list = rest;
    }
    Some(programs)
}
