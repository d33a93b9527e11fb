//! The two processes of a measurement: the measuring process starts the answering process.

use crate::shared::Shared;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::Result;
use std::process::{Child, Command, Stdio};

/// How long to measure, and on which processors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) windows: usize,
    /// Of the measuring and of the answering process.
    pub(crate) processors: [usize; 2],
}

/// The task of the answering process.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) role: &'static str,
    pub(crate) message_bytes: usize,
    /// A name that both processes share.
    pub(crate) name: String,
}

/// The answering process; killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct AnsweringProcess {
    child: Child,
}

impl AnsweringProcess {
    /// Starts this program again, with the shared memory or socket as its standard input.
    pub(crate) fn start(plan: Plan, task: &Task, stdin: Stdio) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["answer", task.role, &task.name])
            .args([task.message_bytes.to_string(), plan.processors[1].to_string()])
            .stdin(stdin)
            .spawn()?;
        Ok(Self { child })
    }

    /// Starts the process with memory that both share.
    pub(crate) fn sharing(plan: Plan, task: &Task) -> Result<(Self, Shared)> {
        let (file, shared) = Shared::create()?;
        let other = Self::start(plan, task, Stdio::from(file))?;
        Ok((other, shared))
    }

    /// Waits until the process has ended.
    pub(crate) fn wait(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(std::io::Error::other(format!("the answering process ended with {status}")))
    }
}

impl Drop for AnsweringProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Binds this process to one processor. A refusal is an error: unbound processes give other figures.
pub(crate) fn bind(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Prepares an answering process: it ends with the measuring process, and runs on its processor.
pub(crate) fn prepare_answering(processor: usize) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    bind(processor)
}
