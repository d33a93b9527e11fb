//! What `farside bench channels` takes.

use super::{Places, message_bytes, seconds};
use clap::{Args, ValueEnum};
use farside::channel::{DeviceWords, Kind, Options, UnknownKind};
use farside_sim::fabric::INFINIBAND;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench channels
  farside bench channels --channel ring-inlined,ring-immediate --bytes 64 --seconds 2
  farside bench channels --pattern N:1 --clients 8 --channel shared-ring-immediate,ring-immediate
  farside bench channels --profile connectx5 --plot channels.svg
  farside bench channels --fabric tcp
  farside bench channels --on 10.0.0.2:7401 --key cluster.key --pattern 1:1
  farside bench channels --json | jq '.figures[] | [.channel, .message_bytes, .latency_ns.median]'

Figures of paper 001, in the virtual time of its cluster (--profile connectx5: nothing is measured on an
adapter); without --profile the same is measured on this machine, but for words at an adapter, which take
--fabric verbs. Each takes --json, and --plot FILE.svg:
  4   farside bench channels --profile connectx5 --channel send --pattern 1:1 --copy
  5   farside bench channels --profile connectx5 --pattern 1:1
  6   farside bench channels --profile connectx5 --channel read-ring-inlined --pattern 1:1 --distribution
  7   farside bench channels --profile connectx5 --channel send,ring-detached,ring-immediate,ring-inlined-zeroing,ring-inlined --pattern 1:1
  8   farside bench channels --profile connectx5 --channel shared-ring-inlined-zeroing --pattern 1:1 --device-words
  9a  farside bench channels --profile connectx5 --channel shared-ring-inlined-zeroing --pattern N:1 --device-words nothing,head
  9b  farside bench channels --profile connectx5 --channel read-ring-notify,read-ring-detached,read-ring-inlined --pattern 1:N
  10  farside bench channels --profile connectx5 --channel read-ring-inlined --pattern 1:1 --prefetch

