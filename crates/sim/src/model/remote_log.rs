//! The model of holes of a log in remote memory: writers that reserve a place, write a record and commit it, stop or die
//! between any two of their requests, and readers that close what is not committed, also several at a time.
//!
//! Time is not modelled: a reader may close a place as soon as it has come to it, which is more than a lease allows, up to
//! any tail that it may have seen. A
//! granule of a record is one WRITE, in any order; its first word may look like any other, also like a free place. The
//! log's lock between readers is left out too.
//!
//! Checked: readers return the same records in the same order, each once; a record whose commit has succeeded is
//! returned, one whose commit was refused is not; a state in which nothing more can happen has readers at the end.

use crate::explorer::{Model, Violation};
use farside_protocol::remote_log::{CloseStep, HoleCloser, PlaceState};

/// A word at the beginning of a granule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LogWord {
    /// Free; also as a part of a record.
    Zero,
    Closing,
    Void(u64),
    /// The first word of the record of this writer.
    First(usize),
    /// A part of a record.
    Part,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LogWriterState {
    /// Writes: a bit for each granule behind the first that is written.
    Writes(u64),
    Committed,
    Refused,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ModelWriter {
    at: u64,
    granules: u64,
    /// Whether the granules of its record begin with a zero word.
    has_zeros: bool,
    state: LogWriterState,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ModelReader {
    at: u64,
    closer: Option<HoleCloser>,
    returned: Vec<usize>,
    deaths: u8,
}

/// A log: writers that have reserved places one behind the other, and readers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RemoteLog {
    words: Vec<LogWord>,
    writers: Vec<ModelWriter>,
    readers: Vec<ModelReader>,
    deaths: u8,
    wrong: Option<&'static str>,
}

/// A step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemoteLogAction {
    /// A writer's WRITE of this granule takes effect.
    Write(usize, u64),
    /// A writer's compare-and-swap of its first word.
    Commit(usize),
    /// A writer dies, or a request of it is never executed.
    Die(usize),
    /// A reader reads the word at its position, having read the tail when it was this, a place that is reserved later.
    Read(usize, u64),
    /// A reader does the next request of closing the place.
    Close(usize),
    /// A reader stops closing, as one whose lock is lost.
    Stop(usize),
}

impl RemoteLog {
    /// Creates a log in which writers have reserved places of these numbers of granules, each with or without zeros in its
    /// record; `deaths` of writers, and of readers within a close.
    pub fn new(writers: &[(u64, bool)], readers: usize, deaths: u8) -> Self {
        let mut next = 0;
        let writers = writers.iter().map(|(granules, has_zeros)| {
            let at = next;
            next += granules;
            let (granules, has_zeros) = (*granules, *has_zeros);
            ModelWriter { at, granules, has_zeros, state: LogWriterState::Writes(0) }
        });
        let writers: Vec<_> = writers.collect();
        let reader = ModelReader { at: 0, closer: None, returned: Vec::new(), deaths };
        Self {
            words: vec![LogWord::Zero; next as usize],
            writers,
            readers: vec![reader; readers],
            deaths,
            wrong: None,
        }
    }

    fn end(&self) -> u64 {
        self.words.len() as u64
    }

    fn place(&self, at: u64) -> PlaceState {
        match self.words[at as usize] {
            LogWord::Zero => PlaceState::Open,
            LogWord::Closing => PlaceState::Closing,
            LogWord::Void(granules) => PlaceState::Void(granules),
            LogWord::First(writer) => PlaceState::Record(self.writers[writer].granules),
            LogWord::Part => PlaceState::Other,
        }
    }

    fn read(&mut self, number: usize, end: u64) {
        let at = self.readers[number].at;
        let place = self.place(at);
        let reader = &mut self.readers[number];
        match place {
            PlaceState::Open | PlaceState::Closing => {
                reader.closer = Some(HoleCloser::new(at, end, 1));
            }
            PlaceState::Void(granules) => reader.at += granules,
            PlaceState::Record(granules) => {
                reader.at += granules;
                if let LogWord::First(writer) = self.words[at as usize] {
                    reader.returned.push(writer);
                }
            }
            PlaceState::Other => self.wrong = Some("a reader comes to a part of a record"),
        }
    }

