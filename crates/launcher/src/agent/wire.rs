//! Messages between commands and agents: one JSON object per line, marked by its first key. Lines of a worker share
//! the stream unmarked.

use farside_command::failure::Failure;
use serde::{Deserialize, Serialize};

/// The start of each line between commands and agents, and of no line of a worker.
pub(crate) const MARK: &[u8] = b"{\"agent\":";
/// Maximum bytes of a line to an agent.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;

/// A request of a command to an agent. Each stream is for one worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "agent")]
pub(crate) enum Order {
    /// Start the worker; the first line of a stream. Both programs must have one version, since the protocol of
    /// workers is not versioned.
    Start { version: String },
    /// Kill it with SIGKILL.
    Kill,
}

/// A message of an agent to a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "agent")]
pub(crate) enum Notice {
    /// The worker runs, with this process number on its host.
    Started { process: u32 },
    /// The worker has ended, with this status; the last line of a stream.
    Ended { how: String },
    /// No worker was started; the only line of a stream.
    Refused { failure: Failure },
}

impl Order {
    /// Returns the order to start a worker of this version.
    pub(crate) fn start() -> Self {
        Self::Start { version: version() }
    }
}

/// Returns the version, which must be the same in both programs.
pub(crate) fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Serializes a value as a line.
pub(crate) fn line(value: &impl Serialize) -> Vec<u8> {
    // The values are structures with string keys, which always have a JSON form.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Answer, Command, Event};

    #[test]
    fn lines_of_agents_are_distinct_from_lines_of_workers() {
        let (how, failure) = ("signal: 9".to_owned(), Failure::system("full"));
        let marked = [
            line(&Order::start()),
            line(&Order::Kill),
            line(&Notice::Started { process: 7 }),
            line(&Notice::Ended { how }),
            line(&Notice::Refused { failure }),
        ];
        assert!(marked.iter().all(|line| line.starts_with(MARK)));
        let passing = [line(&Command::Leave), line(&Event::Done { answer: Answer::Nothing })];
        assert!(!passing.iter().any(|line| line.starts_with(MARK)));
        assert_eq!(serde_json::from_slice::<Order>(&marked[0]).unwrap(), Order::start());
    }
}
