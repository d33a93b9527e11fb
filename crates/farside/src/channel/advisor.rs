//! Selection of channels by requirements (001 §5), from the measured table.

use super::table::{Count, Growth, Row, measured};
use super::{Acknowledge, Family, Kind, Options, Shape, Signal, can_sleep};
use farside_base::Capabilities;
use std::fmt;
use std::str::FromStr;

/// A feature that a program needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Need {
    /// Messages are sent in place, without copies.
    ZeroCopySend,
    /// The initiator of the transfer chooses the destination of a message.
    ZeroCopyReceive,
    /// The receiver sleeps until a message arrives.
    Blocking,
    /// Short messages take less memory.
    VariableSize,
    /// The sender sends by stores alone: it posts no request and no receive (001 §3).
    PassiveSender,
    /// The receiver receives by loads and stores alone: it posts no request and no receive, and so polls no
    /// completion queue (001 §3). Connections and losses are detected by occasional polls.
    PassiveReceiver,
    /// One half round trip.
    OneTrip,
}

impl Need {
    /// All features.
    pub const ALL: [Self; 7] = [
        Self::ZeroCopySend,
        Self::ZeroCopyReceive,
        Self::Blocking,
        Self::VariableSize,
        Self::PassiveSender,
        Self::PassiveReceiver,
        Self::OneTrip,
    ];

    /// Returns its name, as in `farside channels --need`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopySend => "zero-copy-send",
            Self::ZeroCopyReceive => "zero-copy-recv",
            Self::Blocking => "blocking",
            Self::VariableSize => "variable",
            Self::PassiveSender => "passive-sender",
            Self::PassiveReceiver => "passive-receiver",
            Self::OneTrip => "one-trip",
        }
    }

    /// Returns why a channel of this shape lacks it; `None` if it has it.
    fn objection(self, row: &Row, shape: &Shape) -> Option<String> {
        let sleeps = can_sleep(row.kind, shape);
        let lacks = match self {
            Self::ZeroCopySend => !row.zero_copy_send.can_be_had(),
            Self::ZeroCopyReceive => !row.zero_copy_receive.can_be_had(),
            Self::Blocking => !sleeps,
            Self::VariableSize => !row.variable_size.can_be_had(),
            Self::PassiveSender => row.sender_requests.least() > 0,
            Self::PassiveReceiver => row.receiver_requests.least() > 0 || sleeps,
            Self::OneTrip => row.half_round_trips != Count::Exactly(1),
        };
        lacks.then(|| match self {
            Self::ZeroCopySend => "copies what it sends".to_owned(),
            Self::ZeroCopyReceive => {
                "neither end can choose the destination of a message".to_owned()
            }
            Self::Blocking => "its receiver must poll".to_owned(),
            Self::VariableSize => "a short message takes the memory of the longest".to_owned(),
            Self::PassiveSender => format!("its sender posts {} requests", row.sender_requests),
            Self::PassiveReceiver if row.receiver_requests.least() == 0 => {
                "its receiver posts receives, and takes messages from a completion queue".to_owned()
            }
            Self::PassiveReceiver => {
                format!("its receiver posts {} requests", row.receiver_requests)
            }
            Self::OneTrip => format!("takes {} half round trips", row.half_round_trips),
        })
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error: no need has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownNeed(String);

impl fmt::Display for UnknownNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Need::ALL.iter().map(|need| need.name()).collect();
        write!(f, "unknown need `{}`; the needs are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownNeed {}

impl FromStr for Need {
    type Err = UnknownNeed;

    fn from_str(name: &str) -> Result<Self, UnknownNeed> {
        let found = Self::ALL.into_iter().find(|need| need.name() == name);
        found.ok_or_else(|| UnknownNeed(name.to_owned()))
    }
}

/// The requirements of a program. Start from `default`, and set them by the methods with their names.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Requirements {
    /// Features that it needs.
    pub needs: Vec<Need>,
    /// Senders of one receiver.
    pub fan_in: u16,
    /// Receivers of one sender.
    pub fan_out: u16,
    /// Most bytes of a message.
    pub message_bytes_max: u32,
}

impl Default for Requirements {
    fn default() -> Self {
        Self { needs: Vec::new(), fan_in: 1, fan_out: 1, message_bytes_max: 1024 }
    }
}

/// Number of peers from which memory per peer rejects a channel.
const MANY: u16 = 16;

/// A candidate: a channel that meets the requirements.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// The kind of channel.
    pub kind: Kind,
    /// Options that meet the requirements; equal at both ends.
    pub options: Options,
    /// Remarks on its use, if any.
    pub remarks: Vec<String>,
}

