//! Lists of claims and locks.

use oncegate_coordination::claims::StoredClaim;
use oncegate_coordination::records::StoredRecord;
use oncegate_coordination::time::Time;
use oncegate_coordination::value::Found;
use oncegate_core::lock::LockName;
use oncegate_core::operator::{ListRequest, ListedClaim, LockListRequest, LockPage};
use oncegate_core::record::Key;

use super::failure::Failure;
use super::keys::{self, Keys};
use super::proto::{Body, Request, code};
use super::session::{Replied, Session};

/// Folders whose children one exchange lists. Claims of all apps are listed, in the order of their IDs.
const FOLDERS: usize = 32;

/// Values in one exchange.
const VALUES: usize = 100;

/// Lists claims. An unreadable claim is left out; a lookup of it reports why.
pub(super) async fn claims(session: &Session, request: ListRequest) -> Result<Vec<ListedClaim>, Failure> {
    let above = &session.store().keys.claims;
    // The member has all that was answered before this.
    session.run(Vec::new(), Vec::new()).await?;
    let mut folders = children(session, above).await?;
    if let Some(after) = request.after {
        folders.retain(|folder| *folder >= Keys::folder_of(after));
    }
    let folders: Vec<_> = folders.into_iter().map(|folder| format!("{above}/{folder}")).collect();
    let mut listed = Vec::new();
    for some in folders.chunks(FOLDERS) {
        let names = all_children(session, some).await?;
        let mut own: Vec<Key> = names.iter().flatten().filter_map(|name| keys::claim_of(name)).collect();
        own.retain(|key| {
            let is_next = request.after.is_none_or(|after| key.global_id > after);
            is_next && key.app == request.app && key.realm == request.realm
        });
        for some in own.chunks(VALUES) {
            for claim in read(session, some).await? {
                if request.state.is_none_or(|state| claim.claim.record.state == state) {
                    listed.push(claim);
                }
                if listed.len() >= request.limit {
                    return Ok(listed);
                }
            }
        }
    }
    Ok(listed)
}

/// Reads claims.
async fn read(session: &Session, keys: &[Key]) -> Result<Vec<ListedClaim>, Failure> {
    let path = |key| String::from_utf8_lossy(&session.store().keys.claim(key)).into_owned();
    let (time, found) = read_all(session, keys.iter().map(path).collect()).await?;
    let live = |found: Option<Found>| StoredClaim::read(&found?, time).ok()?.live(time);
    let claims = keys
        .iter()
        .zip(found)
        .filter_map(|(key, found)| Some(ListedClaim { global_id: key.global_id, claim: live(found)? }));
    Ok(claims.collect())
}

/// Reads nodes. An unreadable record counts as an absent one.
async fn read_all(session: &Session, paths: Vec<String>) -> Result<(Time, Vec<Option<Found>>), Failure> {
    let Replied { time, found, .. } = session.run(Vec::new(), paths).await?;
    Ok((time, found.into_iter().map(|found| found.ok()?).collect()))
}

/// Lists locks.
pub(super) async fn locks(session: &Session, request: LockListRequest) -> Result<LockPage, Failure> {
    let folder = format!("{}/{}", session.store().keys.locks, request.app);
    // The member has all that was answered before this.
    session.run(Vec::new(), Vec::new()).await?;
    let names = children(session, &folder).await?;
    let mut names: Vec<(LockName, String)> =
        names.into_iter().filter_map(|name| Some((keys::lock_of(&name)?, name))).collect();
    names.retain(|(name, _)| request.after.as_ref().is_none_or(|after| name > after));
    names.sort();
    let mut page = LockPage { records: Vec::new(), now: session.store().state.time.seen() };
    for some in names.chunks(VALUES) {
        let paths = some.iter().map(|(_, name)| format!("{folder}/{name}")).collect();
        let (time, found) = read_all(session, paths).await?;
        page.now = time.clock;
        for ((name, _), found) in some.iter().zip(found) {
            let record = found.and_then(|found| StoredRecord::read(&found, time).ok()?.record);
            page.records.extend(record.map(|record| (name.clone(), record)));
            if page.records.len() >= request.limit {
                return Ok(page);
            }
        }
    }
    Ok(page)
}

/// Returns the names of a node's children, in order. An absent record has none.
pub(super) async fn children(session: &Session, path: &str) -> Result<Vec<String>, Failure> {
    let names = all_children(session, &[path.to_owned()]).await?;
    Ok(names.into_iter().flatten().collect())
}

/// Returns the names of the children of each of these nodes, in order. The member may not have the newest ones yet.
pub(super) async fn all_children(session: &Session, paths: &[String]) -> Result<Vec<Vec<String>>, Failure> {
    let requests = paths.iter().cloned().map(Request::Children).collect();
    let replies = session.send(requests).await?;
    let mut all = Vec::with_capacity(paths.len());
    for (reply, path) in replies.into_iter().zip(paths) {
        all.push(match reply.body {
            Ok(Body::Children(mut names)) => {
                names.sort();
                names
            }
            Err(code::NO_NODE) => Vec::new(),
            Err(code) => return Err(Failure::of_code(code, path)),
            Ok(_) => return Err(Failure::unfit()),
        });
    }
    Ok(all)
}
