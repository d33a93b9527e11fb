//! The coherence machine by scenario: a few machines, and a network whose every delivery the test
//! chooses. What happens is a transcript, and the transcript is what is asserted.

mod cluster;
mod deaths;
mod figures;
mod input;
mod orderings;
mod roles;
