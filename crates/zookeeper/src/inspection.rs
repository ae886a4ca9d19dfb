//! Checks every server that a URL names, for `oncegate config check --connect`. No node is written: the multi that tests the rights
//! ends with a change that never fits, so that ZooKeeper makes none of its changes.

use bytes::Bytes;
use futures_util::future::join_all;
use oncegate_coordination::inspection::{TIMEOUT, mib, no_connection};
use oncegate_coordination::members::text;
use oncegate_coordination::time;
use oncegate_coordination::url::Address;
use oncegate_core::engine::{Determinate, EngineError};
use oncegate_driver::scheme::{Inspection, ServerName};
use tokio::time::timeout;

use super::client::Client;
use super::ensemble::{ONLY_SERVER, WITHOUT_WORDS};
use super::failure::Failure;
use super::keys::{self, Keys};
use super::members::{self, CONFIGURATION};
use super::proto::{Body, Change, Reply, Request, code};
use super::session::DATA_IN_HEAP;
use super::url::Url;
use super::words;

/// A node that each ZooKeeper has.
const ALWAYS: &str = "/zookeeper";

/// Answers of a server.
struct Look {
    /// The answer to `srvr`, if it allows that.
    srvr: Option<String>,
    /// Bytes of all nodes, if it allows `mntr`.
    data_bytes: Option<u64>,
    /// The marker of the store, if there is one.
    marker: Option<Bytes>,
    /// The ensemble, as it names itself.
    ensemble: Option<String>,
}

/// Checks every server that the URL names.
pub(super) async fn inspect(url: &str) -> Inspection {
    let url = match Url::parse(url) {
        Ok(url) => url,
        Err(error) => return Inspection::of_problem(error.to_string()),
    };
    let mut found = Inspection::default();
    let members = &url.common.members;
    let looks = join_all(members.iter().map(|member| look(&url, member))).await;
    let mut markers: Vec<(Bytes, &Address)> = Vec::new();
    for (member, look) in members.iter().zip(looks) {
        let look = match look {
            Ok(look) => look,
            Err(problem) => {
                found.problems.push(problem);
                continue;
            }
        };
        found.facts.push(format!("{member}: {}", facts(&url, &look)));
        let mode = look.srvr.as_deref().and_then(words::mode);
        let version = look.srvr.as_deref().and_then(words::version);
        if look.srvr.is_none() {
            found.warnings.push(format!("{member}: {WITHOUT_WORDS}"));
        } else if !version.is_some_and(words::is_durable) {
            found.warnings.push(format!(
                "{member}: ZooKeeper {} may lose writes that it has acknowledged, so the engine is never durable: use 3.9.4 or later",
                text(version.unwrap_or("of an unknown version"))
            ));
        }
        if url.heap.is_some() && look.data_bytes.is_none() {
            found.warnings.push(format!(
                "{member}: it does not allow mntr, so heap= stops no grants: set 4lw.commands.whitelist=srvr,mntr"
            ));
        }
        match mode {
            Some("standalone") if members.len() > 1 => found.problems.push(format!(
                "{member} is a server without others, and the URL names {}: name the servers of one ensemble",
                members.len()
            )),
            Some("standalone") => found.warnings.push(format!("{member}: {ONLY_SERVER}")),
            _ => {}
        }
        let server = look.ensemble.map(|name| ServerName { name, is_unique: false });
        found.server = found.server.take().or(server);
        if let Some(marker) = look.marker
            && markers.iter().all(|(other, _)| *other != marker)
        {
            markers.push((marker, member));
        }
    }
    if let [(_, first), others @ ..] = &markers[..] {
        found.problems.extend(others.iter().map(|(_, member)| {
            format!("{first} and {member} have different data: name the servers of one ensemble in the URL")
        }));
    }
    found
}

async fn look(url: &Url, member: &Address) -> Result<Look, String> {
    let srvr = async { timeout(TIMEOUT, words::ask(&url.common, member, "srvr")).await.ok().flatten() };
    let mntr = async { timeout(TIMEOUT, words::ask(&url.common, member, "mntr")).await.ok().flatten() };
    let session = async { timeout(TIMEOUT, Client::connect(&url.common, member, url.session)).await };
    let (srvr, mntr, session) = tokio::join!(srvr, mntr, session);
    let silent = || Determinate::Unavailable(format!("no session within {TIMEOUT:?}: it hangs, or has no quorum"));
    let session = session.unwrap_or_else(|_elapsed| Err(silent()));
    let (client, _events) = session.map_err(|why| no_connection(member, &why))?;
    check_rights(url, &client).await.map_err(|failure| refusal(member, &failure))?;
    let marker = get(&client, &Keys::new(&url.root).marker).await.map_err(|failure| refusal(member, &failure))?;
    let marker = if let Node::There(marker) = marker { Some(marker) } else { None };
    let configuration = get(&client, CONFIGURATION).await.map_err(|failure| refusal(member, &failure))?;
    let ensemble = if let Node::There(lines) = configuration { members::ensemble(&lines) } else { None };
    Ok(Look { srvr, data_bytes: mntr.as_deref().and_then(words::data_bytes), marker, ensemble })
}

