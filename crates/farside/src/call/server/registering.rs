//! Registration of objects: reception of their parts, verification in slices between calls, and the reply.
//!
//! Invariants: a session either receives an object or has one verified, never both; while it does, it holds a
//! reservation of that object's bytes. The protocol machine releases the reservation of a verification however it
//! ends ([`Server::answer`](farside_protocol::call::Server::answer)); dropping an upload releases the reservation
//! of the upload.

use super::{CallServer, quota};
use crate::call::executor::loading::{self, LoadError, LoadedProgram};
use crate::call::transport::program_list;
use farside_protocol::call::{CallId, Part, Refused, Reply, Session, program_of};
use std::sync::Arc;

/// An object of which parts are missing.
#[derive(Debug)]
pub(super) struct ReceivedObject {
    /// Size of the object, as stated by its first part.
    whole: u32,
    bytes: Vec<u8>,
    /// When its last part arrived.
    at_ns: u64,
}

impl CallServer {
    /// Takes a part of an object; the last part starts verification and registration.
    pub(super) fn take(&mut self, call: CallId, part: Part, bytes: &[u8]) {
        if part.offset == 0
            && let Err((why, text)) = self.begin_upload(call, part.whole)
        {
            self.answer(call, Reply::refused(why, 0), text.as_bytes());
            return;
        }
        let now_ns = self.arrival_ns();
        let state = self.links.session_mut(call.session);
        let upload = state.and_then(|state| state.upload.as_mut()).filter(|upload| {
            upload.whole == part.whole && upload.bytes.len() == part.offset as usize
        });
        let Some(upload) = upload else {
            self.drop_upload(call.session);
            let text = "parts of an object come in order and name the same size: register it again";
            self.answer(call, Reply::refused(Refused::Object, 0), text.as_bytes());
            return;
        };
        upload.bytes.extend_from_slice(bytes);
        upload.at_ns = now_ns;
        if upload.bytes.len() < upload.whole as usize {
            self.answer(call, Reply::returned(0, 0), &[]);
            return;
        }
        self.received(call);
    }

    /// Handles an object all of whose parts were received.
    fn received(&mut self, call: CallId) {
        let Some(state) = self.links.session_mut(call.session) else { return };
        let Some(upload) = state.upload.take() else { return };
        let (object, tenant): (Arc<[u8]>, _) = (upload.bytes.into(), state.tenant);
        if let Some(programs) = self.executor.programs_of(&object) {
            return self.loaded(call, &object, Ok(programs));
        }
        let registrations = self.executor.loading_of(tenant);
        if registrations >= self.options.registrations as usize {
            self.machine.release(call.session);
            let text = quota::registrations_full(registrations);
            self.answer(call, Reply::refused(Refused::Registrations, 0), text.as_bytes());
            return;
        }
        let at = self.links.slot_index(call);
        self.executor.begin_loading((at, tenant), &object, &self.options.limits);
        let now_ns = self.links.messages.time_ns();
        self.machine.load(call, now_ns);
    }

    /// Begins the upload of an object of this size, reserving its bytes. Replaces an incomplete upload of the
    /// session.
    fn begin_upload(&mut self, call: CallId, bytes: u32) -> Result<(), (Refused, String)> {
        let session = call.session;
        self.drop_upload(session);
        let most = self.options.limits.file_bytes_max;
        if bytes as usize > most {
            return Err((
                Refused::Object,
                format!("an object has at most {most} B, not {bytes} B"),
            ));
        }
        let first = self.links.slot_index(CallId { slot: 0, ..call });
        if self.executor.is_loading(first..first + self.machine.slots()) {
            let text =
                "another object of this caller is being registered: wait for its programs first";
            return Err((Refused::Programs, text.to_owned()));
        }
        self.drop_overdue_uploads();
        let taken = self.machine.taken(self.machine.tenant(session).unwrap_or(0));
        if !self.machine.may_register(session) {
            return Err((Refused::Programs, quota::programs_full(taken)));
        }
        if let Err(why) = self.machine.reserve(session, u64::from(bytes)) {
            let most = self.options.registering_bytes_max;
            let text = quota::no_room(why, bytes, taken, (self.machine.registering_bytes(), most));
            return Err((why, text));
        }
        let mut upload =
            ReceivedObject { whole: bytes, bytes: Vec::new(), at_ns: self.arrival_ns() };
        if upload.bytes.try_reserve_exact(bytes as usize).is_err() {
            self.machine.release(session);
            let text = format!("the executor has no memory for an object of {bytes} B: try later");
            return Err((Refused::Registrations, text));
        }
        match self.links.session_mut(session) {
            Some(state) => state.upload = Some(upload),
            None => self.machine.release(session),
        }
        Ok(())
    }

    /// Drops the incomplete object of a session and releases its reservation.
    fn drop_upload(&mut self, session: Session) {
        let state = self.links.session_mut(session);
        if state.and_then(|state| state.upload.take()).is_some() {
            self.machine.release(session);
        }
    }

    /// Drops every upload that received no part for [`upload_timeout`](super::ServerOptions::upload_timeout).
    fn drop_overdue_uploads(&mut self) {
        let now_ns = self.arrival_ns();
        let timeout = self.options.upload_timeout;
        let is_overdue = |upload: &ReceivedObject| {
            u128::from(now_ns.saturating_sub(upload.at_ns)) >= timeout.as_nanos()
        };
        let sessions = self.links.sessions();
        let overdue = sessions.filter(|(_, state)| state.upload.as_ref().is_some_and(is_overdue));
        let overdue: Vec<_> = overdue.map(|(session, _)| session).collect();
        overdue.into_iter().for_each(|session| self.drop_upload(session));
    }

    /// Answers a registration whose object was loaded, or could not be.
    pub(super) fn loaded(
        &mut self,
        call: CallId,
        object: &Arc<[u8]>,
        loaded: Result<Vec<Arc<LoadedProgram>>, LoadError>,
    ) {
        self.machine.release(call.session);
        match loaded.and_then(|programs| self.register(call.session, object, programs)) {
            Ok(list) => self.answer(call, Reply::returned(0, 0), &list),
            Err(LoadError { why, text }) => {
                self.answer(call, Reply::refused(why, 0), text.as_bytes());
            }
        }
    }

    /// Registers all programs of an object, or none; returns the list of their numbers and names.
    fn register(
        &mut self,
        session: Session,
        object: &Arc<[u8]>,
        programs: Vec<Arc<LoadedProgram>>,
    ) -> Result<Vec<u8>, LoadError> {
        // Another session may have registered the same object meanwhile.
        let programs = self.executor.programs_of(object).unwrap_or(programs);
        let number = self.executor.number_for(object);
        let sizes = loading::sizes(object, &programs);
        if let Err(why) = self.machine.register(session, number, sizes) {
            let name = programs.first().map_or("", |one| one.name());
            let taken = self.machine.taken(self.machine.tenant(session).unwrap_or(0));
            let text = quota::over(why, name, sizes, taken);
            return Err(LoadError { why, text });
        }
        self.executor.keep(object, number, session.0, &programs);
        let mut list = Vec::new();
        for (at, loaded) in (0..).zip(&programs) {
            program_list::write(&mut list, program_of(number, at), loaded);
        }
        Ok(list)
    }
}
