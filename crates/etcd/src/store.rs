//! State that all sessions of an engine share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oncegate_coordination::State;
use oncegate_coordination::gate::Gate;
use oncegate_coordination::members::{self, MEMBERS_MAX};
use oncegate_coordination::options::Options;
use oncegate_coordination::url::Address;

use super::authentication::Authentication;
use super::history::History;
use super::keys::Keys;
use super::proto::{MemberListResponse, StatusResponse};
use super::url::{self, Url};

/// Warning about a cluster of one member.
pub(super) const ONLY_MEMBER: &str = "it is the only member: claims survive what its disk survives; run three members";

/// Warning about a proxy.
pub(super) const PROXY: &str = "it is a grpc-proxy, which hides the members: name the members in the URL";

/// State that all sessions of an engine share.
pub(super) struct Store {
    pub(super) url: Url,
    pub(super) keys: Keys,
    pub(super) state: Arc<State>,
    pub(super) authentication: Option<Arc<Authentication>>,
    /// Held by the sweeper alone.
    pub(super) history: tokio::sync::Mutex<History>,
    known: Mutex<Known>,
}

/// Observed state of the cluster.
#[derive(Default)]
struct Known {
    /// Members, those of the URL first.
    members: Vec<Address>,
    /// Members that do not count for the quorum. They answer no calls.
    learners: Vec<Address>,
    /// What is unusual about the list of members, and the member that gave it.
    list_warning: Option<(Address, &'static str)>,
}

impl Store {
    pub(super) fn new(url: Url, options: Options) -> Self {
        let (members, address) = (url.common.members.clone(), url.common.addresses());
        Self {
            keys: Keys::new(&url.prefix),
            state: Arc::new(State::new("etcd", address, options, Gate::new("etcd", "grant_until"))),
            authentication: Authentication::of(&url.common),
            history: tokio::sync::Mutex::new(History::new(url.compact)),
            known: Mutex::new(Known { members, ..Known::default() }),
            url,
        }
    }

    /// Returns the members.
    pub(super) fn members(&self) -> Vec<Address> {
        self.known().members.clone()
    }

    /// Returns the members and the learners, for operators.
    pub(super) fn all_members(&self) -> Vec<Address> {
        let known = self.known();
        let learners = known.learners.iter().filter(|learner| !known.members.contains(learner));
        known.members.iter().chain(learners).cloned().collect()
    }

    /// Returns what is unusual about the cluster, as this member has listed its members.
    pub(super) fn list_warning(&self, member: &Address) -> Option<&'static str> {
        self.known().list_warning.as_ref().filter(|(source, _)| source == member).map(|(_, warning)| *warning)
    }

    /// Adds the members that the cluster lists to those of the URL.
    pub(super) fn learn(&self, source: &Address, listed: &MemberListResponse) {
        let list_warning = warning(listed).map(|warning| (source.clone(), warning));
        let addresses = |is_learner: bool| {
            let members = listed.members.iter().filter(move |member| member.is_learner == is_learner);
            members.flat_map(|member| &member.client_urls).filter_map(|address| url::listed(address))
        };
        let mut known = self.known();
        known.list_warning = list_warning;
        if self.url.common.are_members_fixed {
            return;
        }
        known.members = members::with_listed(&self.url.common.members, addresses(false));
        known.learners = addresses(true).take(MEMBERS_MAX).collect();
    }

    /// Records the size that a member reports.
    pub(super) fn report_size(&self, status: &StatusResponse) {
        let (used, quota) = (status.bytes_used(), status.quota());
        self.state.gate.report_size(used, self.url.grant_until.unwrap_or(quota / 5 * 4));
        // etcd counts no bytes of nested transactions, which all writes of an engine are, and takes them beyond its quota.
        self.state.gate.report_alarm(status.errors.iter().any(|error| error.contains("NOSPACE")));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what is unusual about a cluster with this list of members. A proxy lists itself, and has no ID.
pub(super) fn warning(listed: &MemberListResponse) -> Option<&'static str> {
    let voters = listed.members.iter().filter(|member| !member.is_learner).count();
    if listed.members.iter().any(|member| member.id == 0) { Some(PROXY) } else { (voters == 1).then_some(ONLY_MEMBER) }
}

#[cfg(test)]
mod tests {
    use super::super::proto::Member;
    use super::*;

    #[test]
    fn a_list_of_one_member_or_of_a_proxy_is_unusual() {
        let list = |members: &[(u64, bool)]| {
            let member =
                |(id, is_learner): &(u64, bool)| Member { id: *id, is_learner: *is_learner, ..Member::default() };
            warning(&MemberListResponse { members: members.iter().map(member).collect() })
        };
        assert_eq!(list(&[(1, false), (2, false), (3, false)]), None);
        assert_eq!(list(&[(1, false), (2, true)]), Some(ONLY_MEMBER));
        assert_eq!(list(&[(0, false)]), Some(PROXY));
    }
}
