//! Registration of objects at the executor.

use super::connection::CallerConnection;
use super::window::OutstandingCalls;
use super::{Caller, Ticket};
use crate::call::transport::program_list::{self, Program};
use crate::event_wait::EventWait;
use crate::progress::Progress;
use crate::{Error, ErrorCode};
use farside_base::waiting::SPIN_WORK_POLLS;
use farside_protocol::call::{Part, Verb};
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of parts of an object in flight; other calls need slots too.
const PARTS_MAX: usize = 8;

/// An object being sent to the executor.
pub(super) struct Upload {
    object: Arc<[u8]>,
    /// Bytes sent.
    sent: usize,
    /// Parts in flight, in order.
    parts: VecDeque<Ticket>,
    /// The list of its programs, or why there is none.
    end: Option<Result<Vec<u8>, Error>>,
}

impl Caller {
    /// Registers every program of an object file made by clang, or the program of an assembler text
    /// ([`crate::call::rmc::assembler`]), and returns them.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`](crate::call::CallerOptions::timeout). *Cost*: a round trip
    /// for each 32 KiB of the object.
    ///
    /// # Errors
    /// `BadProgram`, `UnsafeProgram`, `OverQuota`, `ExecutorLacks` for a helper that the executor does not have;
    /// `PeerLost`, `TimedOut`.
    pub fn register(&mut self, object: &[u8]) -> Result<Vec<Program>, Error> {
        let mut wait = EventWait::new(self.connection.options.timeout, SPIN_WORK_POLLS);
        while !self.begin_register(object)? {
            self.progress()?;
            self.wait_for_event(&mut wait)?;
        }
        loop {
            // An error that ends the session is also the end of the registration.
            let _ = self.progress();
            if let Some(programs) = self.registered() {
                return programs;
            }
            self.wait_for_event(&mut wait)?;
        }
    }

    /// Begins to register an object. Returns false if another one is being registered or the executor has not
    /// accepted this caller yet. [`Self::registered`] returns the result. Never blocks.
    ///
    /// # Errors
    /// `BadProgram` for an object that is empty or far too large, `PeerLost`.
    pub fn begin_register(&mut self, object: &[u8]) -> Result<bool, Error> {
        self.connection.check()?;
        if object.is_empty() || u32::try_from(object.len()).is_err() {
            let text = "it is empty, or larger than 4 GiB";
            return Err(Error::with(ErrorCode::BadProgram, text));
        }
        if self.upload.is_some() || !self.connection.is_open {
            return Ok(false);
        }
        self.upload = Some(Upload::of(object));
        self.continue_upload();
        Ok(true)
    }

    /// Returns the programs of the object being registered, once it has ended; the result is returned once.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn registered(&mut self) -> Option<Result<Vec<Program>, Error>> {
        self.continue_upload();
        let upload = self.upload.take_if(|upload| upload.end.is_some())?;
        let programs = upload.end?.and_then(|list| {
            program_list::read(&list).ok_or_else(|| {
                Error::with(ErrorCode::ProtocolViolation, "the list of programs is malformed")
            })
        });
        if let Some(first) = programs.iter().flatten().next() {
            self.local.add(first.number, &upload.object);
        }
        Some(programs)
    }

    /// Takes answers to parts, and sends the next ones.
    fn continue_upload(&mut self) {
        let Self { connection, calls, upload: Some(upload), .. } = self else { return };
        upload.take_answers(calls);
        // A waiting thread sleeps before the next poll, so the parts are flushed now.
        if upload.send_parts(connection, calls) {
            self.post();
        }
    }
}

impl Upload {
    fn of(object: &[u8]) -> Self {
        Self { object: object.into(), sent: 0, parts: VecDeque::new(), end: None }
    }

    /// Whether a request carries one of its parts.
    pub(super) fn awaits(&self, ticket: Ticket) -> bool {
        self.parts.contains(&ticket)
    }

    fn fail(&mut self, calls: &mut OutstandingCalls, error: Error) {
        self.parts.drain(..).for_each(|part| calls.forget(part));
        self.end = Some(Err(error));
    }

    fn take_answers(&mut self, calls: &mut OutstandingCalls) {
        while let Some(end) = self.parts.front().and_then(|part| calls.poll(*part)) {
            self.parts.pop_front();
            match end {
                // The answer to the last part is the list of programs.
                Ok(answer) if self.sent == self.object.len() && self.parts.is_empty() => {
                    self.end = Some(Ok(answer.output));
                }
                Ok(_) => {}
                Err(error) => self.fail(calls, error),
            }
        }
    }

    /// Queues further parts; returns whether there were any.
    fn send_parts(
        &mut self,
        connection: &mut CallerConnection,
        calls: &mut OutstandingCalls,
    ) -> bool {
        let bytes_max = (connection.message_bytes as usize).saturating_sub(Part::BYTES).max(1);
        let (before, whole) = (self.sent, self.object.len());
        while self.end.is_none() && self.sent < whole && self.parts.len() < PARTS_MAX {
            let offset = self.sent;
            let part = &self.object[offset..whole.min(offset + bytes_max)];
            let number = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
            let head = Part { whole: number(whole), offset: number(offset) }.encode();
            match calls.request(connection, Verb::Register, [&head, part]) {
                Ok(Some(ticket)) => {
                    self.parts.push_back(ticket);
                    self.sent += part.len();
                }
                Ok(None) => break,
                Err(error) => self.fail(calls, error),
            }
        }
        self.sent > before
    }
}