/// A rejected channel.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rejection {
    /// The kind of channel.
    pub kind: Kind,
    /// The reasons; never empty.
    pub reasons: Vec<String>,
}

/// The twenty channels, divided into candidates and rejected ones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Advice {
    /// Candidates, best first: fewest half round trips, then memory independent of the number of peers, then fewest
    /// requests, then table order.
    pub candidates: Vec<Candidate>,
    /// Rejected channels, in table order.
    pub rejections: Vec<Rejection>,
}

/// Ranks the twenty channels for a program and a fabric.
///
/// ```
/// use farside::channel::{Kind, Need, Receiver, Requirements, Sender, advise};
/// use std::time::Duration;
/// # fn main() -> Result<(), farside::Error> {
/// # let name = format!("advice-{}", std::process::id());
/// # let second = Duration::from_secs(20);
/// let fabric = farside::fabrics::shared_memory()?;
/// let requirements = Requirements::default().needs([Need::Blocking, Need::VariableSize]);
/// let advice = advise(&requirements, &fabric.capabilities());
/// let best = &advice.candidates[0];
/// assert_eq!(best.kind, Kind::RingImmediate);
///
/// let mut receiver = Receiver::listen(fabric.clone(), &name, &best.options)?;
/// let mut sender = Sender::connect(fabric, &name, &best.options)?;
/// receiver.wait_for_peers(1, second)?;
/// sender.send_wait(b"as advised", second)?;
/// let message = receiver.receive(second)?;
/// assert_eq!(message.to_vec(), b"as advised");
/// receiver.release(message);
/// # Ok(())
/// # }
/// ```
pub fn advise(requirements: &Requirements, has: &Capabilities) -> Advice {
    let mut advice = Advice::default();
    for kind in Kind::ALL {
        let (row, options) = (measured(kind), requirements.options(kind));
        let reasons = objections(row, requirements, &options, has);
        if reasons.is_empty() {
            let remarks = remarks(row, requirements, &options, has);
            advice.candidates.push(Candidate { kind, options, remarks });
        } else {
            advice.rejections.push(Rejection { kind, reasons });
        }
    }
    advice.candidates.sort_by_key(|candidate| {
        let row = measured(candidate.kind);
        let requests = row.sender_requests.least() + row.receiver_requests.least();
        (
            row.half_round_trips.least(),
            grows(row, requirements, &candidate.options),
            requests,
            candidate.kind,
        )
    });
    advice
}

impl Requirements {
    /// Sets the features that it needs.
    #[must_use]
    pub fn needs(self, needs: impl Into<Vec<Need>>) -> Self {
        Self { needs: needs.into(), ..self }
    }

    /// Sets the number of senders of one receiver.
    #[must_use]
    pub fn fan_in(self, fan_in: u16) -> Self {
        Self { fan_in, ..self }
    }

    /// Sets the number of receivers of one sender.
    #[must_use]
    pub fn fan_out(self, fan_out: u16) -> Self {
        Self { fan_out, ..self }
    }

    /// Sets the most bytes of a message.
    #[must_use]
    pub fn message_bytes_max(self, message_bytes_max: u32) -> Self {
        Self { message_bytes_max, ..self }
    }

