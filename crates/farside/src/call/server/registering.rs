//! Objects that callers register: their parts, their loading in turns with calls, and what comes of it.

use super::CallServer;
use crate::call::loaded::{self, Loaded, NotLoaded};
use crate::call::{programs, quota};
use farside_protocol::call::{Call, Part, Refused, Reply, Session, program_of};
use std::sync::Arc;

impl CallServer {
    /// Takes a part of an object; the last one registers its programs.
    pub(super) fn take(&mut self, call: Call, part: Part, bytes: &[u8]) {
        let Some(Some(side)) = self.sides.get_mut(call.session.0 as usize) else { return };
        if part.offset == 0 {
            side.upload = Vec::new();
        }
        let most = self.options.limits.file_bytes_max;
        if part.offset as usize != side.upload.len() || part.whole as usize > most {
            side.upload = Vec::new();
            self.machine.release(call.session);
            let text = format!("an object has at most {most} B, and its parts come in order");
            self.answer(call, Reply::refused(Refused::Object, 0), text.as_bytes());
            return;
        }
        if part.offset == 0
            && let Err((why, text)) = self.receive(call.session, part.whole)
        {
            self.answer(call, Reply::refused(why, 0), text.as_bytes());
            return;
        }
        let Some(Some(side)) = self.sides.get_mut(call.session.0 as usize) else { return };
        side.upload.extend_from_slice(bytes);
        if side.upload.len() < part.whole as usize {
            self.answer(call, Reply::returned(0, 0), &[]);
            return;
        }
        let object: Arc<[u8]> = std::mem::take(&mut side.upload).into();
        let tenant = side.tenant;
        if let Some(programs) = self.executor.programs_of(&object) {
            return self.loaded(call, &object, Ok(programs));
        }
        let first = self.at(Call { slot: 0, ..call });
        if self.executor.is_loading(first..first + self.machine.slots()) {
            let text =
                "another object of this caller is being registered: wait for its programs first";
            self.answer(call, Reply::refused(Refused::Programs, 0), text.as_bytes());
            return;
        }
        let registrations = self.executor.loading_of(tenant);
        if registrations >= self.options.registrations as usize {
            self.machine.release(call.session);
            let text = quota::registrations_full(registrations);
            self.answer(call, Reply::refused(Refused::Registrations, 0), text.as_bytes());
            return;
        }
        let at = self.at(call);
        self.executor.begin_loading((at, tenant), &object, &self.options.limits);
        let now_ns = self.fabric.time_ns();
        self.machine.load(call, now_ns);
    }

    /// An object of so many bytes is about to come: they count from now on.
    fn receive(&mut self, session: Session, bytes: u32) -> Result<(), (Refused, String)> {
        let taken = self.machine.taken(self.machine.tenant(session).unwrap_or(0));
        if !self.machine.may_register(session) {
            return Err((Refused::Programs, quota::programs_full(taken)));
        }
        if let Err(why) = self.machine.reserve(session, u64::from(bytes)) {
            let most = self.options.registering_bytes_max;
            let text = quota::no_room(why, bytes, taken, (self.machine.registering_bytes(), most));
            return Err((why, text));
        }
        let Some(Some(side)) = self.sides.get_mut(session.0 as usize) else { return Ok(()) };
        if side.upload.try_reserve_exact(bytes as usize).is_err() {
            self.machine.release(session);
            let text = format!("the executor has no memory for an object of {bytes} B: try later");
            return Err((Refused::Registrations, text));
        }
        Ok(())
    }

    /// An object is loaded, or cannot be.
    pub(super) fn loaded(
        &mut self,
        call: Call,
        object: &Arc<[u8]>,
        loaded: Result<Vec<Arc<Loaded>>, NotLoaded>,
    ) {
        self.machine.release(call.session);
        match loaded.and_then(|programs| self.register(call.session, object, programs)) {
            Ok(list) => self.answer(call, Reply::returned(0, 0), &list),
            Err(NotLoaded { why, text }) => {
                self.answer(call, Reply::refused(why, 0), text.as_bytes());
            }
        }
    }

    /// Registers all programs of an object, or none; the list of their numbers and names.
    fn register(
        &mut self,
        session: Session,
        object: &Arc<[u8]>,
        programs: Vec<Arc<Loaded>>,
    ) -> Result<Vec<u8>, NotLoaded> {
        // Somebody else may have been faster.
        let programs = self.executor.programs_of(object).unwrap_or(programs);
        let number = self.executor.number_for(object);
        let sizes = loaded::sizes(object, &programs);
        if let Err(why) = self.machine.register(session, number, sizes) {
            let name = programs.first().map_or("", |one| one.name());
            let taken = self.machine.taken(self.machine.tenant(session).unwrap_or(0));
            let text = quota::over(why, name, sizes, taken);
            return Err(NotLoaded { why, text });
        }
        self.executor.keep(object, number, session.0, &programs);
        let mut list = Vec::new();
        for (at, loaded) in (0..).zip(&programs) {
            programs::write(&mut list, program_of(number, at), loaded);
        }
        Ok(list)
    }
}
