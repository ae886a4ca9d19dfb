//! The conformance suite of all engines and wrappers: a function for each rule of the contract, named after the rule, and a
//! file for each subject.
//!
//! `oncegate_core::conformance!(open)` creates a test of each rule. `open` is an expression with a future of an `Option<Subject>`:
//! `None` if the engine's server is not installed.

mod batches;
mod claims;
mod ends;
mod expiry;
mod history;
mod locks;
mod notifications;
mod operators;
mod outcomes;
mod realms;
mod records;
mod requests;
mod subject;

pub use self::batches::*;
pub use self::claims::*;
pub use self::ends::*;
pub use self::expiry::*;
pub use self::history::*;
pub use self::locks::*;
pub use self::notifications::*;
pub use self::operators::*;
pub use self::outcomes::*;
pub use self::realms::*;
pub use self::records::*;
pub use self::requests::{DEADLINE, fresh_claim};
pub use self::subject::Subject;

/// Creates a test of each rule. The argument is an expression with a future of an `Option<Subject>`.
#[macro_export]
macro_rules! conformance {
    ($open:expr) => {
        $crate::conformance! { $open;
            a_first_claim_is_granted
            a_second_attempt_is_a_duplicate_and_changes_nothing
            of_many_racing_claims_exactly_one_is_granted
            the_same_nonce_gets_the_same_attempt_and_the_remaining_lease
            a_repeated_call_finds_its_own_claim
            other_contents_under_the_same_key_are_refused
            another_fingerprint_is_refused_in_every_state
            a_success_is_final_and_replays_its_result
            the_first_result_stays
            a_failure_frees_the_key_at_once
            an_unknown_claim_blocks_until_it_is_taken_over
            the_holder_settles_its_unknown_claim
            only_the_holder_settles
            a_lease_ends_by_itself
            the_end_of_a_lease_can_mean_unknown
            a_retention_ends_by_itself
            a_retention_may_last_for_ever
            a_success_may_have_its_own_retention
            an_unknown_retention_ends_by_itself
            a_renewal_extends_and_never_shortens
            a_renewal_without_the_claim_is_refused
            every_answer_about_a_record_names_one_end
            late_outcomes_are_recorded
            a_late_outcome_that_is_too_old_is_refused
            a_late_record_with_contents_still_compares_them
            a_late_failure_releases_nothing
            apps_do_not_see_each_other
            the_same_id_in_two_realms_is_two_records
            a_record_of_the_proxy_is_kept_as_any_claim
            a_list_has_one_realm
            a_notification_has_one_realm
            a_read_returns_the_live_claim
            long_contents_are_kept_as_a_digest_and_still_compared
            the_caller_is_kept_with_its_claim
            fences_rise_strictly_where_promised
            concurrent_calls_each_get_their_own_answer
            claims_of_a_batch_are_each_answered_once
            a_release_ends_a_claim_in_any_state
            a_release_by_another_attempt_changes_nothing
            an_operator_replaces_the_result_of_a_success_only
            a_released_holder_holds_nothing
            a_release_keeps_fences_rising
            a_list_is_ordered_by_global_id_and_paged
            a_list_contains_the_live_claims
            metadata_is_stored_only_over_the_expected_value
            of_many_racing_compare_and_sets_exactly_one_succeeds
            the_end_of_a_claim_is_notified_to_those_who_wait_for_it
            the_end_of_a_claim_that_was_waited_for_is_notified
            a_subscription_that_was_dropped_at_once_costs_the_next_one_no_notification
            a_waiting_claim_changes_nothing_of_the_claim_in_its_way
            a_waiting_claim_has_the_answer_of_any_other
            of_many_racing_waiting_claims_exactly_one_is_granted
            a_record_is_changed_only_over_the_expected_version
            a_change_outside_its_bounds_of_time_is_refused
            a_record_that_has_ended_is_absent
            locks_of_apps_do_not_share_records
            degraded_grants_are_in_the_shard_of_their_key
            degraded_grants_are_of_one_claim_and_in_no_list
            a_change_that_notifies_reaches_the_subscriptions_of_its_record
            an_exclusive_hold_excludes_every_other_owner
            shared_holds_exclude_exclusive_ones_only
            of_many_racing_requests_for_a_lock_exactly_one_is_granted
            the_holds_of_an_owner_are_a_set_of_nonces
            a_sole_sharer_of_a_lock_is_upgraded_and_one_of_several_is_refused
            a_downgrade_of_a_lock_lets_others_share_it
            a_lock_with_a_limit_has_as_many_holds_and_no_more
            a_withdrawn_nonce_of_a_lock_is_refused
            fair_requests_for_a_lock_are_granted_in_order_and_none_barges
            a_queued_exclusive_request_blocks_new_owners_and_not_those_that_hold_the_lock
            dead_heads_of_the_queue_of_a_lock_lose_their_places
            a_lock_whose_lease_has_ended_is_granted_again_with_a_higher_fence
            fences_of_a_lock_rise_over_releases
            a_renewal_of_a_hold_extends_and_never_shortens_it
            a_change_decided_on_an_older_state_of_a_lock_is_refused
            a_list_of_locks_is_ordered_by_name_and_paged
            any_history_agrees_with_the_table
        }
    };
    ($open:expr; $($rule:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $rule() {
            let subject: Option<$crate::engine::conformance::Subject> = $open.await;
            if let Some(subject) = subject {
                $crate::engine::conformance::$rule(&subject).await;
            }
        }
    )*};
}
