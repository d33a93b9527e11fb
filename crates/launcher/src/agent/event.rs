//! Events of an agent, as text and in the form of `--json`.

use farside_command::output::Output;
use serde::Serialize;

/// An event of an agent, in the form of `--json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(super) enum AgentEvent<'a> {
    Listening {
        address: &'a str,
        security: &'a str,
        /// A security warning for the operator, with a remedy.
        #[serde(skip_serializing_if = "Option::is_none")]
        warning: Option<&'a str>,
    },
    Started {
        process: u32,
        from: &'a str,
    },
    Ended {
        process: u32,
        how: &'a str,
    },
    Refused {
        from: &'a str,
        reason: &'a str,
    },
    Closed,
}

impl AgentEvent<'_> {
    pub(super) fn tell(&self, output: Output) {
        output.event(self, |_| vec![self.text()]);
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Listening { address, security, .. } => {
                format!("agent at {address} ({security}); Ctrl-C ends it and its workers")
            }
            Self::Started { process, from } => format!("worker {process} started for {from}"),
            Self::Ended { process, how } => format!("worker {process} ended ({how})"),
            Self::Refused { from, reason } => format!("refused {from}: {reason}"),
            Self::Closed => "the agent and its workers have ended".to_owned(),
        }
    }
}
