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
            side.upload.clear();
            if !self.machine.may_register(call.session) {
                let tenant = self.machine.tenant(call.session).unwrap_or(0);
                let text = quota::programs_full(self.machine.taken(tenant));
                self.answer(call, Reply::refused(Refused::Programs, 0), text.as_bytes());
                return;
            }
        }
        let most = self.options.limits.file_bytes_max;
        if part.offset as usize != side.upload.len() || part.whole as usize > most {
            side.upload.clear();
            let text = format!("an object has at most {most} B, and its parts come in order");
            self.answer(call, Reply::refused(Refused::Object, 0), text.as_bytes());
            return;
        }
        side.upload.extend_from_slice(bytes);
        if side.upload.len() < part.whole as usize {
            self.answer(call, Reply::returned(0, 0), &[]);
            return;
        }
        let object: Arc<[u8]> = std::mem::take(&mut side.upload).into();
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
        let at = self.at(call);
        self.executor.begin_loading(at, &object, &self.options.limits);
        let now_ns = self.fabric.time_ns();
        self.machine.load(call, now_ns);
    }

    /// An object is loaded, or cannot be.
    pub(super) fn loaded(
        &mut self,
        call: Call,
        object: &Arc<[u8]>,
        loaded: Result<Vec<Arc<Loaded>>, NotLoaded>,
    ) {
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
