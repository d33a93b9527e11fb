//! Registering at the executor.

use super::{Caller, Link, Ticket};
use crate::call::programs::{self, Program};
use crate::patience::Patience;
use crate::{Error, ErrorCode};
use farside_protocol::call::{Part, Verb, object_of};
use std::collections::VecDeque;
use std::sync::Arc;

/// Parts of an object that may be on their way at once; other calls need slots too.
const PARTS_MAX: usize = 8;

/// An object on its way to the executor.
pub(super) struct Upload {
    object: Arc<[u8]>,
    /// Bytes that were sent.
    sent: usize,
    /// The parts on their way, in their order.
    parts: VecDeque<Ticket>,
    /// The list of its programs, or why there is none.
    end: Option<Result<Vec<u8>, Error>>,
}

impl Upload {
    fn of(object: &[u8]) -> Self {
        Self { object: object.into(), sent: 0, parts: VecDeque::new(), end: None }
    }

    /// Whether a request is one of its parts.
    pub(super) fn awaits(&self, ticket: Ticket) -> bool {
        self.parts.contains(&ticket)
    }
}

impl Caller {
    /// Registers every program of an object that clang has made, or the one of a text for the assembler
    /// ([`crate::call::rmc::assembler`]), and tells them.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`](crate::call::CallerOptions::timeout). *Cost*: a
    /// round trip for each 32 KiB of it.
    ///
    /// # Errors
    /// `BadProgram`, `UnsafeProgram`, `OverQuota`, `ExecutorLacks` for a helper that the executor does not
    /// have; `PeerLost`, `TimedOut`.
    pub fn register(&mut self, object: &[u8]) -> Result<Vec<Program>, Error> {
        let mut patience = Patience::of_work(self.options.timeout);
        while !self.begin_register(object)? {
            self.turn()?;
            self.wait_a_little(&mut patience)?;
        }
        loop {
            // What is over is told with the registration itself.
            let _ = self.turn();
            if let Some(programs) = self.registered() {
                return programs;
            }
            self.wait_a_little(&mut patience)?;
        }
    }

    /// Begins to register an object; false while that cannot begin, since another one is being
    /// registered or the executor has not welcomed this caller. [`Self::registered`] tells what came of
    /// it. Never blocks.
    ///
    /// # Errors
    /// `BadProgram` for an object that is empty or far too large, `PeerLost`.
    pub fn begin_register(&mut self, object: &[u8]) -> Result<bool, Error> {
        if let Link::Over(error) = &self.link {
            return Err(error.clone());
        }
        if object.is_empty() || u32::try_from(object.len()).is_err() {
            let text = "it is empty, or larger than 4 GiB";
            return Err(Error::with(ErrorCode::BadProgram, text));
        }
        if self.upload.is_some() || !self.welcomed {
            return Ok(false);
        }
        self.upload = Some(Upload::of(object));
        self.go_on_registering();
        Ok(true)
    }

    /// The programs of the object that was being registered, once that is over; asked for once.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn registered(&mut self) -> Option<Result<Vec<Program>, Error>> {
        self.go_on_registering();
        let upload = self.upload.take_if(|upload| upload.end.is_some())?;
        let programs = upload.end?.and_then(|list| {
            programs::read(&list).ok_or_else(|| {
                Error::with(ErrorCode::ProtocolViolation, "the list of programs is none")
            })
        });
        if let Some(first) = programs.iter().flatten().next() {
            self.objects.insert(object_of(first.number), Arc::clone(&upload.object));
        }
        Some(programs)
    }

    /// Takes answers to parts, and sends the next ones.
    fn go_on_registering(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        while let Some(end) = upload.parts.front().and_then(|part| self.poll(*part)) {
            upload.parts.pop_front();
            match end {
                // The last part is answered with the programs.
                Ok(answer) if upload.sent == upload.object.len() && upload.parts.is_empty() => {
                    upload.end = Some(Ok(answer.output));
                }
                Ok(_) => {}
                Err(error) => {
                    upload.parts.drain(..).for_each(|part| self.forget(part));
                    upload.end = Some(Err(error));
                }
            }
        }
        let sent = upload.sent;
        self.send_parts(&mut upload);
        let goes = upload.sent > sent;
        self.upload = Some(upload);
        // Whoever waits for it sleeps before the next turn.
        if goes && let Some(link) = self.mail.flush() {
            self.lost(link, "the fabric cannot take its message");
        }
    }

    fn send_parts(&mut self, upload: &mut Upload) {
        let most = (self.message_bytes as usize).saturating_sub(Part::BYTES).max(1);
        let whole = upload.object.len();
        while upload.end.is_none() && upload.sent < whole && upload.parts.len() < PARTS_MAX {
            let offset = upload.sent;
            let part = &upload.object[offset..whole.min(offset + most)];
            let number = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
            let head = Part { whole: number(whole), offset: number(offset) }.encode();
            match self.ask(Verb::Register, &head, part) {
                Ok(Some(ticket)) => {
                    upload.parts.push_back(ticket);
                    upload.sent += part.len();
                }
                Ok(None) => return,
                Err(error) => {
                    upload.parts.drain(..).for_each(|part| self.forget(part));
                    upload.end = Some(Err(error));
                }
            }
        }
    }
}
