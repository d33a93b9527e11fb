//! The conformance suite of all fabrics. A backend implements [`Subject`], and
//! [`conformance_suite!`](crate::conformance_suite) makes a test of each case:
//!
//! ```ignore
//! farside_fabric::conformance_suite!(MySubject::new());
//! ```
//!
//! The cases know the traits and [`Capabilities`](farside_base::Capabilities) only. What a fabric
//! declares must work, what it does not declare must be refused by name. No case assumes that anything
//! happens at once: all poll, a bounded number of times, with [`Subject::settle`] between.
//!
//! What the suite specifies beyond the text of the traits:
//! * A message longer than its receive takes that receive, which completes `LengthExceeded`, and
//!   nothing past the receive is touched. The SEND completes alike, unless it completed before it
//!   reached the receive; then a later request of its link completes `PeerLost`.
//! * A forged or stale token is refused by `import` (`Unknown`) or by each request (`RemoteAccess`).
//! * A request on a link that is not yet usable is `Invalid("link")`; on one that was closed locally it
//!   is taken and completes `Flushed`.
//! * Receives belong to their queue, not to links: they survive the loss of a link.
//! * `Lost` is reported after the messages that arrived before it have been polled. A link that was
//!   closed locally has no more events.
//! * A lost link counts towards `links_max` until it is closed locally too.
//!
//! A failure names the case; randomized cases print the seed, which `FARSIDE_SEED` sets.

mod atomic;
mod connection;
mod flush;
mod message;
mod order;
mod protection;
mod random;
mod refusal;
mod region;
mod relaxed;
mod scene;
mod sleep;
mod transfer;
mod whole;

use crate::Fabric;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The interface of a backend to the suite.
pub trait Subject: Sync {
    /// Returns `count` fabrics that reach one another, as if each were a process of its own. All calls
    /// on one subject return fabrics with one scope of listen names.
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>>;

    /// Returns a listen name that no port uses.
    fn address(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("conformance-{}-{number}", std::process::id())
    }

    /// Returns whether a listen name of one fabric is taken for all of them, as on one machine; false
    /// if each host has names of its own.
    fn names_are_shared(&self) -> bool {
        true
    }

    /// Advances the environment between two polls; a simulated one advances its clock here. May be
    /// called by several threads at once.
    fn settle(&self) {
        std::thread::yield_now();
    }

    /// Empty polls after which a case fails. Generous, since machines stall.
    fn polls_max(&self) -> u64 {
        30_000_000
    }

    /// Returns the seed of the randomized cases.
    fn seed(&self) -> u64 {
        match std::env::var("FARSIDE_SEED").map(|text| text.parse()) {
            Ok(Ok(seed)) => seed,
            _ => 0x5eed,
        }
    }
}

/// The test of one property; panics if the subject fails.
pub type Case = fn(&dyn Subject);

