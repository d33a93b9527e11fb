//! Soak test of the data channels through the facade: none of millions of messages is lost, repeated, reordered if
//! order is promised, or corrupted, from arrival until release.
//!
//! A soak consists of rounds. Each round draws its parameters from its seed: the shape of the channel,
//! acknowledgement and notification, one or three peers, message lengths from zero to the maximum, single messages,
//! batches, slices and loans, which messages the receiver holds and in which order it releases them, and the pauses
//! of each end. On the simulated fabric a round is reproducible, including deaths. On a real fabric its ends either
//! alternate on one thread or run on a thread each; only the latter is not exactly reproducible.

mod content;
mod ends;
mod play;
mod round;

pub use play::{Ground, Tally, Trouble, play};
pub use round::{Death, PROFILES, Profile, Round, Topology, promises_order, unmet};

use farside::channel::Kind;

/// Maximum number of messages of a round.
pub const ROUND_MESSAGES: u64 = 20_000;

/// A round and its failure.
pub type Failure = (Box<Round>, Trouble);

/// Sends `messages` messages through a channel, in rounds with seeds from `seed` on, each on a new ground; calls
/// `after` after each round.
///
/// # Errors
/// The first failure, with its round.
pub fn soak(
    kind: Kind,
    messages: u64,
    seed: u64,
    ground: &dyn Fn(u64) -> Ground,
    after: &mut dyn FnMut(&Tally),
) -> Result<Tally, Failure> {
    let mut total = Tally::default();
    let mut number = seed;
    while total.messages < messages {
        let left = (messages - total.messages).min(ROUND_MESSAGES);
        let ground = ground(number);
        let round = Round::draw(kind, number, left, &ground.capabilities());
        match play(&round, &ground) {
            Ok(tally) => total.add(&tally),
            Err(trouble) => return Err((Box::new(round), trouble)),
        }
        after(&total);
        number = number.wrapping_add(1);
    }
    Ok(total)
}
