//! Conversion of call outcomes to answers and errors of the client.

use crate::call::client::CallAnswer;
use crate::call::executor::CallEnd;
use crate::call::executor::loading::LoadError;
use crate::{Error, ErrorCode};
use farside_protocol::call::{Refused, Reply, Stopped, Verb};

pub(crate) fn reply_outcome(reply: &Reply, output: Vec<u8>) -> Result<CallAnswer, Error> {
    if reply.verb == Verb::Returned {
        return Ok(CallAnswer { result: reply.result, output });
    }
    let text = String::from_utf8_lossy(&output).into_owned();
    Err(match (reply.verb, Stopped::of(reply.result), Refused::of(reply.result)) {
        (Verb::Stopped, Some((why, _)), _) => stop_error(why, text),
        (Verb::Refused, _, Some((Refused::Calls, most))) => over_calls(most),
        (Verb::Refused, _, Some((why, _))) => refusal_error(why, text),
        _ => Error::with(ErrorCode::ProtocolViolation, "the executor sent a malformed answer"),
    })
}

pub(crate) fn run_outcome(end: CallEnd, output: Vec<u8>) -> Result<CallAnswer, Error> {
    match end {
        CallEnd::Returned(result) => Ok(CallAnswer { result, output }),
        CallEnd::Stopped(why, _, text) => Err(stop_error(why, text)),
    }
}

pub(crate) fn stop_error(why: Stopped, text: String) -> Error {
    match why {
        Stopped::Cancelled => Error::with(ErrorCode::CallCancelled, text),
        Stopped::Late => ErrorCode::DeadlinePassed.into(),
        Stopped::Budget | Stopped::NotPermitted => Error::with(ErrorCode::CallStopped, text),
        Stopped::TooMuchOutput => {
            let text = "its output exceeds the limit of its caller or executor";
            Error::with(ErrorCode::CallStopped, text)
        }
        Stopped::Fault => Error::with(ErrorCode::BadAnswer, text),
        Stopped::MemoryLost => Error::with(ErrorCode::PeerLost, text),
    }
}

/// Returns the error for a tenant at its limit of calls in progress.
fn over_calls(most: u32) -> Error {
    let text = match most {
        0 => "the tenant's quota of calls is 0: raise it".to_owned(),
        most => format!("the tenant has {most} of {most} calls in progress: wait for one of them"),
    };
    Error::with(ErrorCode::OverQuota, text)
}

pub(crate) fn refusal_error(why: Refused, text: String) -> Error {
    let code = match why {
        Refused::Sessions
        | Refused::TenantSessions
        | Refused::Programs
        | Refused::State
        | Refused::Calls
        | Refused::Topics
        | Refused::Registrations => ErrorCode::OverQuota,
        Refused::NoProgram => ErrorCode::NoProgram,
        Refused::Object => ErrorCode::BadProgram,
        Refused::Unsafe => ErrorCode::UnsafeProgram,
        Refused::Parameters => ErrorCode::BadParameters,
        Refused::Lacks => ErrorCode::ExecutorLacks,
    };
    let what = match why {
        Refused::Sessions => "callers of the executor",
        Refused::TenantSessions => "callers of its tenant",
        Refused::Programs => "registered programs",
        Refused::State => "state of programs",
        Refused::Calls => "calls in progress of its tenant",
        Refused::Topics => "topics with waiting requests",
        Refused::Registrations => "registrations in progress",
        _ => "",
    };
    let text = if text.is_empty() { what.to_owned() } else { text };
    Error::with(code, text)
}

pub(crate) fn load_error(error: LoadError) -> Error {
    refusal_error(error.why, error.text)
}