/// Calls `$then! { $($arguments)* [module { case case }] ... }` with every case: the only list.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_conformance_case {
    ([$($then:tt)*] $($arguments:tt)*) => {
        $($then)*! { $($arguments)*
            transfer {
                write_moves_every_length
                read_moves_every_length
                every_alignment_is_exact
                inline_write_moves_every_length_up_to_the_limit
                longest_transfer_moves
                gather_and_scatter_join_slices_in_list_order
                last_byte_of_a_region_is_reached
                region_starts_zeroed_and_serves_all_ports_of_its_fabric
            }
            atomic {
                fetch_add_returns_the_value_before_and_wraps
                compare_swap_returns_the_value_before
                swap_returns_the_value_before
                masked_fetch_add_keeps_carries_in_their_fields
                masked_compare_swap_looks_and_writes_under_its_masks
                concurrent_fetch_adds_sum_exactly
                concurrent_compare_swaps_have_one_winner_each
                atomics_of_system_scope_meet_those_of_the_processor
            }
            message {
                send_delivers_every_length
                immediate_arrives_and_takes_one_receive
                message_longer_than_its_receive_fails_alone
                missing_receive_holds_messages_back_and_loses_none
                longest_message_arrives
                inline_and_gathered_messages_arrive_whole
                messages_and_receives_are_taken_in_order
                receive_queue_holds_its_depth_and_no_more
                shared_receive_queue_serves_all_its_links
                separate_receive_queues_stay_separate
                senders_on_threads_share_one_receive_queue
                unpolled_receives_do_not_pile_up_without_end
            }
            order {
                completions_come_oldest_first_on_each_link
                unsignalled_success_is_silent
                unsignalled_requests_never_fill_the_queue_for_good
                unsignalled_failure_is_reported
                post_list_takes_effect_in_order
                empty_lists_are_nothing
                read_sees_an_earlier_write_of_its_link
                fence_waits_for_earlier_reads
                one_sided_requests_need_nothing_of_the_target
                request_within_its_call_has_its_effect_and_no_completion
                full_queue_refuses_and_recovers
                queue_takes_as_many_as_declared
                write_is_visible_when_a_later_send_is_received
                flag_written_after_data_is_seen_after_data
                bytes_of_a_write_land_in_rising_order
            }
            refusal {
                unknown_link_is_refused
                unknown_local_region_is_refused
                local_bounds_are_held_to_the_byte
                too_many_slices_are_refused
                too_many_inline_bytes_are_refused
                too_long_messages_are_refused
                atomic_result_must_be_an_aligned_word
                remote_region_of_another_link_is_refused
                bad_receives_are_refused
                oversized_regions_are_refused
                what_is_lacking_is_refused_by_name
            }
            protection {
                forged_keys_are_refused
                forged_region_numbers_are_refused
                keys_differ_between_regions_and_registrations
                stale_keys_are_refused
                remote_bounds_are_held_to_the_byte
                long_requests_do_not_reach_over_the_end
                claims_of_a_token_grant_nothing
                each_permission_is_needed
                each_permission_is_enough
                misaligned_atomics_are_refused
                owner_needs_no_permission
                nothing_reaches_memory_after_its_deregistration
                nothing_of_a_link_reaches_memory_after_its_close
            }
            connection {
                hello_and_reply_arrive_whole
                refusal_brings_its_reason
                link_is_unusable_until_accepted
                unknown_links_and_queues_are_refused
                connect_without_listener_is_not_reached
                a_port_tells_where_it_is_reached
                receive_queues_end_and_come_again
                address_in_use_is_said_and_is_free_after_its_port
                requests_to_a_dropped_port_lose_the_peer
                close_is_seen_by_the_peer_and_flushes_here
                reconnect_after_close_gives_new_links
                lost_peer_fails_its_links_and_no_other
                messages_before_a_loss_come_before_it
                receives_survive_the_loss_of_a_link
                requester_that_left_is_no_link
                listener_that_leaves_ends_requests
                crossing_connections_make_two_links
                many_links_of_one_port_work
                links_max_is_a_limit
                sender_learns_of_peer_death_amid_messages
            }
            sleep {
                arm_tells_of_what_is_here_already
                time_runs_out_and_wake_ends_a_sleep
                link_events_wake_a_sleeper
                link_events_wake_who_sleeps_on_another_port
                no_wake_up_is_lost
            }
            flush {
                atomic_write_replaces_a_word_after_what_came_before
                flush_completes_once_everything_before_it_is_visible
                flush_needs_its_permission
                what_cannot_be_flushed_is_refused_by_name
                memory_that_the_caller_brings_serves_like_any_other
            }
            region {
                end_of_a_mirrored_region_joins_its_beginning_here
                requests_pass_the_joint_of_a_mirrored_region
                bounds_of_a_mirrored_region_are_two_turns
                memory_at_the_adapter_serves_like_any_other
                memory_at_the_adapter_is_bounded_and_comes_back
                what_is_reached_is_what_lies_there
                loads_see_stores_in_the_order_of_a_sequence_lock
                a_reached_word_outlives_its_link
                kinds_that_are_lacking_are_refused_by_name
            }
            relaxed {
                relaxed_memory_is_whole_behind_a_message
                relaxed_memory_is_read_and_counted_as_any_other
            }
            whole {
                words_of_a_write_are_never_torn
                words_of_a_read_are_never_torn
                bytes_of_a_write_are_seen_in_rising_order
                bytes_of_a_write_land_once
            }
            random {
                one_sided_requests_agree_with_an_oracle
                messages_agree_with_an_oracle
            }
        }
    };
}

macro_rules! case_table {
    ($($module:ident { $($case:ident)* })*) => {
        /// Every case: `module::property`, and its test.
        pub const CASES: &[(&str, Case)] = &[
            $($((concat!(stringify!($module), "::", stringify!($case)), $module::$case),)*)*
        ];
    };
}

for_each_conformance_case!([case_table]);

/// Runs every case, one after the other, on one subject; for a backend that cannot use
/// [`conformance_suite!`](crate::conformance_suite).
///
/// # Panics
/// If the subject fails.
pub fn run(subject: &dyn Subject) {
    for (_, case) in CASES {
        case(subject);
    }
}

/// Runs one case by its name in [`CASES`].
///
/// # Panics
/// If the subject fails, and if there is no such case.
pub fn run_case(name: &str, subject: &dyn Subject) {
    let found = CASES.iter().find(|(known, _)| *known == name);
    let (_, case) = found.expect("a name of `CASES`");
    case(subject);
}

/// Makes one `#[test]` of each conformance case, in a module `conformance`. The expression is
/// evaluated for each and gives a [`Subject`](crate::conformance::Subject).
#[macro_export]
macro_rules! conformance_suite {
    ($subject:expr) => {
        $crate::for_each_conformance_case! { [$crate::conformance_tests] [$subject] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ([$subject:expr] $($module:ident { $($case:ident)* })*) => {
        mod conformance {
            #[allow(unused_imports, reason = "the subject's expression may need none of them")]
            use super::*;
            $(mod $module {
                #[allow(unused_imports, reason = "the subject's expression may need none of them")]
                use super::*;
                $(#[test]
                fn $case() {
                    let subject = $subject;
                    let name = concat!(stringify!($module), "::", stringify!($case));
                    $crate::conformance::run_case(name, &subject);
                })*
            })*
        }
    };
}
