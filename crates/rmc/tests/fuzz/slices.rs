//! Calls cut into slices by chance, by turns in every engine and also moved as bytes where they pause, must
//! do what they do in one go, and be the same call at every pause as the checked interpreter's.

use farside_rmc::run::{Lent, Machine, Outcome};
use farside_rmc::{Budget, Verified};

use super::runs::variables;
use super::words::REGIONS;
use super::{AnyHost, Compiled, End, FuzzRandom, NativeRegion};

/// What a whole run is compared by: its end, what it asked, and what its machine is then.
pub(super) type Whole = (End, u64, Vec<u8>);

/// Most instructions between two places where a call can pause that is charged, both ends counted.
const STRETCH: u64 = 257;

/// A machine with what it works on.
struct Sliced {
    machine: Machine,
    own: Vec<u8>,
    shared: Vec<u8>,
    host: AnyHost,
}

impl Sliced {
    fn new(verified: &Verified, host: &AnyHost) -> Self {
        let (own, shared) = variables(verified);
        Self { machine: Machine::new(), own, shared, host: host.clone() }
    }

    fn whole(&self, outcome: Outcome) -> Whole {
        let end = (outcome, self.machine.output().to_vec(), self.own.clone(), self.shared.clone());
        (end, self.host.asked, bytes(&self.machine, false))
    }
}

/// A machine as bytes but for the stack, of which a moved one has the living part alone, and for R0 to R5
/// where they may be dead.
fn bytes(machine: &Machine, exact: bool) -> Vec<u8> {
    let mut bytes = machine.to_bytes();
    if !exact {
        let depth = u64::from_le_bytes(bytes[96..104].try_into().unwrap_or_default()) as usize;
        bytes.truncate(bytes.len() - (depth + 1) * 512);
        bytes[..48].fill(0);
    }
    bytes
}

/// In one go, interpreted.
pub(super) fn run_whole(
    verified: &Verified,
    context: &[u8],
    host: &AnyHost,
    budget: Budget,
) -> Option<Whole> {
    let mut side = Sliced::new(verified, host);
    side.machine.start(verified, context, budget).ok()?;
    let lent = Lent { own: &mut side.own, shared: &mut side.shared };
    let outcome = side.machine.run(verified, lent, &mut side.host);
    Some(side.whole(outcome))
}

/// In slices. An error says how it differs from `whole`.
pub(super) fn run_sliced(
    compiled: &Compiled,
    context: &[u8],
    host: &AnyHost,
    budget: Budget,
    whole: &Whole,
    chance: &mut FuzzRandom,
) -> Result<u64, String> {
    let verified = compiled.verified();
    let (mut one, mut checked) = (Sliced::new(verified, host), Sliced::new(verified, host));
    for side in [&mut one, &mut checked] {
        side.machine.start(verified, context, budget).map_err(|error| error.to_string())?;
    }
    let most = chance.of(&[1, 2, 10, 100, 100, 1_000, 6_000]);
    let engines = chance.below(4);
    let lent_regions = REGIONS.map(NativeRegion::of);
    let regions = if chance.one_in(2) { &lent_regions[..] } else { &[] };
    let (mut moved, mut pauses) = (false, 0);
    loop {
        let slice = chance.below(most);
        let native = match engines {
            0 => false,
            1 => true,
            _ => chance.one_in(2),
        };
        let lent = Lent { own: &mut one.own, shared: &mut one.shared };
        let outcome = if native {
            compiled.run_slice(&mut one.machine, slice, lent, regions, &mut one.host)
        } else {
            one.machine.run_slice(verified, slice, lent, &mut one.host)
        };
        let lent = Lent { own: &mut checked.own, shared: &mut checked.shared };
        let (program, before) = (verified.program(), checked.machine.executed());
        let expected = checked.machine.run_checked_slice(program, slice, lent, &mut checked.host);
        let number = pauses;
        let at = || format!("slice {number} of {slice}, compiled: {native}, moved: {moved}");
        if slice == 0 && verified.metered() && checked.machine.executed() > before + STRETCH {
            return Err(format!("{}: it does not pause in time", at()));
        }
        if outcome != expected {
            return Err(format!("{}: {outcome:?}, checked {expected:?}", at()));
        }
        if outcome != Outcome::Paused {
            let mut end = one.whole(outcome);
            if native && matches!(outcome, Outcome::Returned(_)) {
                // Machine code does not store dead registers into the machine.
                end.2.clone_from(&whole.2);
            }
            return if end == *whole {
                Ok(pauses)
            } else {
                Err(format!("{}: {end:?}\nin one go {whole:?}", at()))
            };
        }
        pauses += 1;
        let exact = engines == 0 && !moved;
        if bytes(&one.machine, exact) != bytes(&checked.machine, exact)
            || one.host.asked != checked.host.asked
            || one.own != checked.own
            || one.shared != checked.shared
        {
            return Err(format!("{}: {:?}\nchecked {:?}", at(), one.machine, checked.machine));
        }
        if chance.one_in(8) {
            let bytes = one.machine.to_bytes();
            one.machine = Machine::from_bytes(verified, &bytes).map_err(|e| e.to_string())?;
            moved = true;
        }
    }
}
