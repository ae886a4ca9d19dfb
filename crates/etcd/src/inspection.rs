//! Checks every member that a URL names, for `oncegate config check --connect`. Nothing is written: the transaction that tests the
//! rights has a condition that never holds, and etcd checks the rights to both of its branches.

use futures_util::future::join_all;
use oncegate_coordination::inspection::{TIMEOUT, mib, no_connection};
use oncegate_coordination::members::text;
use oncegate_coordination::step::Stepped;
use oncegate_coordination::time;
use oncegate_coordination::tls::with_tls_hint;
use oncegate_coordination::url::Address;
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_driver::scheme::{Inspection, ServerName};
use tokio::time::timeout;

use super::authentication::Authentication;
use super::client::Client;
use super::cluster::{self, LEARNER};
use super::compaction::{is_compacted, range_at};
use super::failure::Failure;
use super::keys::Keys;
use super::proto::{
    MEMBER_LIST, MemberListRequest, MemberListResponse, RANGE, RangeResponse, STATUS, StatusRequest, StatusResponse,
    TxnRequest, TxnResponse,
};
use super::step;
use super::store::{self, PROXY};
use super::url::{self, Url};
use super::version;

/// Without a compaction up to this revision, the history is likely never to be compacted: the clock alone is ten
/// revisions a second.
const REVISION_LARGE: i64 = 36_000;

/// The part of a member's answers that does not depend on the rights of the user.
struct Look {
    client: Client,
    status: StatusResponse,
    /// Its list of the members, if it gives one.
    listed: Option<MemberListResponse>,
}

/// Checks every member that the URL names.
pub(super) async fn inspect(url: &str) -> Inspection {
    let url = match Url::parse(url) {
        Ok(url) => url,
        Err(error) => return Inspection::of_problem(error.to_string()),
    };
    let mut found = Inspection::default();
    let looks = join_all(url.common.members.iter().map(|member| look(&url, member))).await;
    let mut clusters: Vec<(u64, Address)> = Vec::new();
    let mut listed = None;
    for (member, look) in url.common.members.iter().zip(looks) {
        let Look { client, status, listed: members } = match look {
            Ok(look) => look,
            Err(problem) => {
                found.problems.push(problem);
                continue;
            }
        };
        if clusters.iter().all(|(id, _)| *id != status.cluster_id()) {
            clusters.push((status.cluster_id(), member.clone()));
        }
        let quorum = quorum(&url, &client).await;
        let answers = if quorum.is_ok() { "the quorum answers" } else { "no answer from a quorum" };
        let history = history(&url, &client).await;
        found.facts.push(format!(
            "{member}: {}, {answers}, {}",
            facts(&status),
            history.as_deref().unwrap_or("history unknown")
        ));
        found.problems.extend(version::check(&status.version).err().map(|why| format!("{member}: {}", why.reason())));
        if status.is_learner {
            found.problems.push(format!("{member}: {LEARNER}"));
        } else if let Err(failure) = quorum {
            found.problems.push(refusal(&url, member, &failure));
        }
        if history.as_deref() == Some(NEVER_COMPACTED) && status.revision() > REVISION_LARGE && url.compact.is_none() {
            found.warnings.push(format!(
                "{member}: its history was never compacted: start every member with --auto-compaction-mode=periodic \
                 --auto-compaction-retention=1m; or, if nothing else uses this etcd, write ?compact=1m into the URL"
            ));
        }
        let warning = members.as_ref().and_then(store::warning);
        found.warnings.extend(warning.map(|warning| format!("{member}: {warning}")));
        if warning != Some(PROXY) {
            listed = listed.or(members);
        }
    }
    if let [(first, of_first), others @ ..] = &clusters[..] {
        // Clusters that were started with the same addresses and token have the same ID.
        found.server = Some(ServerName { name: format!("etcd cluster {first:x}"), is_unique: false });
        found.problems.extend(others.iter().map(|(id, member)| {
            format!(
                "{of_first} is in cluster {first:x}, and {member} in cluster {id:x}: name the members of one cluster in the URL"
            )
        }));
    }
    if let Some(listed) = listed {
        check_listed(&url, &listed, &mut found).await;
    }
    found
}

