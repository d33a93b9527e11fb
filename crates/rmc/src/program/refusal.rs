//! Why a file is not loaded, and the text for the author of its source.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use core::fmt;

use super::SourcePosition;
use crate::isa::DecodeError;

/// Why a file is not loaded: the position, as far as it is known, and the problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadError {
    /// The section, if it concerns one.
    pub section: String,
    /// The slot in that section, if it concerns one.
    pub slot: Option<usize>,
    /// The byte in that section, if it concerns data, for which no lines are known.
    pub byte: Option<u64>,
    /// The program, or the function of programs, that has the slot.
    pub within: Option<Within>,
    /// The line of the source that the slot came from, with the line's first slot in the section; `None`
    /// also where the object was compiled without `-g`.
    pub line: Option<SourcePosition>,
    /// What is wrong.
    pub problem: LoadProblem,
}

/// Whose code it is, by its name in the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Within {
    /// A program's own function.
    Program(String),
    /// A function that programs may call.
    Function(String),
}

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LoadProblem {
    /// It is no relocatable ELF object for eBPF.
    NotAnObject(String),
    /// Something is over its limit.
    TooLarge {
        /// What.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// The limit.
        most: u64,
    },
    /// It has no global function.
    NoProgram,
    /// Code is not whole slots.
    NotSlots,
    /// A slot is no instruction.
    Decode(DecodeError),
    /// A relocation that is not supported here.
    Relocation {
        /// Where it applies, in bytes.
        offset: u64,
        /// Why not.
        why: &'static str,
    },
    /// The address of something that has none: a function, or what is no data.
    NoAddress {
        /// The function, if it concerns one.
        function: Option<String>,
    },
    /// A symbol that is declared, but not defined in this file.
    Undefined {
        /// Its name.
        name: String,
    },
    /// The target of a call is not the start of a function.
    NoFunction,
    /// A jump leaves its function.
    JumpOutside,
    /// Functions overlap, or reach over the end of their section.
    BadFunction {
        /// Its name.
        name: String,
    },
    /// Data contains addresses, which cannot be relocated before the run.
    DataHasAddresses {
        /// The variable's or constant's name; empty if it has none.
        name: String,
    },
    /// A declaration of state is invalid.
    BadState {
        /// Its name.
        name: String,
        /// Why not.
        why: StateProblem,
    },
}

/// Why something is no declaration of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StateProblem {
    /// It has this number of bytes, which is not that of a declaration.
    CutOff(usize),
    /// No kind has this number.
    Kind(u32),
    /// No scope has this number.
    Scope(u32),
}

impl fmt::Display for StateProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff(bytes) => {
                write!(out, "{bytes} B are not a declaration: nothing else may be in its section")
            }
            Self::Kind(number) => write!(
                out,
                "there is no kind {number}: declare it with FARSIDE_ARRAY, FARSIDE_COUNTERS, \
                 FARSIDE_MAP or FARSIDE_LOCKS"
            ),
            Self::Scope(number) => write!(
                out,
                "there is no scope {number}: say FARSIDE_PER_QUEUE_PAIR or \
                 FARSIDE_BETWEEN_QUEUE_PAIRS"
            ),
        }
    }
}

impl fmt::Display for LoadProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnObject(why) => write!(
                out,
                "no relocatable ELF object for eBPF ({why}): compile with farside rmc build, or as the \
                 top of farside_rmc.h says"
            ),
            Self::TooLarge { what, found, most } => {
                write!(out, "{what}: {found}, which is over the limit of {most}")
            }
            Self::NoProgram => out.write_str("no global function: use FARSIDE_PROGRAM"),
            Self::NotSlots => out.write_str("the code is not a whole number of slots"),
            Self::Decode(error) => error.fmt(out),
            Self::Relocation { offset, why } => {
                write!(out, "the relocation at byte {offset}: {why}")
            }
            Self::NoAddress { function: Some(name) } => write!(
                out,
                "the address of function `{name}` is taken, but functions have none here: call it \
                 by its name, and choose among several with if or switch"
            ),
            Self::NoAddress { function: None } => {
                out.write_str("the address of a symbol that is not data: only data has addresses")
            }
            Self::Undefined { name } => undefined(name, out),
            Self::NoFunction => out.write_str("a call goes where no function starts"),
            Self::JumpOutside => out.write_str("a jump leaves its function"),
            Self::BadFunction { name } => {
                write!(out, "function `{name}` is not within its section")
            }
            Self::DataHasAddresses { name } => {
                out.write_str("the first value of ")?;
                match name.as_str() {
                    "" => out.write_str("data")?,
                    name => write!(out, "`{name}`")?,
                }
                out.write_str(
                    " holds addresses, which are known only at run time: use arrays in arrays, and indices",
                )
            }
            Self::BadState { name, why } => write!(out, "state `{name}`: {why}"),
        }
    }
}

fn undefined(name: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(out, "`{name}` is not defined in this file: ")?;
    match name {
        "memset" | "memcpy" | "memmove" => write!(
            out,
            "there is no C library; write __builtin_{name} where the length is a constant, and a \
             loop where it is not"
        ),
        _ => out.write_str("a program is one file, and helpers are those of farside_rmc.h"),
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.within {
            Some(Within::Program(name)) => write!(out, "program `{name}`, ")?,
            Some(Within::Function(name)) => write!(out, "function `{name}`, ")?,
            None => {}
        }
        if let Some(line) = &self.line {
            write!(out, "{line}, ")?;
        }
        if !self.section.is_empty() {
            write!(out, "section {}", self.section)?;
            if let Some(slot) = self.slot {
                write!(out, ", slot {slot}")?;
            }
            if let Some(byte) = self.byte {
                write!(out, ", byte {byte}")?;
            }
            out.write_str(": ")?;
        }
        self.problem.fmt(out)
    }
}

impl core::error::Error for LoadError {}

impl LoadError {
    /// One of a section, or of the whole file where that is empty.
    pub(crate) fn of_section(section: &str, problem: LoadProblem) -> Box<Self> {
        let section = section.to_string();
        Box::new(Self { section, slot: None, byte: None, within: None, line: None, problem })
    }
}
