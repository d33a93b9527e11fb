//! Arguments of `farside bench channels`.

use super::fabric::PlacesArguments;
use super::values::named;
use clap::Args;
use farside::channel::{Kind, UnknownKind};
use farside_bench::settings::{BenchChannels, Pattern, ProfileName};
use farside_command::units::{message_bytes, seconds};
use farside_launcher::ends::task::DeviceWordsName;
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

Figures of paper 001, in virtual time on a model of its cluster (--profile connectx5, without any adapter).
Without --profile they are measured on this machine; --device-words then needs --fabric verbs. All accept --json
and --plot FILE.svg:
  4   farside bench channels --profile connectx5 --channel send --pattern 1:1 --copy
  5   farside bench channels --profile connectx5 --pattern 1:1
  6   farside bench channels --profile connectx5 --channel read-ring-inlined --pattern 1:1 --distribution
  7   farside bench channels --profile connectx5 --channel send,ring-detached,ring-immediate,ring-inlined-zeroing,ring-inlined --pattern 1:1
  8   farside bench channels --profile connectx5 --channel shared-ring-inlined-zeroing --pattern 1:1 --device-words
  9a  farside bench channels --profile connectx5 --channel shared-ring-inlined-zeroing --pattern N:1 --device-words nothing,head
  9b  farside bench channels --profile connectx5 --channel read-ring-notify,read-ring-detached,read-ring-inlined --pattern 1:N
  10  farside bench channels --profile connectx5 --channel read-ring-inlined --pattern 1:1 --prefetch

Latency is one-way: half of a round trip over one channel in each direction. Rates are one-way, of all receivers
together. The sender writes every byte and the receiver copies every byte out, with these exceptions: `unwritten`
resends the same bytes, `untouched` reads only the first and last cache line of each message, and `blocking`
processes use blocking calls. From 4 KiB on, messages are sent from registered memory, and messages of read slots
are built and read in the memory of their sender. As in perftest, 1 MB is 2^20 bytes and t_typical is the median;
BW average and MsgRate are of the median window. xbaseline is the best latency divided by half of the round trip
of one cache line, or of a futex for blocking processes. Each spinning process needs a processor of its own;
otherwise several share one.")]
pub(crate) struct BenchChannelsArguments {
    /// Channels, by the names of `farside channels`, or all
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "NAME")]
    channel: Vec<ChannelName>,
    /// Message sizes
    #[arg(long, value_delimiter = ',', default_value = "8,64,1024,65536", value_parser = message_bytes)]
    bytes: Vec<u32>,
    /// Numbers of senders and receivers
    #[arg(long, value_delimiter = ',', default_value = "1:1,N:1,1:N", value_parser = named::<Pattern>())]
    pattern: Vec<Pattern>,
    /// Senders of N:1
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Receivers of 1:N
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    readers: u16,
    /// Windows of about half a millisecond per figure
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    windows: u32,
    /// Seconds per figure, instead of a number of windows
    #[arg(long, conflicts_with = "windows", value_parser = seconds)]
    seconds: Option<f64>,
    /// Words in device memory, for channels that support it; without a value: each of the four
    #[arg(long, value_delimiter = ',', num_args = 0.., value_name = "WORDS", default_missing_values = ["nothing", "head", "tail", "all"], value_parser = named::<DeviceWordsName>())]
    device_words: Vec<DeviceWordsName>,
    /// Bytes that readers of read-ring-inlined fetch with the bell; without a value: 0,512,4096
    #[arg(long, value_delimiter = ',', num_args = 0.., value_name = "BYTES", default_missing_values = ["0", "512", "4096"], value_parser = prefetch_bytes)]
    prefetch: Vec<u32>,
    /// Measure without and with a copy of each message into a log, by the receiver
    #[arg(long)]
    copy: bool,
    /// Also report the distribution of round trips, not only percentiles
    #[arg(long)]
    distribution: bool,
    /// Print the findings of paper 001 §6 in virtual time, as in crates/sim/CHANNELS.md
    #[arg(long, conflicts_with_all = ["device_words", "prefetch", "copy", "distribution", "plot", "fabric", "on"])]
    findings: bool,
    /// Plot latency and rate over the message size, or the distribution
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Measure on this machine, or in virtual time on the paper's cluster
    #[arg(long, default_value = "shm", conflicts_with_all = ["fabric", "on", "key", "protect"], value_parser = named::<ProfileName>())]
    profile: ProfileName,
    #[command(flatten)]
    places: PlacesArguments,
}

impl BenchChannelsArguments {
    /// Returns the channels, each once, in the order of the table.
    fn kinds(&self) -> Vec<Kind> {
        let wanted = |kind: &Kind| {
            self.channel.iter().any(|name| match name {
                ChannelName::All => true,
                ChannelName::One(one) => one == kind,
            })
        };
        Kind::ALL.into_iter().filter(wanted).collect()
    }
}

impl From<BenchChannelsArguments> for BenchChannels {
    fn from(arguments: BenchChannelsArguments) -> Self {
        Self {
            kinds: arguments.kinds(),
            bytes: arguments.bytes,
            pattern: arguments.pattern,
            clients: arguments.clients,
            readers: arguments.readers,
            windows: arguments.windows,
            seconds: arguments.seconds,
            device_words: arguments.device_words,
            prefetch: arguments.prefetch,
            copy: arguments.copy,
            distribution: arguments.distribution,
            findings: arguments.findings,
            plot: arguments.plot,
            profile: arguments.profile,
            places: arguments.places.into(),
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

#[cfg(test)]
mod tests {
    use super::super::{Arguments, Bench, Command};
    use super::*;
    use clap::Parser;
    use farside::channel::DeviceWords;

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
            Command::Bench { which: Bench::Channels(arguments) } => arguments.into(),
            other => unreachable!("the command is bench channels, not {other:?}"),
        }
    }

    #[test]
    fn unsupported_settings_are_dropped() {
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

    /// The commands that the help lists for the figures of paper 001 are valid.
    #[test]
    fn figure_commands_of_the_help_are_valid() {
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
