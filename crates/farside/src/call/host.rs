//! Where the memory of an executor is that has none of its own.

use super::again::Again;
use super::hello::{Hello, Purpose};
use farside_base::LinkId;
use farside_protocol::call::SessionId;

/// The executor that has the memory, and how it is reached.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) name: String,
    state: State,
    /// It was reached once: from then on it is called again whenever it is lost.
    found: bool,
    again: Again,
    /// Why its memory is not there, once that is known.
    trouble: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is being called, or has answered.
    Linked(LinkId),
    /// It is called again then.
    Away { again_ns: u64 },
    /// It is not called again: it never was there, or what is there is no executor.
    Over,
}

impl Host {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: State::Away { again_ns: 0 },
            found: false,
            again: Again::default(),
            trouble: None,
        }
    }

    /// What is said to it.
    pub(super) const fn hello() -> Hello {
        Hello {
            purpose: Purpose::Memory,
            slots: 0,
            session: SessionId(0),
            tenant: String::new(),
            output_bytes: 0,
            room: None,
        }
    }

    pub(super) const fn called(&mut self, link: LinkId) {
        self.state = State::Linked(link);
    }

    /// Its memory is here.
    pub(super) fn found(&mut self) {
        (self.found, self.trouble, self.again) = (true, None, Again::default());
    }

    /// It is lost, or was not reached: it is called again where it was there before.
    pub(super) fn lost(&mut self, why: String, now_ns: u64) {
        self.trouble = Some(why);
        self.state = match self.found {
            true => State::Away { again_ns: now_ns.saturating_add(self.again.wait_ns()) },
            false => State::Over,
        };
    }

    /// What answers there cannot serve.
    pub(super) fn unfit(&mut self, why: String) {
        (self.trouble, self.state) = (Some(why), State::Over);
    }

    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When it is called again.
    pub(super) const fn again_ns(&self) -> Option<u64> {
        match self.state {
            State::Away { again_ns } => Some(again_ns),
            State::Linked(_) | State::Over => None,
        }
    }

    /// Whether this link leads to it.
    pub(super) fn is_at(&self, link: LinkId) -> bool {
        self.state == State::Linked(link)
    }
}