/// Tests that the user may make the nodes that the engine needs, those that are there included, and that a quorum decides.
async fn check_rights(url: &Url, client: &Client) -> Result<(), Failure> {
    let keys = Keys::new(&url.root);
    let chroot = &url.common.path;
    if !chroot.is_empty() && matches!(get(client, chroot).await?, Node::Missing) {
        return Err(Failure::unfit_store(format!(
            "the chroot {chroot} is not there: make it (zkCli.sh: create {chroot}), or leave it out of the URL"
        )));
    }
    let mut missing = Vec::new();
    let probe = format!("{}/check", keys.metadata);
    for path in url.above().into_iter().chain([keys.claims, keys.grants, keys.locks, keys.metadata, probe]) {
        if missing.is_empty() || keys::parent(&path) == url.root {
            match get(client, &path).await? {
                Node::Missing => missing.push(path),
                Node::There(_) | Node::Hidden => {}
            }
        } else {
            missing.push(path);
        }
    }
    // The last change does not fit: no node has this version.
    let creates = missing.iter().map(|path| Change::Create(path.clone(), Bytes::new()));
    let changes = creates.chain([Change::Check(ALWAYS.to_owned(), i32::MAX)]).collect();
    match one(client, Request::Change(changes)).await?.body {
        Ok(Body::Refused(position, code::NO_AUTH)) if position < missing.len() => {
            return Err(Failure::of_code(code::NO_AUTH, keys::parent(&missing[position])));
        }
        Ok(Body::Refused(..)) => {}
        Ok(_) => return Err(Failure::unfit()),
        Err(code) => return Err(Failure::of_code(code, &url.root)),
    }
    // The clock belongs to the user that made it.
    match get(client, &keys.clock).await? {
        Node::Hidden => Err(Failure::of_code(code::NO_AUTH, &keys.clock)),
        Node::There(clock) => time::read(&clock, &keys.clock).map(drop).map_err(Failure::refused),
        Node::Missing => Ok(()),
    }
}

/// A node, as the user may see it.
enum Node {
    There(Bytes),
    Missing,
    /// The user may not read it.
    Hidden,
}

async fn get(client: &Client, path: &str) -> Result<Node, Failure> {
    match one(client, Request::Get(path.to_owned())).await?.body {
        Ok(Body::Data(value, _)) => Ok(Node::There(value)),
        Err(code::NO_NODE) => Ok(Node::Missing),
        Err(code::NO_AUTH) => Ok(Node::Hidden),
        Err(code) => Err(Failure::of_code(code, path)),
        Ok(_) => Err(Failure::unfit()),
    }
}

async fn one(client: &Client, request: Request) -> Result<Reply, Failure> {
    let silent = || Failure::lost(format!("no answer within {TIMEOUT:?}"));
    let replies = timeout(TIMEOUT, client.send(vec![request])).await.unwrap_or_else(|_elapsed| Err(silent()))?;
    replies.into_iter().next().ok_or_else(Failure::unfit)
}

fn facts(url: &Url, look: &Look) -> String {
    let mode = look.srvr.as_deref().and_then(words::mode).map_or_else(|| "mode unknown".to_owned(), text);
    let version =
        look.srvr.as_deref().and_then(words::version).map_or_else(|| "of an unknown version".to_owned(), text);
    let room = match (look.data_bytes, url.heap) {
        (Some(used), Some(heap)) => format!("{} of {} of data", mib(used), mib(heap / DATA_IN_HEAP)),
        (Some(used), None) => format!("{} of data", mib(used)),
        (None, _) => "size unknown".to_owned(),
    };
    format!("{mode}, ZooKeeper {version}, the quorum answers, {room}")
}

/// Returns the problem of a server that does not do what the engine needs.
fn refusal(member: &Address, failure: &Failure) -> String {
    let why = failure.answer.reason();
    match &failure.answer {
        EngineError::Determinate(Determinate::Incompatible(_)) => format!("{member}: {why}"),
        _ => format!("{member} has no quorum, or is too slow: {why}. Start a majority of the servers"),
    }
}