/// Checks the addresses that gateways will learn from the list of members.
async fn check_listed(url: &Url, listed: &MemberListResponse, found: &mut Inspection) {
    let voters = listed.members.iter().filter(|member| !member.is_learner);
    found.facts.push(format!("members with a vote: {}", voters.clone().count()));
    if url.common.are_members_fixed {
        return;
    }
    let addresses = voters.flat_map(|member| &member.client_urls).filter_map(|address| url::listed(address));
    let learnt: Vec<_> = addresses.filter(|address| !url.common.members.contains(address)).collect();
    let connected = join_all(learnt.iter().map(|address| connect(url, address))).await;
    for (address, connected) in learnt.iter().zip(connected) {
        if let Err(why) = connected {
            found.warnings.push(format!(
                "the cluster lists the address {address}, which does not answer: {}. Correct --advertise-client-urls of that member, \
                 or name all members in the URL and add members=fixed",
                why.reason()
            ));
        }
    }
}

async fn connect(url: &Url, member: &Address) -> Result<Client, Determinate> {
    let silent = || Determinate::Unavailable(format!("no connection within {TIMEOUT:?}"));
    timeout(TIMEOUT, Client::connect(&url.common, Authentication::of(&url.common), member))
        .await
        .unwrap_or_else(|_elapsed| Err(silent()))
}

async fn look(url: &Url, member: &Address) -> Result<Look, String> {
    let down = |why| no_connection(member, &with_tls_hint(&url.common, "etcd", why));
    let client = connect(url, member).await.map_err(|why| match &why {
        why if why.reason().contains("authentication is not enabled") => {
            format!("{member}: the URL has a user, and etcd has none: leave USER:PASSWORD@ out of the URL")
        }
        Determinate::Incompatible(why) if why.contains("authentication failed") => format!(
            "{member}: {why}: correct USER:PASSWORD@ in the URL, with special characters percent-encoded, or set the password with \
             etcdctl user passwd"
        ),
        _ => down(why),
    })?;
    let status = limited(client.call(STATUS, || StatusRequest {})).await;
    let status: StatusResponse = status.map_err(|failure| down(failure.answer.without_effect()))?;
    let listed = limited(client.call(MEMBER_LIST, || MemberListRequest {})).await.ok();
    Ok(Look { client, status, listed })
}

/// Tests that a quorum answers, and that the user may read and write the engine's keys.
async fn quorum(url: &Url, client: &Client) -> Result<(), Failure> {
    let keys = Keys::new(&url.prefix);
    let never = || TxnRequest {
        compare: vec![step::never(&keys.clock)],
        success: vec![step::put(&keys.clock)],
        failure: vec![step::read(&keys.clock), step::read(&keys.marker)],
    };
    let TxnResponse { responses, .. } = limited(client.txn(never)).await?;
    let clock = responses.into_iter().next().map(|response| step::result_of(response, 0));
    if let Some(Ok(Stepped::Found(Some(clock)))) = clock {
        time::read(&clock.value, &String::from_utf8_lossy(&keys.clock)).map_err(Failure::refused)?;
    }
    Ok(())
}

/// The words for a history that was never compacted.
const NEVER_COMPACTED: &str = "history never compacted";

/// Returns whether the history was ever compacted; `None` if that cannot be read.
async fn history(url: &Url, client: &Client) -> Option<String> {
    let keys = Keys::new(&url.prefix);
    let read: Result<RangeResponse, _> = limited(client.call(RANGE, || range_at(&keys.clock, 1))).await;
    let words = if is_compacted(read).ok()? { "history compacted" } else { NEVER_COMPACTED };
    Some(words.to_owned())
}

fn facts(status: &StatusResponse) -> String {
    let (used, quota) = (mib(status.bytes_used()), mib(status.quota()));
    let assumed = if status.has_quota() { "" } else { " (the default: it reports no quota)" };
    format!(
        "{}, etcd {}, cluster {:x}, {used} of {quota}{assumed} in use",
        cluster::role(status).as_str(),
        text(&status.version),
        status.cluster_id()
    )
}

/// Returns the problem of a member that does not execute a transaction.
fn refusal(url: &Url, member: &Address, failure: &Failure) -> String {
    let (why, prefix) = (failure.answer.reason(), &url.prefix);
    if why.contains("permission denied") {
        return format!(
            "{member}: the user of the URL may not read and write {prefix}/: etcdctl role grant-permission ROLE --prefix=true readwrite \
             {prefix}/"
        );
    }
    match &failure.answer {
        EngineError::Determinate(Determinate::Incompatible(_) | Determinate::Full(_)) => format!("{member}: {why}"),
        _ => format!("{member} has no quorum: {why}. Start a majority of the members"),
    }
}

async fn limited<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let silent = || Failure::lost(format!("no answer within {TIMEOUT:?}"));
    timeout(TIMEOUT, call).await.unwrap_or_else(|_elapsed| Err(silent()))
}
