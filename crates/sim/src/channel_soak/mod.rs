//! Millions of messages through the channels of the façade: none lost, repeated, reordered where order
//! is promised, or corrupted, from their arrival until they are released.
//!
//! A soak is made of rounds. Each round draws from its seed what there is to be chosen: measures of
//! the channel, ways of acknowledgement and announcement, one or three ends on one side, lengths from
//! nothing to the longest, single messages, batches, slices and loans, what the receiver holds back
//! and in which order it releases it, and who pauses when. On the simulated fabric a round repeats
//! exactly, deaths included. On a real fabric its ends take turns on one thread, or run on a thread
//! each, which is what does not repeat exactly.

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

/// Sends so many messages through a channel, in rounds with seeds from `seed` on, each on a ground of
/// its own; calls `after` after each round.
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