Latency is one way: half of a round trip over the same channel both ways. Rates are of one way, of all
receivers together. The sender writes every byte and the receiver copies every byte out, unless a line
says otherwise: `unwritten` sends the same bytes again, of `untouched` messages the ends of the bytes
alone are looked at, `blocking` ends call what may sleep. From 4 KiB on messages are sent from registered
memory, and those of read slots are built and looked at in the memory of their sender. As in perftest a
MB has 2^20 bytes and t_typical is the median; BW average and MsgRate are of the middle window. xbaseline
is the best latency by half of the round trip of one line, of blocking ends of a futex. Spinning ends
need a processor each: with fewer, many share one.")]
pub(crate) struct BenchChannels {
    /// Which channels, by the names of `farside channels`, or all
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAME")]
    channel: Vec<ChannelName>,
    /// Message sizes
    #[arg(long, value_delimiter = ',', default_value = "8,64,1024,65536", value_parser = message_bytes)]
    pub(crate) bytes: Vec<u32>,
    /// Who sends to whom
    #[arg(long, value_delimiter = ',', default_value = "1:1,N:1,1:N")]
    pub(crate) pattern: Vec<Pattern>,
    /// Senders of N:1
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) clients: u16,
    /// Receivers of 1:N
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) readers: u16,
    /// Windows of about half a millisecond for each figure
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    pub(crate) windows: u32,
    /// Or for how long each figure is measured
    #[arg(long, conflicts_with = "windows", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Words in memory at the adapter, of channels that have such words; alone: each of the four
    #[arg(long, value_delimiter = ',', num_args = 0.., value_name = "WORDS", default_missing_values = ["nothing", "head", "tail", "all"])]
    device_words: Vec<DeviceName>,
    /// What readers of read-ring-inlined fetch beyond a bell; alone: 0,512,4096
    #[arg(long, value_delimiter = ',', num_args = 0.., value_name = "BYTES", default_missing_values = ["0", "512", "4096"], value_parser = prefetch_bytes)]
    prefetch: Vec<u32>,
    /// Each message without and with a copy into a log, by the end that answers or receives
    #[arg(long)]
    pub(crate) copy: bool,
    /// How many of the round trips took how long, instead of their percentiles alone
    #[arg(long)]
    pub(crate) distribution: bool,
    /// Print the findings of 001 §6 in virtual time, which is crates/sim/CHANNELS.md
    #[arg(long, conflicts_with_all = ["device_words", "prefetch", "copy", "distribution", "plot", "fabric", "on"])]
    pub(crate) findings: bool,
    /// Draw latency and rate over the message size, or the distribution
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// This machine, or virtual time on the paper's cluster
    #[arg(long, default_value = "shm", conflicts_with_all = ["fabric", "on", "key", "protect"])]
    pub(crate) profile: ProfileName,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl BenchChannels {
    /// The channels, each once, in the order of the table.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let wanted = |kind: &Kind| {
            self.channel.iter().any(|name| match name {
                ChannelName::All => true,
                ChannelName::One(one) => one == kind,
            })
        };
        Kind::ALL.into_iter().filter(wanted).collect()
    }

    /// Which words of a channel are at the adapter, each setting once; none where it has no such words
    /// and others were asked for.
    pub(crate) fn devices(&self, kind: Kind) -> Vec<DeviceWords> {
        let usual = [DeviceName::Nothing];
        let asked = if self.device_words.is_empty() { &usual[..] } else { &self.device_words };
        let mut all = Vec::new();
        for device in asked.iter().map(|name| name.words()) {
            let shape = Options::new(kind, 64).device(device).shape(&INFINIBAND);
            let has = device == DeviceWords::Nothing || kind.has_device_words(&shape);
            if has && !all.contains(&device) {
                all.push(device);
            }
        }
        all
    }

    /// What readers of a channel fetch beyond a bell, as [`Self::devices`].
    pub(crate) fn prefetches(&self, kind: Kind) -> Vec<u32> {
        let mut all = self.prefetch.clone();
        all.dedup();
        if all.is_empty() {
            return vec![0];
        }
        all.retain(|bytes| *bytes == 0 || kind == Kind::ReadRingInlined);
        all
    }

    /// Whether a question of its own is asked, instead of all that a channel has.
    pub(crate) fn is_special(&self) -> bool {
        self.copy || self.distribution || !self.device_words.is_empty() || !self.prefetch.is_empty()
    }
}

/// Words at the adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceName {
    /// All words are in main memory
    Nothing,
    /// The head of a shared ring, to which FETCH_ADDs go; bells that readers READ
    Head,
    /// The tail of a shared ring, which its senders READ
    Tail,
    /// Both
    All,
}

impl DeviceName {
    /// Of these words.
    pub(crate) const fn of(words: DeviceWords) -> Self {
        match words {
            DeviceWords::Nothing => Self::Nothing,
            DeviceWords::Head => Self::Head,
            DeviceWords::Tail => Self::Tail,
            DeviceWords::All => Self::All,
        }
    }

    /// The words.
    pub(crate) const fn words(self) -> DeviceWords {
        match self {
            Self::Nothing => DeviceWords::Nothing,
            Self::Head => DeviceWords::Head,
            Self::Tail => DeviceWords::Tail,
            Self::All => DeviceWords::All,
        }
    }
}

fn prefetch_bytes(text: &str) -> Result<u32, String> {
    if text == "0" { Ok(0) } else { message_bytes(text) }
}

/// A channel, or all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChannelName {
    All,
    One(Kind),
}

impl FromStr for ChannelName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "all" {
            return Ok(Self::All);
        }
        name.parse().map(Self::One).map_err(|_: UnknownKind| {
            let names = Kind::ALL.map(Kind::name).join(", ");
            format!("no channel is called `{name}`; there are all, {names}")
        })
    }
}

