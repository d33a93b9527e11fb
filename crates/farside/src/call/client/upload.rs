//! Registration of objects at the executor.

use super::{Caller, LinkState, Ticket};
use crate::call::transport::program_list::{self, Program};
use crate::patience::Patience;
use crate::{Error, ErrorCode};
use farside_protocol::call::{Part, Verb, object_of};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most parts of an object in flight at once; other calls need slots too.
const PARTS_MAX: usize = 8;

/// An object being sent to the executor.
pub(crate) struct Upload {
    object: Arc<[u8]>,
    /// Bytes sent.
    sent: usize,
    /// Parts in flight, in order.
    parts: VecDeque<Ticket>,
    /// The list of its programs, or why there is none.
    end: Option<Result<Vec<u8>, Error>>,
}

impl Upload {
    fn of(object: &[u8]) -> Self {
        Self { object: object.into(), sent: 0, parts: VecDeque::new(), end: None }
    }

    /// Whether a request carries one of its parts.
    pub(crate) fn awaits(&self, ticket: Ticket) -> bool {
        self.parts.contains(&ticket)
    }
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
        let mut patience = Patience::of_work(self.options.timeout);
        while !self.begin_register(object)? {
            self.turn()?;
            self.wait_a_little(&mut patience)?;
        }
        loop {
            // An error that ends the session is also the end of the registration.
            let _ = self.turn();
            if let Some(programs) = self.registered() {
                return programs;
            }
            self.wait_a_little(&mut patience)?;
        }
    }

    /// Begins to register an object. Returns false if another one is being registered or the executor has not
    /// accepted this caller yet. [`Self::registered`] returns the result. Never blocks.
    ///
    /// # Errors
    /// `BadProgram` for an object that is empty or far too large, `PeerLost`.
    pub fn begin_register(&mut self, object: &[u8]) -> Result<bool, Error> {
        if let LinkState::Closed(error) = &self.link {
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

    /// Returns the programs of the object being registered, once it has ended; the result is returned once.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn registered(&mut self) -> Option<Result<Vec<Program>, Error>> {
        self.go_on_registering();
        let upload = self.upload.take_if(|upload| upload.end.is_some())?;
        let programs = upload.end?.and_then(|list| {
            program_list::read(&list).ok_or_else(|| {
                Error::with(ErrorCode::ProtocolViolation, "the list of programs is malformed")
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
                // The answer to the last part is the list of programs.
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
        // A waiting thread sleeps before the next poll, so the parts are flushed now.
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
