//! What commands and agents say to each other, beside the lines of a worker that pass through: one JSON
//! object a line, marked by its first key.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};

/// How the lines of agents themselves begin, and no line of a worker does.
pub(crate) const MARK: &[u8] = b"{\"agent\":";
/// Most bytes of a line to an agent.
pub(crate) const LINE_BYTES_MAX: usize = 1 << 20;

/// What a command asks of an agent. Each stream is for one worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "agent")]
pub(crate) enum Order {
    /// Start the worker; the first line of a stream. Both programs must be of one version, for workers
    /// understand their own alone.
    Start { version: String },
    /// Kill it with SIGKILL.
    Kill,
}

/// What an agent says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "agent")]
pub(crate) enum Notice {
    /// The worker runs as this process of its host.
    Started { process: u32 },
    /// It has ended, like this; the last line of a stream.
    Ended { how: String },
    /// There is no worker; the only line of a stream.
    Refused { failure: Failure },
}

impl Order {
    /// The order to start a worker of this program.
    pub(crate) fn start() -> Self {
        Self::Start { version: version() }
    }
}

/// What both programs must have in common.
pub(crate) fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// A value as a line.
pub(crate) fn line(value: &impl Serialize) -> Vec<u8> {
    // Values are our own structures with string keys, which always have a JSON form.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::{Answer, Command, Event};

    #[test]
    fn lines_of_agents_are_told_from_those_of_workers() {
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
