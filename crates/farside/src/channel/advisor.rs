//! Which channels fit a need (001 §5): by the measured table, never by name.

use super::table::{Count, Feature, Growth, Row, measured};
use super::{Kind, Options};
use farside_base::Capabilities;
use std::fmt;
use std::str::FromStr;

/// A feature that a program needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Need {
    /// Messages are sent from where they lie.
    ZeroCopySend,
    /// Whoever starts the transfer chooses where a message goes.
    ZeroCopyReceive,
    /// The receiver sleeps until a message comes.
    Blocking,
    /// Short messages take little memory.
    VariableSize,
    /// The sender posts no request.
    PassiveSender,
    /// The receiver posts no request.
    PassiveReceiver,
    /// One half round trip.
    OneTrip,
}

impl Need {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ZeroCopySend,
        Self::ZeroCopyReceive,
        Self::Blocking,
        Self::VariableSize,
        Self::PassiveSender,
        Self::PassiveReceiver,
        Self::OneTrip,
    ];

    /// Its name, as in `farside channels --need`.
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

    /// Why a channel does not have it; `None` if it has.
    fn objection(self, row: &Row) -> Option<String> {
        let lacks = match self {
            Self::ZeroCopySend => !row.zero_copy_send.can_be_had(),
            Self::ZeroCopyReceive => !row.zero_copy_receive.can_be_had(),
            Self::Blocking => !row.blocking.can_be_had(),
            Self::VariableSize => !row.variable_size.can_be_had(),
            Self::PassiveSender => row.sender_requests.least() > 0,
            Self::PassiveReceiver => row.receiver_requests.least() > 0,
            Self::OneTrip => row.half_round_trips != Count::Exactly(1),
        };
        lacks.then(|| match self {
            Self::ZeroCopySend => "copies what it sends".to_owned(),
            Self::ZeroCopyReceive => "nobody can choose where a message goes".to_owned(),
            Self::Blocking => "its receiver must poll".to_owned(),
            Self::VariableSize => "a short message takes the memory of the longest".to_owned(),
            Self::PassiveSender => format!("its sender posts {} requests", row.sender_requests),
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

/// No need has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownNeed(String);

impl fmt::Display for UnknownNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Need::ALL.iter().map(|need| need.name()).collect();
        write!(f, "no need is called `{}`; there are {}", self.0, names.join(", "))
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

/// What a program looks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Features that it needs.
    pub needs: Vec<Need>,
    /// Senders of one receiver.
    pub fan_in: u16,
    /// Receivers of one sender.
    pub fan_out: u16,
    /// Most bytes of a message.
    pub message_bytes_max: u32,
}

impl Default for Wish {
    fn default() -> Self {
        Self { needs: Vec::new(), fan_in: 1, fan_out: 1, message_bytes_max: 1024 }
    }
}

/// Peers from which memory that grows with them counts as a reason against a channel.
const MANY: u16 = 16;

/// A channel that fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fitting {
    /// Which.
    pub kind: Kind,
    /// What to watch, if anything.
    pub remarks: Vec<String>,
}

/// A channel that does not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// Which.
    pub kind: Kind,
    /// Why; never empty.
    pub reasons: Vec<String>,
}

/// All twenty channels, sorted out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Advice {
    /// Those that fit, best first: fewest half round trips, then memory that does not grow with the
    /// peers there are, then fewest requests, then in the order of the table.
    pub fitting: Vec<Fitting>,
    /// Those that do not, in the order of the table.
    pub unfit: Vec<Unfit>,
}