    /// Returns the options with which a channel meets the requirements, if it can.
    fn options(&self, kind: Kind) -> Options {
        let needs = |need| self.needs.contains(&need);
        let peers = self.fan_in.max(self.fan_out);
        let mut options = Options::new(kind, self.message_bytes_max).peers(peers);
        if kind.has_second_channel() {
            // A receiver either sleeps until a completion arrives or polls memory.
            options.signal = match (needs(Need::Blocking), needs(Need::PassiveReceiver)) {
                (true, _) => Some(Signal::Message),
                (false, true) => Some(Signal::Word),
                (false, false) => None,
            };
        }
        // Acknowledgement must not cost the passive end a request.
        if needs(Need::PassiveReceiver) && kind.family() != Family::SendReceive {
            options.acknowledge = Some(Acknowledge::ReadTail);
        } else if needs(Need::PassiveSender) && kind.shares_sender() {
            options.acknowledge = Some(Acknowledge::Word);
        }
        options.offers_only = needs(Need::ZeroCopyReceive) && kind.shares_sender();
        options
    }
}

/// Whether the memory of a channel grows with the peers of this program.
fn grows(row: &Row, requirements: &Requirements, options: &Options) -> bool {
    (requirements.fan_in > 1 && grows_with_senders(row, options))
        || (requirements.fan_out > 1 && row.memory_one_to_many == Growth::Linear)
}

/// Whether the receiver keeps memory for each sender; none is needed with `offers_only`.
fn grows_with_senders(row: &Row, options: &Options) -> bool {
    row.memory_many_to_one == Growth::Linear && !options.offers_only
}

fn objections(
    row: &Row,
    requirements: &Requirements,
    options: &Options,
    has: &Capabilities,
) -> Vec<String> {
    let (kind, shape) = (row.kind, options.shape(has));
    let mut reasons: Vec<String> =
        requirements.needs.iter().filter_map(|need| need.objection(row, &shape)).collect();
    if let Err(missing) = kind.requirements(&shape).check(has) {
        reasons.push(format!("the fabric lacks `{}`", missing.0));
    }
    if let Err(bad) = shape.check(kind) {
        reasons.push(bad.to_string());
    }
    if kind == Kind::SendBufferless && requirements.message_bytes_max > 4 {
        reasons.push("a message is an integer of 4 bytes".to_owned());
    }
    let largest = u64::from(requirements.message_bytes_max);
    if !matches!(kind, Kind::SendBufferless | Kind::Send | Kind::SendShared)
        && largest > has.transfer_bytes_max
    {
        reasons.push(format!("the fabric moves at most {} bytes at once", has.transfer_bytes_max));
    }
    if requirements.fan_in >= MANY && grows_with_senders(row, options) {
        let unless = match kind.shares_sender() {
            true => ", unless it takes offers only (need zero-copy-recv)",
            false => "",
        };
        reasons.push(format!("the receiver's memory grows with the senders{unless}"));
    }
    if requirements.fan_out >= MANY && row.memory_one_to_many == Growth::Linear {
        reasons.push("the sender's memory grows with the receivers".to_owned());
    }
    reasons
}

