//! The two processes of a measurement: the one that measures starts the one that answers.

use crate::shared::Shared;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::Result;
use std::process::{Child, Command, Stdio};

/// What to measure, how long and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) windows: usize,
    /// Of the process that measures and of the one that answers.
    pub(crate) processors: [usize; 2],
}

/// What the answering process shall do.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) role: &'static str,
    pub(crate) message_bytes: usize,
    /// A name that both processes share.
    pub(crate) name: String,
}

/// The answering process. Ends with this value.
#[derive(Debug)]
pub(crate) struct Other {
    child: Child,
}

impl Other {
    /// Starts this program again, with `stdin` as the way to reach it.
    pub(crate) fn start(plan: Plan, task: &Task, stdin: Stdio) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["answer", task.role, &task.name])
            .args([task.message_bytes.to_string(), plan.processors[1].to_string()])
            .stdin(stdin)
            .spawn()?;
        Ok(Self { child })
    }

    /// Starts it with memory that both share.
    pub(crate) fn sharing(plan: Plan, task: &Task) -> Result<(Self, Shared)> {
        let (file, shared) = Shared::create()?;
        let other = Self::start(plan, task, Stdio::from(file))?;
        Ok((other, shared))
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(std::io::Error::other(format!("the answering process ended with {status}")))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Binds this process to one processor. A refusal is an error: unbound sides give other figures.
pub(crate) fn bind(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// What an answering process does first: it must not outlive the one that measures.
pub(crate) fn settle(processor: usize) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    bind(processor)
}
