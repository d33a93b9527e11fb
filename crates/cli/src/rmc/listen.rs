//! `farside rmc listen`: prints the notifications that programs send to topics.

use super::check::counted;
use super::connection::connect;
use super::run::hex;
use crate::settings::RmcListen;
use farside::call::{CallAnswer, Caller, Ticket};
use farside::{Error, ErrorCode};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::signals;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a wait for a notification lasts before the stop flag is checked again.
const PERIOD: Duration = Duration::from_millis(100);
/// Timeout of a subscription.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum topics of one listener.
const TOPICS_MAX: usize = 64;

/// Events, as `--json` prints them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum ListenEvent<'a> {
    /// Subscribed: from here on every notification is received, or counted as lost.
    Listening {
        address: &'a str,
        fabric: &'a str,
        security: &'a str,
        topics: &'a [u64],
    },
    /// A program has sent a notification to a topic.
    Notice {
        topic: u64,
        /// Notifications of this topic that were lost before this one.
        lost: u64,
        /// In hexadecimal.
        bytes: String,
    },
    Ended {
        notices: u64,
        lost: u64,
    },
}

impl ListenEvent<'_> {
    fn emit(&self, output: Output) {
        output.event(self, |_| self.lines());
    }

    /// Emits the event after which the command ends.
    fn emit_last(&self, output: Output) {
        output.last_event(self, |_| self.lines());
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Self::Listening { address, fabric, security, topics } => {
                let plural = if topics.len() == 1 { "" } else { "s" };
                let topics: Vec<_> = topics.iter().map(u64::to_string).collect();
                let topics = topics.join(", ");
                vec![format!(
                    "listening to topic{plural} {topics} at {address} over {fabric} ({security}); Ctrl-C ends"
                )]
            }
            Self::Notice { topic, lost, bytes } => {
                let length = bytes.len() / 2;
                let lost = (*lost > 0).then(|| {
                    format!("topic {topic}: {} lost: not read in time", counted(*lost, "notice"))
                });
                let notice = format!("topic {topic}: {length} B: {bytes}");
                lost.into_iter().chain([notice.trim_end_matches(": ").to_owned()]).collect()
            }
            Self::Ended { notices, lost: 0 } => {
                vec![format!("{} received", counted(*notices, "notice"))]
            }
            Self::Ended { notices, lost } => {
                vec![format!("{} received, {lost} lost", counted(*notices, "notice"))]
            }
        }
    }
}

/// A caller with its subscriptions.
struct Listener {
    caller: Caller,
    /// Topic of each pending request for the next notification.
    waiting: BTreeMap<Ticket, u64>,
    /// Notifications that arrived during subscription.
    early: VecDeque<(u64, CallAnswer)>,
}

pub(crate) fn run(arguments: &RmcListen, output: Output) -> Result<(), Failure> {
    let mut topics = arguments.topics.clone();
    let mut seen = BTreeSet::new();
    topics.retain(|topic| seen.insert(*topic));
    if topics.len() > TOPICS_MAX {
        let text = format!("{} topics: a listener has at most {TOPICS_MAX}", topics.len());
        return Err(Failure::usage(text));
    }
    let output = output.for_service()?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    signals::watch(move || {
        stopped.store(true, Ordering::Release);
        true
    })?;
    let Chosen { fabric, address, security } =
        choice::caller(&arguments.caller.choice, &arguments.to, choice::EXECUTOR)?;
    // One slot for each topic, and one to subscribe.
    let slots = u16::try_from(topics.len() + 1).unwrap_or(u16::MAX);
    let caller = connect(&fabric, &address, &arguments.caller, slots)?;
    let mut listener = Listener { caller, waiting: BTreeMap::new(), early: VecDeque::new() };
    for topic in &topics {
        listener.subscribe(*topic)?;
    }
    let fabric = fabric.name();
    ListenEvent::Listening { address: &address, fabric, security: &security, topics: &topics }
        .emit(output);
    let (mut notices, mut lost_all) = (0, 0);
    while !stop.load(Ordering::Acquire) && arguments.count.is_none_or(|most| notices < most) {
        let Some((topic, CallAnswer { result: lost, output: bytes })) = listener.next()? else {
            continue;
        };
        (notices, lost_all) = (notices + 1, lost_all + lost);
        ListenEvent::Notice { topic, lost, bytes: hex(&bytes) }.emit(output);
    }
    ListenEvent::Ended { notices, lost: lost_all }.emit_last(output);
    Ok(())
}

impl Listener {
    /// Subscribes to a topic, and returns after the executor has confirmed it. A `listen` is answered only by a
    /// notification, but a cancel is answered at once and keeps the subscription; so the first `listen` is cancelled.
    fn subscribe(&mut self, topic: u64) -> Result<(), Failure> {
        let first = self.listen(topic)?;
        let cancelled = self.caller.cancel(first).map_err(Failure::of_call)?;
        let cancelled = cancelled.ok_or_else(|| no_slot(self.waiting.len()))?;
        self.caller.wait(cancelled, TIMEOUT).map_err(Failure::of_call)?;
        match self.caller.wait(first, TIMEOUT) {
            Ok(answer) => self.early.push_back((topic, answer)),
            Err(error) if error.code == ErrorCode::CallCancelled => {}
            Err(error) => return Err(Failure::of_call(error)),
        }
        let next = self.listen(topic)?;
        self.waiting.insert(next, topic);
        Ok(())
    }

    fn listen(&mut self, topic: u64) -> Result<Ticket, Failure> {
        let ticket = self.caller.listen(topic).map_err(Failure::of_call)?;
        ticket.ok_or_else(|| no_slot(self.waiting.len()))
    }

    /// Returns the next notification and its topic; `None` if none arrives within [`PERIOD`].
    fn next(&mut self) -> Result<Option<(u64, CallAnswer)>, Failure> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        let (ticket, end) = match self.caller.wait_any(PERIOD) {
            Ok(ended) => ended,
            Err(error) if error.code == ErrorCode::TimedOut => return Ok(None),
            Err(error) => return Err(Failure::of_call(error)),
        };
        let answer = end.map_err(Failure::of_call)?;
        let Some(topic) = self.waiting.remove(&ticket) else { return Ok(None) };
        let next = self.listen(topic)?;
        self.waiting.insert(next, topic);
        Ok(Some((topic, answer)))
    }
}

/// Returns the error for a topic beyond the executor's slots.
fn no_slot(topics: usize) -> Failure {
    let text = format!(
        "the slots at the executor suffice for {}, besides one for requests: listen to fewer topics, or \
         serve with more --slots",
        counted(topics as u64, "topic")
    );
    Failure::of_call(Error::with(ErrorCode::OverQuota, text))
}