fn remarks(
    row: &Row,
    requirements: &Requirements,
    options: &Options,
    has: &Capabilities,
) -> Vec<String> {
    let mut remarks = Vec::new();
    let usual = Options::new(row.kind, requirements.message_bytes_max).shape(has);
    let shape = options.shape(has);
    if shape.signal != usual.signal {
        remarks.push(match shape.signal {
            Signal::Message => {
                "set `signal` to `Message`, so that the receiver can sleep".to_owned()
            }
            Signal::Word => "set `signal` to `Word`, so that it takes no receive".to_owned(),
        });
    }
    if shape.acknowledge != usual.acknowledge {
        let acknowledge = shape.acknowledge;
        remarks.push(format!(
            "set `acknowledge` to `{acknowledge:?}`, for which the passive end posts nothing"
        ));
    }
    if options.offers_only {
        remarks
            .push("set `offers_only`: messages are fetched into memory of your choice".to_owned());
    }
    if grows(row, requirements, options) {
        remarks.push("memory grows with the peers".into());
    }
    if !has.message_order && row.kind.family() != Family::ReadRing {
        remarks.push("the fabric does not order messages: they may arrive in any order".into());
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::super::table::{Feature, PAPER};
    use super::*;
    use farside_fabric::{Fabric, MemFabric};

    #[test]
    fn every_channel_is_candidate_or_rejected_with_reasons() {
        let requirements = Requirements {
            needs: vec![Need::ZeroCopyReceive, Need::Blocking, Need::VariableSize],
            fan_in: 64,
            ..Requirements::default()
        };
        let advice = advise(&requirements, &MemFabric::new().capabilities());
        assert_eq!(advice.candidates.len() + advice.rejections.len(), 20);
        assert!(advice.rejections.iter().all(|rejection| !rejection.reasons.is_empty()));
        let kinds: Vec<Kind> = advice.candidates.iter().map(|candidate| candidate.kind).collect();
        assert_eq!(kinds, [Kind::ReadSlotNotify, Kind::ReadRingNotify]);
    }

    fn candidates(needs: &[Need]) -> Vec<Kind> {
        let requirements = Requirements { needs: needs.to_vec(), ..Requirements::default() };
        let advice = advise(&requirements, &MemFabric::new().capabilities());
        let mut kinds: Vec<Kind> =
            advice.candidates.iter().map(|candidate| candidate.kind).collect();
        kinds.sort_unstable();
        kinds
    }

    /// 001 §3: no work requests and no blocking receive. The requests that the ends post are measured in
    /// `crates/sim/tests/channel_table.rs`.
    #[test]
    fn passive_ends_match_the_paper() {
        let by_paper = |passive: fn(&Row) -> bool| -> Vec<Kind> {
            PAPER.iter().filter(|row| passive(row)).map(|row| row.kind).collect()
        };
        let none = |count: Count| count == Count::Exactly(0);
        let senders = by_paper(|row| row.sender_requests == Count::Exactly(0));
        assert_eq!(candidates(&[Need::PassiveSender]), senders);
        let receivers: Vec<Kind> = by_paper(|row| row.blocking != Feature::Yes)
            .into_iter()
            .filter(|kind| none(measured(*kind).receiver_requests))
            .collect();
        assert_eq!(candidates(&[Need::PassiveReceiver]), receivers);
        assert_eq!(receivers.len(), 6);
        assert_eq!(candidates(&[Need::PassiveReceiver, Need::Blocking]), []);
    }

    #[test]
    fn options_of_candidates_meet_the_needs() {
        let has = MemFabric::new().capabilities();
        let advised = |kind, needs: &[Need]| {
            let requirements = Requirements { needs: needs.to_vec(), ..Requirements::default() };
            let found =
                advise(&requirements, &has).candidates.into_iter().find(|one| one.kind == kind);
            found.unwrap().options
        };
        let passive = advised(Kind::RingInlined, &[Need::PassiveReceiver]);
        assert_eq!(passive.acknowledge, Some(Acknowledge::ReadTail));
        let blocking = advised(Kind::WriteSlotDetached, &[Need::Blocking]);
        assert_eq!(blocking.signal, Some(Signal::Message));
        assert!(advised(Kind::ReadRingNotify, &[Need::ZeroCopyReceive]).offers_only);
        assert_eq!(advised(Kind::RingInlined, &[]), Options::new(Kind::RingInlined, 1024));
    }

    #[test]
    fn memory_per_sender_is_rejected_unless_offers_only() {
        let requirements = Requirements { fan_in: 64, ..Requirements::default() };
        let advice = advise(&requirements, &MemFabric::new().capabilities());
        let found = advice
            .rejections
            .iter()
            .find(|rejection| rejection.kind == Kind::ReadRingNotify)
            .unwrap();
        assert!(found.reasons[0].contains("unless it takes offers only"), "{:?}", found.reasons);
    }

    #[test]
    fn need_names_round_trip() {
        for need in Need::ALL {
            assert_eq!(need.name().parse(), Ok(need));
        }
        assert!("zero".parse::<Need>().unwrap_err().to_string().contains("zero-copy-send"));
    }
}