/// Sorts the twenty channels for a program and a fabric.
///
/// ```
/// use farside::channel::{Kind, Need, Wish, advise};
/// use farside_fabric::{Fabric, MemFabric};
///
/// let wish = Wish { needs: vec![Need::Blocking, Need::VariableSize], ..Wish::default() };
/// let advice = advise(&wish, &MemFabric::new().capabilities());
/// assert_eq!(advice.fitting[0].kind, Kind::RingImmediate);
/// ```
pub fn advise(wish: &Wish, has: &Capabilities) -> Advice {
    let mut advice = Advice::default();
    for kind in Kind::ALL {
        let row = measured(kind);
        let reasons = objections(row, wish, has);
        if reasons.is_empty() {
            advice.fitting.push(Fitting { kind, remarks: remarks(row, wish, has) });
        } else {
            advice.unfit.push(Unfit { kind, reasons });
        }
    }
    advice.fitting.sort_by_key(|fitting| {
        let row = measured(fitting.kind);
        let requests = row.sender_requests.least() + row.receiver_requests.least();
        (row.half_round_trips.least(), grows(row, wish), requests, fitting.kind)
    });
    advice
}

/// Whether its memory grows with the peers of this program.
fn grows(row: &Row, wish: &Wish) -> bool {
    (wish.fan_in > 1 && row.memory_many_to_one == Growth::Linear)
        || (wish.fan_out > 1 && row.memory_one_to_many == Growth::Linear)
}

fn objections(row: &Row, wish: &Wish, has: &Capabilities) -> Vec<String> {
    let kind = row.kind;
    let mut reasons: Vec<String> =
        wish.needs.iter().filter_map(|need| need.objection(row)).collect();
    let peers = wish.fan_in.max(wish.fan_out);
    let options = Options::new(kind, wish.message_bytes_max).peers(peers);
    let shape = options.shape(has);
    if let Err(missing) = kind.requirements(&shape).check(has) {
        reasons.push(format!("the fabric lacks `{}`", missing.0));
    }
    if let Err(bad) = shape.check(kind) {
        reasons.push(bad.to_string());
    }
    if kind == Kind::SendBufferless && wish.message_bytes_max > 4 {
        reasons.push("a message is an integer of 4 bytes".to_owned());
    }
    let largest = u64::from(wish.message_bytes_max);
    if !matches!(kind, Kind::SendBufferless | Kind::Send | Kind::SendShared)
        && largest > has.transfer_bytes_max
    {
        reasons.push(format!("the fabric moves at most {} bytes at once", has.transfer_bytes_max));
    }
    if wish.fan_in >= MANY && row.memory_many_to_one == Growth::Linear {
        reasons.push("the receiver's memory grows with the senders".to_owned());
    }
    if wish.fan_out >= MANY && row.memory_one_to_many == Growth::Linear {
        reasons.push("the sender's memory grows with the receivers".to_owned());
    }
    reasons
}

fn remarks(row: &Row, wish: &Wish, has: &Capabilities) -> Vec<String> {
    let mut remarks = Vec::new();
    let shape = Options::new(row.kind, wish.message_bytes_max).shape(has);
    if wish.needs.contains(&Need::Blocking)
        && row.blocking == Feature::SecondChannel
        && shape.signal != super::Signal::Message
    {
        remarks.push(
            "announce messages by messages (`signal`), so that the receiver can sleep".into(),
        );
    }
    if grows(row, wish) {
        remarks.push("memory grows with the peers".into());
    }
    if !has.message_order && row.kind.family() != super::Family::ReadRing {
        remarks.push("the fabric keeps no order: messages may come in any".into());
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_fabric::{Fabric, MemFabric};

    #[test]
    fn every_channel_is_on_one_side_and_says_why() {
        let wish = Wish {
            needs: vec![Need::ZeroCopyReceive, Need::Blocking, Need::VariableSize],
            fan_in: 64,
            ..Wish::default()
        };
        let advice = advise(&wish, &MemFabric::new().capabilities());
        assert_eq!(advice.fitting.len() + advice.unfit.len(), 20);
        assert!(advice.unfit.iter().all(|unfit| !unfit.reasons.is_empty()));
        let kinds: Vec<Kind> = advice.fitting.iter().map(|fitting| fitting.kind).collect();
        assert_eq!(kinds, [Kind::ReadSlotNotify, Kind::ReadRingNotify]);
    }

    #[test]
    fn names_of_needs_lead_back() {
        for need in Need::ALL {
            assert_eq!(need.name().parse(), Ok(need));
        }
        assert!("zero".parse::<Need>().unwrap_err().to_string().contains("zero-copy-send"));
    }
}
