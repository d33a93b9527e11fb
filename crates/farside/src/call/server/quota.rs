//! Quotas of tenants: defaults, and the texts of refusals.

use super::ServerOptions;
use crate::call::transport::handshake::SessionRefusal;
use farside_protocol::call::{Quota, Refused, Sizes, Taken};

/// One of this many sessions is reserved for other tenants if a tenant's quota has no session limit.
const KEPT_SHARE: u32 = 4;

/// Returns the session limit of a tenant whose quota sets none. One session for each other tenant, and at least a
/// quarter of all, are reserved for the others, so that no single tenant can exclude them. If no tenants are
/// configured, all sessions are available.
pub(super) fn callers_max(options: &ServerOptions) -> u32 {
    let others = u32::try_from(options.tenants.len()).unwrap_or(u32::MAX);
    if others == 0 {
        return options.sessions;
    }
    let kept = others.max(options.sessions / KEPT_SHARE);
    options.sessions.saturating_sub(kept).max(1)
}

/// Returns why a caller was refused a session.
pub(super) fn no_place(
    why: Refused,
    sessions_max: u32,
    (taken, quota): (Taken, Quota),
) -> SessionRefusal {
    let text = match quota.sessions {
        Some(most) if why == Refused::TenantSessions => {
            format!("the tenant has {} of {most} callers: close one", taken.sessions)
        }
        _ => format!("the executor has {sessions_max} of {sessions_max} callers: close one"),
    };
    SessionRefusal { why, text }
}

/// Returns why an object, whose first program is `program`, is not registered.
pub(super) fn over(why: Refused, program: &str, sizes: Sizes, taken: (Taken, Quota)) -> String {
    let (Taken { state_bytes, registering_bytes, .. }, quota) = taken;
    let state_bytes = state_bytes + registering_bytes;
    match why {
        Refused::State => format!(
            "the object of program `{program}` takes {} B with its state, and the tenant has {state_bytes} B \
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

/// Returns why an object of this size is not received; `all` and `all_max` are the bytes in registration of all
/// tenants and their limit.
pub(super) fn no_room(
    why: Refused,
    bytes: u32,
    (taken, quota): (Taken, Quota),
    (all, all_max): (u64, u64),
) -> String {
    match why {
        Refused::State => format!(
            "an object of {bytes} B, and the tenant has {} B of {} B: unregister others, or wait for those that are \
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

/// Returns why an object is not verified.
pub(super) fn registrations_full(registrations: usize) -> String {
    format!(
        "the tenant has {registrations} registrations in progress, which is its limit: register it again \
         when one of them is done, or raise `ServerOptions::registrations`"
    )
}

/// Returns why no further program is registered.
pub(super) fn programs_full((taken, quota): (Taken, Quota)) -> String {
    format!(
        "the tenant has registered {} of {} programs, counted once per caller: unregister \
         others",
        taken.programs, quota.programs
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_of_other_tenants_are_reserved() {
        let callers = |sessions, tenants: u32| {
            let named = (0..tenants).map(|number| (number.to_string(), Quota::DEFAULT));
            let tenants = named.collect();
            callers_max(&ServerOptions::default().sessions(sessions).tenants(tenants))
        };
        assert_eq!((callers(64, 0), callers(1, 0)), (64, 1));
        assert_eq!((callers(64, 1), callers(64, 30), callers(64, 63)), (48, 34, 1));
        assert_eq!((callers(2, 1), callers(1, 1), callers(4, 9)), (1, 1, 1));
    }
}
