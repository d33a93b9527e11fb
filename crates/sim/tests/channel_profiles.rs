//! Support of each channel by each protocol of 001 Table 1, and detection of a channel that is forced onto a fabric
//! without its guarantee.

use farside::ErrorCode;
use farside::channel::{Kind, Options, Receiver, Sender};
use farside_base::Capabilities;
use farside_fabric::Fabric;
use farside_sim::channel_soak::{Ground, PROFILES, Profile, Round, Trouble, play};
use farside_sim::fabric::{INFINIBAND, UNORDERED};
use std::fmt::Write as _;
use std::sync::Arc;

const MESSAGE: u32 = 500;
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/CHANNEL-PROFILES.md");

/// The profiles of the table, in its order.
const COLUMNS: [&str; 5] = ["infiniband", "adaptive-routing", "unordered", "efa", "one-rma"];

/// The missing capability on each profile, if any.
type Cells = [Option<&'static str>; 5];

#[rustfmt::skip]
const TABLE: [(Kind, Cells); 20] = [
    (Kind::Send,                     [None, None,                  None,                  None,                  Some("send")]),
    (Kind::SendShared,               [None, None,                  None,                  None,                  Some("send")]),
    (Kind::SendBufferless,           [None, None,                  None,                  None,                  Some("send")]),
    (Kind::WriteSlotDetached,        [None, Some("message_order"), Some("message_order"), Some("write"),         Some("message_order")]),
    (Kind::WriteSlotInlined,         [None, Some("byte_order"),    Some("byte_order"),    Some("write"),         Some("byte_order")]),
    (Kind::WriteSlotImmediate,       [None, None,                  None,                  Some("write"),         Some("immediate")]),
    (Kind::WriteSlotReserved,        [None, None,                  None,                  Some("write"),         Some("byte_order")]),
    (Kind::RingDetached,             [None, Some("message_order"), Some("message_order"), Some("write"),         Some("message_order")]),
    (Kind::RingImmediate,            [None, None,                  None,                  Some("write"),         Some("immediate")]),
    (Kind::RingInlinedZeroing,       [None, Some("byte_order"),    Some("byte_order"),    Some("write"),         Some("byte_order")]),
    (Kind::RingInlined,              [None, Some("message_order"), Some("message_order"), Some("write"),         Some("message_order")]),
    (Kind::SharedRingImmediate,      [None, None,                  Some("atomics"),       Some("write"),         Some("atomics")]),
    (Kind::SharedRingInlinedZeroing, [None, Some("byte_order"),    Some("atomics"),       Some("write"),         Some("atomics")]),
    (Kind::ReadSlotDetached,         [None, None,                  None,                  None,                  None]),
    (Kind::ReadSlotInlined,          [None, None,                  None,                  None,                  None]),
    (Kind::ReadSlotNotify,           [None, None,                  None,                  None,                  Some("inline_bytes_max")]),
    (Kind::ReadSlotIndirect,         [None, None,                  None,                  Some("write"),         Some("message_order")]),
    (Kind::ReadRingDetached,         [None, None,                  None,                  None,                  Some("slices_max")]),
    (Kind::ReadRingInlined,          [None, None,                  None,                  None,                  None]),
    (Kind::ReadRingNotify,           [None, None,                  None,                  None,                  Some("inline_bytes_max")]),
];

fn profile(name: &str) -> Profile {
    PROFILES.into_iter().find(|profile| profile.name == name).unwrap()
}

/// Returns the reason why a fabric refuses a channel.
fn refused(kind: Kind, profile: &Profile) -> Option<String> {
    let options = Options::new(kind, MESSAGE);
    let net = profile.net(1);
    let receiver = Receiver::listen(net.fabric("one"), "profile", &options).err();
    let sender = Sender::listen(net.fabric("other"), "profile", &options).err();
    let codes = [&receiver, &sender].map(|error| error.as_ref().map(|error| error.code));
    assert_eq!(codes[0], codes[1], "{kind}");
    let error = receiver?;
    assert_eq!(error.code, ErrorCode::FabricLacks, "{kind}: {error}");
    let (_, rest) = error.detail.split_once('`').unwrap();
    Some(rest.split_once('`').unwrap().0.to_owned())
}

#[test]
fn fabric_accepts_supported_channels_and_names_missing_capability() {
    let mut wrong = Vec::new();
    for (kind, cells) in TABLE {
        for (column, cell) in COLUMNS.into_iter().zip(cells) {
            let found = refused(kind, &profile(column));
            if found.as_deref() != cell {
                wrong.push(format!("{kind} on {column}: {found:?}, not {cell:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn accepted_requests_complete_in_every_schedule() {
    for (kind, cells) in TABLE {
        for (column, _) in COLUMNS.into_iter().zip(cells).filter(|(_, cell)| cell.is_none()) {
            for seed in 0..20 {
                let ground = Ground::simulated(profile(column).net(seed));
                let round = Round::draw(kind, seed, 200, &ground.capabilities());
                let run = std::panic::AssertUnwindSafe(|| play(&round, &ground));
                match std::panic::catch_unwind(run) {
                    Ok(Ok(_)) => {}
                    Ok(Err(trouble)) => panic!("{column}: {trouble}\n{round}"),
                    Err(_) => panic!("{column}: {round}"),
                }
            }
        }
    }
}

fn document() -> String {
    let mut out = String::from(
        "# Which channel survives where\n\n\
         Kept by `crates/sim/tests/channel_profiles.rs`, which opens every channel on every profile of\n\
         the simulated fabric: those that are taken carry their messages in every seeded schedule; of\n\
         the others the cell names what the fabric lacks.\n\n| channel |",
    );
    for column in COLUMNS {
        let _ = write!(out, " {column} |");
    }
    out.push_str("\n| --- |");
    out.push_str(&" --- |".repeat(COLUMNS.len()));
    for (kind, cells) in TABLE {
        let _ = write!(out, "\n| {kind} |");
        for cell in cells {
            match cell {
                None => out.push_str(" works |"),
                Some(missing) => {
                    let _ = write!(out, " lacks `{missing}` |");
                }
            }
        }
    }
    out.push('\n');
    out
}

#[test]
fn the_document_is_the_table() {
    let found = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    assert!(found == document(), "{DOCUMENT} should be:\n{}", document());
}

/// A fabric that declares stronger guarantees than it keeps.
struct WeakFabric {
    inner: Arc<dyn Fabric>,
    declared: Capabilities,
}

impl Fabric for WeakFabric {
    farside_fabric::forward!(
        name,
        host,
        lease_ns,
        time_ns,
        register,
        deregister,
        open,
        register_memory
    );

    fn capabilities(&self) -> Capabilities {
        self.declared
    }
}

/// Returns the first of `seeds` seeds in which a channel that relies on order fails on an unordered fabric.
fn caught(kind: Kind, seeds: u64) -> Option<u64> {
    let weak = Profile {
        name: "lying",
        // With atomics, since the shared ring requires them.
        capabilities: Capabilities { atomics: INFINIBAND.atomics, ..UNORDERED },
        write_by_read: false,
    };
    for seed in 0..seeds {
        let wrap =
            |inner| -> Arc<dyn Fabric> { Arc::new(WeakFabric { inner, declared: INFINIBAND }) };
        let ground = Ground::wrapped(weak.net(seed), wrap);
        let round = Round::draw(kind, seed, 100, &INFINIBAND);
        match play(&round, &ground) {
            Err(Trouble::Corrupt(_)) => return Some(seed),
            Err(Trouble::Error(error)) if error.code == ErrorCode::ProtocolViolation => {
                return Some(seed);
            }
            // A bell may be overwritten by an older word, after which nothing arrives any more; and a late WRITE may
            // break its link.
            Ok(_) | Err(Trouble::Stalled(_) | Trouble::Error(_)) => {}
            Err(other) => panic!("{other}\n{round}"),
        }
    }
    None
}

#[test]
fn channel_on_overstated_order_is_detected() {
    for kind in [
        Kind::RingInlined,
        Kind::RingDetached,
        Kind::WriteSlotInlined,
        Kind::SharedRingInlinedZeroing,
    ] {
        let seed = caught(kind, 40);
        assert!(seed.is_some(), "{kind} was not detected");
    }
}
