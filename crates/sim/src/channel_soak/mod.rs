//! Millions of messages through the channels of the façade: none lost, repeated, reordered where order
//! is promised, or corrupted, from their arrival until they are released.
//!
//! A soak consists of rounds. Each round draws its parameters from its seed: the shape of the channel, acknowledgement
//! and notification, one or three peers, message lengths from zero to the maximum, single messages, batches, slices and
//! loans, which messages the receiver holds and in which order it releases them, and the pauses of each end. On the
//! simulated fabric a round is reproducible, deaths included. On a real fabric its ends alternate on one thread, or run
//! on a thread each, and only then it is not exactly reproducible.

mod content;
mod ends;
mod play;
mod round;

pub use play::{Ground, Tally, Trouble, play};
pub use round::{Death, PROFILES, Profile, Round, Topology, promises_order, unmet};

use farside::channel::Kind;

/// Messages of a round, at most.
pub const ROUND_MESSAGES: u64 = 20_000;

/// A round and what went wrong in it.
pub type Failure = (Box<Round>, Trouble);

/// Sends `messages` messages through a channel, in rounds with seeds from `seed` on, each on a new ground; calls
/// `after` after each round.
///
/// # Errors
/// The first trouble, and the round that had it.
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