    fn close(&mut self, number: usize) {
        let Some(mut closer) = self.readers[number].closer.take() else {
            return;
        };
        match closer.step() {
            CloseStep::Mark(at) => {
                let was = self.place(at);
                if was == PlaceState::Open {
                    self.words[at as usize] = LogWord::Closing;
                }
                closer.marked(was);
            }
            // A first word is stored after the rest of the record.
            CloseStep::Check(at, _) => {
                closer.checked(matches!(self.words[at as usize], LogWord::First(_)));
            }
            CloseStep::Seal(at, granules) => {
                if self.words[at as usize] == LogWord::Closing {
                    self.words[at as usize] = LogWord::Void(granules);
                }
                return;
            }
            CloseStep::Decided => return,
        }
        self.readers[number].closer = Some(closer);
    }

    fn check(&mut self) {
        for reader in &self.readers {
            for (number, writer) in self.writers.iter().enumerate() {
                let count = reader.returned.iter().filter(|it| **it == number).count();
                let is_behind = reader.at > writer.at;
                self.wrong = match writer.state {
                    LogWriterState::Committed if is_behind && count == 0 => {
                        Some("a record that was committed is left out")
                    }
                    LogWriterState::Refused if count > 0 => {
                        Some("a record that was refused is returned")
                    }
                    _ if count > 1 => Some("a record is returned twice"),
                    _ => self.wrong,
                };
            }
        }
        let mut all = self.readers.iter().map(|reader| &reader.returned);
        let longest = self.readers.iter().map(|it| &it.returned).max_by_key(|it| it.len());
        if longest.is_some_and(|longest| all.any(|one| !longest.starts_with(one))) {
            self.wrong = Some("readers return different records");
        }
    }
}

impl Model for RemoteLog {
    type Action = RemoteLogAction;

    fn enabled(&self) -> Vec<RemoteLogAction> {
        let mut actions = Vec::new();
        for (number, writer) in self.writers.iter().enumerate() {
            let LogWriterState::Writes(written) = writer.state else {
                continue;
            };
            let parts = 1..writer.granules;
            let missing = parts.clone().filter(|part| written >> part & 1 == 0);
            actions.extend(missing.map(|part| RemoteLogAction::Write(number, part)));
            if parts.clone().all(|part| written >> part & 1 == 1) {
                actions.push(RemoteLogAction::Commit(number));
            }
            if self.deaths > 0 {
                actions.push(RemoteLogAction::Die(number));
            }
        }
        for (number, reader) in self.readers.iter().enumerate() {
            match &reader.closer {
                Some(_) => {
                    actions.push(RemoteLogAction::Close(number));
                    if reader.deaths > 0 {
                        actions.push(RemoteLogAction::Stop(number));
                    }
                }
                None => {
                    let ends = self.writers.iter().map(|writer| writer.at + writer.granules);
                    let ends = ends.filter(|end| *end > reader.at);
                    actions.extend(ends.map(|end| RemoteLogAction::Read(number, end)));
                }
            }
        }
        actions
    }

    fn apply(&mut self, action: RemoteLogAction) {
        match action {
            RemoteLogAction::Write(number, part) => {
                let writer = &mut self.writers[number];
                if let LogWriterState::Writes(written) = &mut writer.state {
                    *written |= 1 << part;
                }
                let word = if writer.has_zeros { LogWord::Zero } else { LogWord::Part };
                self.words[(writer.at + part) as usize] = word;
            }
            RemoteLogAction::Commit(number) => {
                let word = &mut self.words[self.writers[number].at as usize];
                let is_open = *word == LogWord::Zero;
                if is_open {
                    *word = LogWord::First(number);
                }
                self.writers[number].state = match is_open {
                    true => LogWriterState::Committed,
                    false => LogWriterState::Refused,
                };
            }
            RemoteLogAction::Die(number) => {
                self.deaths -= 1;
                self.writers[number].state = LogWriterState::Dead;
            }
            RemoteLogAction::Read(number, end) => self.read(number, end),
            RemoteLogAction::Close(number) => self.close(number),
            RemoteLogAction::Stop(number) => {
                self.readers[number].deaths -= 1;
                self.readers[number].closer = None;
            }
        }
        self.check();
    }

    fn violation(&self) -> Option<Violation> {
        self.wrong.map(|text| Violation(text.to_owned()))
    }

    fn stuck(&self) -> Option<Violation> {
        let is_short = self.readers.iter().any(|reader| reader.at != self.end());
        is_short.then(|| Violation("a reader is not at the end".to_owned()))
    }
}