/// Who sends to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Pattern {
    /// One sender, one receiver
    #[value(name = "1:1")]
    OneToOne,
    /// Many senders, one receiver
    #[value(name = "N:1")]
    ManyToOne,
    /// One sender, many receivers that all get each message
    #[value(name = "1:N")]
    OneToMany,
}

impl Pattern {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneToOne => "1:1",
            Self::ManyToOne => "N:1",
            Self::OneToMany => "1:N",
        }
    }
}

/// Where channels are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ProfileName {
    /// Processes of this machine
    Shm,
    /// Virtual time: two ConnectX-5 of 100 Gb/s, the cluster of 001
    Connectx5,
}

#[cfg(test)]
mod tests {
    use super::super::{Arguments, Bench, Command};
    use super::*;
    use clap::Parser;

    #[test]
    fn channels_are_chosen_by_name() {
        let parse = |list: &str| {
            let line = ["farside", "bench", "channels", "--channel", list];
            let arguments = Arguments::try_parse_from(line).map_err(|e| e.to_string())?;
            match arguments.command {
                Command::Bench { which: Bench::Channels(arguments) } => Ok(arguments.kinds()),
                other => Err(format!("{other:?}")),
            }
        };
        assert_eq!(parse("all"), Ok(Kind::ALL.to_vec()));
        let two = "ring-inlined,ring-immediate,ring-inlined";
        assert_eq!(parse(two), Ok(vec![Kind::RingImmediate, Kind::RingInlined]));
        let refused = parse("ring").unwrap_err();
        assert!(Kind::ALL.iter().all(|kind| refused.contains(kind.name())), "{refused}");
    }

    fn arguments(line: &[&str]) -> BenchChannels {
        let line = [&["farside", "bench", "channels"], line].concat();
        match Arguments::try_parse_from(line).unwrap().command {
            Command::Bench { which: Bench::Channels(arguments) } => arguments,
            other => unreachable!("the line says bench channels, not {other:?}"),
        }
    }

    #[test]
    fn settings_are_those_that_a_channel_has() {
        let all = arguments(&["--device-words", "--prefetch", "--json"]);
        assert_eq!(all.devices(Kind::SharedRingImmediate), DeviceWords::ALL);
        assert_eq!(
            all.devices(Kind::ReadRingDetached),
            [DeviceWords::Nothing, DeviceWords::Head, DeviceWords::All]
        );
        assert_eq!(all.devices(Kind::RingInlined), [DeviceWords::Nothing]);
        assert_eq!(all.prefetches(Kind::ReadRingInlined), [0, 512, 4096]);
        assert_eq!(all.prefetches(Kind::ReadRingDetached), [0]);
        let some = arguments(&["--device-words", "head", "--prefetch", "1K"]);
        assert_eq!(some.devices(Kind::SharedRingImmediate), [DeviceWords::Head]);
        assert!(some.devices(Kind::Send).is_empty() && some.prefetches(Kind::Send).is_empty());
        let none = arguments(&[]);
        assert_eq!((none.devices(Kind::Send).len(), none.prefetches(Kind::Send)), (1, vec![0]));
        assert!(some.is_special() && !none.is_special());
    }

    /// What the help says of the figures of 001 is what the command takes.
    #[test]
    fn every_figure_of_the_help_is_a_command() {
        use clap::CommandFactory;
        let mut command = Arguments::command();
        let bench = command.find_subcommand_mut("bench").unwrap();
        let channels = bench.find_subcommand_mut("channels").unwrap();
        let help = channels.get_after_help().unwrap().to_string();
        let lines =
            help.lines().filter_map(|line| line.split_once("farside bench channels --profile"));
        let mut figures = Vec::new();
        for (figure, rest) in lines {
            let words: Vec<&str> =
                ["--profile"].into_iter().chain(rest.split_whitespace()).collect();
            arguments(&words);
            figures.push(figure.trim().to_owned());
        }
        figures.retain(|figure| !figure.is_empty());
        assert_eq!(figures, ["4", "5", "6", "7", "8", "9a", "9b", "10"]);
    }
}
