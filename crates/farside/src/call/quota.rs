//! Quotas of tenants: what they come to where nothing is said, and words about what is over them.

use super::hello::Refusal;
use super::server::ServerOptions;
use farside_protocol::call::{Quota, Refused, Sizes, Taken};

/// Of all callers' places so many are kept from a tenant that has no number of its own: one of four.
const KEPT_SHARE: u32 = 4;

/// Most callers of a tenant whose quota does not say. A place for each other tenant is kept from it, and a
/// part of all, so that it alone cannot keep all others out; where nobody is told from others, all are its.
pub(super) fn callers_max(options: &ServerOptions) -> u32 {
    let others = u32::try_from(options.tenants.len()).unwrap_or(u32::MAX);
    if others == 0 {
        return options.sessions;
    }
    let kept = others.max(options.sessions / KEPT_SHARE);
    options.sessions.saturating_sub(kept).max(1)
}

/// Why a caller has no place.
pub(super) fn no_place(why: Refused, sessions_max: u32, (taken, quota): (Taken, Quota)) -> Refusal {
    let text = match quota.sessions {
        Some(most) if why == Refused::TenantSessions => {
            format!("its tenant has {} of its {most} callers: end one of them", taken.sessions)
        }
        _ => format!("the executor has its {sessions_max} callers: end one of them"),
    };
    Refusal { why, text }
}

/// Why an object is not registered, which `program` is the first one of.
pub(super) fn over(why: Refused, program: &str, sizes: Sizes, taken: (Taken, Quota)) -> String {
    let (Taken { state_bytes, registering_bytes, .. }, quota) = taken;
    let state_bytes = state_bytes + registering_bytes;
    match why {
        Refused::State => format!(
            "the object of program `{program}` takes {} B with its state, and its tenant has {state_bytes} B \
             of {} B: unregister others",
            sizes.all(),
            quota.state_bytes
        ),
        _ => format!(
            "the object of program `{program}` has programs: {}; {}",
            sizes.programs,
            programs_full(taken)
        ),
    }
}

/// Why an object of so many bytes is not received; with what all tenants are registering, and may.
pub(super) fn no_room(
    why: Refused,
    bytes: u32,
    (taken, quota): (Taken, Quota),
    (all, all_max): (u64, u64),
) -> String {
    match why {
        Refused::State => format!(
            "an object of {bytes} B, and its tenant has {} B of {} B: unregister others, or wait for those that are \
             being registered",
            taken.bytes(),
            quota.state_bytes
        ),
        _ => format!(
            "an object of {bytes} B, and {all} B of {all_max} B are being registered by all tenants: register it \
             again when others are done, or raise `ServerOptions::registering_bytes_max`"
        ),
    }
}

/// Why an object is not verified.
pub(super) fn registrations_full(registrations: usize) -> String {
    format!(
        "its tenant has {registrations} registrations in progress, which is as many as it may: register it again \
         when one of them is done, or raise `ServerOptions::registrations`"
    )
}

/// Why no program is registered any more.
pub(super) fn programs_full((taken, quota): (Taken, Quota)) -> String {
    format!(
        "its tenant has registered {} of {} programs, where each counts for each of its callers: unregister \
         others",
        taken.programs, quota.programs
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places_where_there_are_others() {
        let callers = |sessions, tenants: u32| {
            let named = (0..tenants).map(|number| (number.to_string(), Quota::DEFAULT));
            let tenants = named.collect();
            callers_max(&ServerOptions { sessions, tenants, ..ServerOptions::default() })
        };
        assert_eq!((callers(64, 0), callers(1, 0)), (64, 1));
        assert_eq!((callers(64, 1), callers(64, 30), callers(64, 63)), (48, 34, 1));
        assert_eq!((callers(2, 1), callers(1, 1), callers(4, 9)), (1, 1, 1));
    }
}
