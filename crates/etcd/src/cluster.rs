//! The members of the cluster: looks at all of them for operators, apart from calls.

use std::sync::Arc;

use futures_util::future::join_all;
use hashbrown::{HashMap, HashSet};
use oncegate_coordination::members::{self, LOOK_TIMEOUT};
use oncegate_coordination::url::Address;
use oncegate_core::engine::{Node, NodeRole};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::proto::{MEMBER_LIST, MemberListRequest, STATUS, StatusRequest, StatusResponse};
use super::store::{PROXY, Store};
use super::version;

/// Warning about a learner.
pub(super) const LEARNER: &str =
    "it is a learner, which answers no calls: promote it (etcdctl member promote), or leave it out of the URL";

/// Looks at the members until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, closing: CancellationToken) {
    let mut clients = HashMap::new();
    while let Some(nodes) = closing.run_until_cancelled(look(&store, &mut clients)).await {
        store.state.members.record(nodes);
        if !members::is_due(&closing).await {
            return;
        }
    }
}

/// Asks every member for its status. Connections are kept for the next look, since a new one may cost a check of a password.
async fn look(store: &Store, clients: &mut HashMap<Address, Client>) -> Vec<Node> {
    let ask = |address: Address| {
        let client = clients.remove(&address);
        async move {
            let asked = timeout(LOOK_TIMEOUT, status_of(store, &address, client)).await;
            (address, asked.ok().flatten())
        }
    };
    let asked: Vec<_> = store.all_members().into_iter().map(ask).collect();
    let answers = join_all(asked).await;
    learn(store, &answers).await;
    let (mut nodes, mut ids, mut cluster_id) = (Vec::new(), HashSet::new(), None);
    for (address, answer) in answers {
        let Some((client, status)) = answer else {
            nodes.push(members::silent(&address));
            continue;
        };
        clients.insert(address.clone(), client);
        let warning = store.list_warning(&address);
        // The list of members may name it in another way than the URL.
        if ids.insert((status.cluster_id(), status.member_id())) || warning == Some(PROXY) {
            let cluster_id = *cluster_id.get_or_insert(status.cluster_id());
            nodes.push(node(&address, &status, warning, cluster_id));
        }
    }
    nodes
}

/// Asks the most advanced voter for the list of members. Sessions ask for it too, but one session may last while all other members
/// are replaced, and would leave the gateway without a member once it ends.
async fn learn(store: &Store, answers: &[(Address, Option<(Client, StatusResponse)>)]) {
    let answered = answers.iter().filter_map(|(address, answer)| answer.as_ref().map(|answer| (address, answer)));
    let voters = answered.filter(|(_, (_, status))| !status.is_learner && status.leader != 0);
    let revision = |status: &StatusResponse| status.header.as_ref().map_or(0, |header| header.revision);
    let Some((address, (client, _))) = voters.max_by_key(|(_, (_, status))| revision(status)) else { return };
    let listing = client.call(MEMBER_LIST, || MemberListRequest {});
    if let Ok(Ok(listed)) = timeout(LOOK_TIMEOUT, listing).await {
        store.learn(address, &listed);
    }
}

async fn status_of(store: &Store, address: &Address, client: Option<Client>) -> Option<(Client, StatusResponse)> {
    let client = match client {
        Some(client) => client,
        None => Client::connect(&store.url.common, store.authentication.clone(), address).await.ok()?,
    };
    let status = client.call(STATUS, || StatusRequest {}).await.ok()?;
    Some((client, status))
}

fn node(address: &Address, status: &StatusResponse, list_warning: Option<&str>, cluster_id: u64) -> Node {
    let mut warnings: Vec<String> = list_warning.map(str::to_owned).into_iter().collect();
    warnings.extend(version::check(&status.version).err().map(|why| members::text(why.reason())));
    if status.is_learner {
        warnings.push(LEARNER.to_owned());
    }
    if status.cluster_id() != cluster_id {
        warnings.push("it is a member of another cluster: name the members of one cluster in the URL".to_owned());
    }
    warnings.extend(status.errors.iter().map(|error| format!("it reports: {}", members::text(error))));
    let role = if list_warning == Some(PROXY) { NodeRole::Unknown } else { role(status) };
    let version = Some(members::text(&status.version)).filter(|version| !version.is_empty());
    Node { role, version, up: true, warnings, ..members::silent(address) }
}

/// Returns the role of a member.
pub(super) fn role(status: &StatusResponse) -> NodeRole {
    if status.is_learner {
        NodeRole::Learner
    } else if status.leader == 0 {
        NodeRole::Unknown
    } else if status.leader == status.member_id() {
        NodeRole::Leader
    } else {
        NodeRole::Follower
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::ResponseHeader;
    use super::super::store::ONLY_MEMBER;
    use super::*;

    fn status(member_id: u64, leader: u64, is_learner: bool) -> StatusResponse {
        let header = ResponseHeader { cluster_id: 1, member_id, revision: 5 };
        StatusResponse {
            header: Some(header),
            version: "3.6.8".into(),
            leader,
            is_learner,
            ..StatusResponse::default()
        }
    }

    #[test]
    fn a_role_is_that_of_the_member_which_answered() {
        for (status, expected) in [
            (status(7, 7, false), NodeRole::Leader),
            (status(7, 8, false), NodeRole::Follower),
            (status(7, 0, false), NodeRole::Unknown),
            (status(7, 8, true), NodeRole::Learner),
        ] {
            assert_eq!(role(&status), expected, "{status:?}");
        }
    }

    #[test]
    fn what_is_unusual_about_a_member_is_a_warning() {
        let address = Address { host: "e1".into(), port: 2379 };
        let warnings = |status: &StatusResponse, list| node(&address, status, list, 1).warnings.join("; ");
        assert_eq!(warnings(&status(7, 7, false), None), "");
        assert_eq!(warnings(&status(7, 8, true), None), LEARNER);
        assert_eq!(warnings(&status(7, 7, false), Some(ONLY_MEMBER)), ONLY_MEMBER);
        let old = StatusResponse { version: "3.5.1".into(), ..status(7, 7, false) };
        assert!(warnings(&old, None).contains("use 3.4.23"), "{}", warnings(&old, None));
        let full = StatusResponse { errors: vec!["NOSPACE\n".into()], ..status(7, 7, false) };
        assert_eq!(warnings(&full, None), "it reports: NOSPACE");
        assert!(node(&address, &status(7, 7, false), None, 2).warnings[0].contains("another cluster"));
        assert_eq!(node(&address, &status(7, 7, false), Some(PROXY), 1).role, NodeRole::Unknown);
    }
}
