//! Litmus tests as data: the program of each thread, and the outcome that the test is about (its witness).

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

/// One instruction of a thread. Variables are numbered from 0; all start at zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// Stores a value; may be asynchronous.
    Write {
        /// The variable.
        variable: u8,
        /// The value.
        value: u64,
    },
    /// Loads a variable into the thread's next register.
    Read {
        /// The variable.
        variable: u8,
    },
    /// Waits until all earlier writes of this thread are visible to all threads.
    Fence,
    /// Adds atomically; the previous value goes into the next register. Orders like a fence.
    FetchAdd {
        /// The variable.
        variable: u8,
        /// The addend.
        add: u64,
    },
    /// Replaces atomically; the previous value goes into the next register. Orders like a fence.
    Swap {
        /// The variable.
        variable: u8,
        /// The new value.
        value: u64,
    },
}

impl Instruction {
    /// Returns the accessed variable; none for a fence.
    pub const fn variable(self) -> Option<u8> {
        match self {
            Self::Write { variable, .. }
            | Self::Read { variable }
            | Self::FetchAdd { variable, .. }
            | Self::Swap { variable, .. } => Some(variable),
            Self::Fence => None,
        }
    }

    /// Whether it writes a register.
    pub const fn fills_register(self) -> bool {
        matches!(self, Self::Read { .. } | Self::FetchAdd { .. } | Self::Swap { .. })
    }

    /// Whether it reads and modifies atomically.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd { .. } | Self::Swap { .. })
    }

    /// Returns the value of the variable after the instruction.
    pub const fn apply(self, before: u64) -> u64 {
        match self {
            Self::Write { value, .. } | Self::Swap { value, .. } => value,
            Self::FetchAdd { add, .. } => before.wrapping_add(add),
            Self::Read { .. } | Self::Fence => before,
        }
    }
}

/// The outcome of a run: every register, threads one after the other, and the final content of memory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LitmusOutcome {
    /// In the order of threads and, within a thread, of its reads and atomics.
    pub registers: Vec<u64>,
    /// Per variable.
    pub memory: Vec<u64>,
}

/// The usual names of variables.
const NAMES: [&str; 4] = ["x", "y", "z", "w"];

/// Returns the usual name of a variable.
pub(super) fn name_of(variable: u8) -> &'static str {
    NAMES.get(usize::from(variable)).unwrap_or(&"?")
}

impl fmt::Display for LitmusOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, value) in self.registers.iter().enumerate() {
            write!(f, "r{number}={value} ")?;
        }
        for (number, value) in self.memory.iter().enumerate() {
            let gap = if number == 0 { "" } else { " " };
            write!(f, "{gap}{}={value}", name_of(number as u8))?;
        }
        Ok(())
    }
}

/// One condition of the witness of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// This register, numbered as in [`LitmusOutcome`], ends with this value.
    Register(u8, u64),
    /// This variable ends with this value.
    Memory(u8, u64),
}

/// The verdict of a memory model on a test's witness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelVerdict {
    /// It may be observed.
    Allowed,
    /// It must never be observed.
    Forbidden,
}

impl fmt::Display for ModelVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allowed => "allowed",
            Self::Forbidden => "forbidden",
        })
    }
}

/// A litmus test.
#[derive(Clone, Copy, Debug)]
pub struct Litmus {
    /// Its usual name, with its variant.
    pub name: &'static str,
    /// The program of each thread.
    pub threads: &'static [&'static [Instruction]],
    /// The outcome that the test is about: the conjunction of these conditions.
    pub witness: &'static [Condition],
    /// Verdict if writes may be delayed past later reads and past later writes to other variables.
    pub pso: ModelVerdict,
    /// Verdict if writes may be delayed past later reads only.
    pub tso: ModelVerdict,
}

impl PartialEq for Litmus {
    /// Names are unique.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Litmus {}

impl Hash for Litmus {
    /// The program of a run never changes, so it is not part of equality and hash.
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Litmus {
    /// Returns the number of variables.
    pub fn variables(&self) -> usize {
        let all = self.threads.iter().copied().flatten();
        let last = all.filter_map(|instruction| instruction.variable()).max();
        last.map_or(0, |last| usize::from(last) + 1)
    }

    /// Returns the number of the first register of a thread.
    pub fn first_register(&self, thread: usize) -> usize {
        let before = self.threads[..thread].iter().copied().flatten();
        before.filter(|one| one.fills_register()).count()
    }

    /// Returns the number of registers.
    pub fn registers(&self) -> usize {
        self.first_register(self.threads.len())
    }

    /// Whether this outcome is the witness.
    pub fn is_witness(&self, outcome: &LitmusOutcome) -> bool {
        self.witness.iter().all(|condition| match *condition {
            Condition::Register(register, value) => {
                outcome.registers.get(usize::from(register)) == Some(&value)
            }
            Condition::Memory(variable, value) => {
                outcome.memory.get(usize::from(variable)) == Some(&value)
            }
        })
    }

    /// Returns the verdict of `model` on the witness.
    pub const fn verdict(&self, model: super::MemoryModel) -> ModelVerdict {
        match model {
            super::MemoryModel::Pso => self.pso,
            super::MemoryModel::Tso => self.tso,
        }
    }
}

impl fmt::Display for Litmus {
    /// Prints the programs next to each other on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        let mut register = 0;
        for thread in self.threads {
            f.write_str(" |")?;
            for instruction in *thread {
                let name = instruction.variable().map_or("?", name_of);
                match instruction {
                    Instruction::Write { value, .. } => write!(f, " {name}={value};")?,
                    Instruction::Read { .. } => write!(f, " r{register}={name};")?,
                    Instruction::Fence => f.write_str(" fence;")?,
                    Instruction::FetchAdd { add, .. } => write!(f, " r{register}={name}+={add};")?,
                    Instruction::Swap { value, .. } => {
                        write!(f, " r{register}=swap({name},{value});")?
                    }
                }
                register += usize::from(instruction.fills_register());
            }
        }
        Ok(())
    }
}

/// The outcomes that a model allows.
pub type Outcomes = BTreeSet<LitmusOutcome>;
