//! Deletes what has ended. All gateways sweep together, a page at a time: how far they have come is a node.

use std::sync::Arc;

use bytes::Bytes;
use oncegate_coordination::claims::StoredClaim;
use oncegate_coordination::records::StoredRecord;
use oncegate_coordination::sweep::{self, Cursor, Pace};
use oncegate_coordination::time::Time;
use oncegate_coordination::value::{Found, Mark};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;
use super::lists;
use super::proto::Change;
use super::session::{Replied, Session};
use super::store::Store;

/// Folders whose children one page lists.
const FOLDERS: usize = 32;
/// Nodes in one exchange.
const NODES: usize = 100;

/// Sweeps until `closing` is cancelled.
pub(super) async fn run(store: Arc<Store>, closing: CancellationToken) {
    let mut pace = Pace::default();
    while closing.run_until_cancelled(sleep(sweep::pause(store.state.options.sweep_interval))).await.is_some() {
        let Some(Ok((session, _))) = closing.run_until_cancelled(Session::open(&store, 0)).await else { continue };
        let swept = closing.run_until_cancelled(sweep_all(&store, &session, &mut pace)).await;
        if let Some(Err(failure)) = swept {
            tracing::debug!(reason = failure.answer.reason(), "A sweep failed; trying again");
        }
    }
}

/// Sweeps for as long as the session is good.
async fn sweep_all(store: &Store, session: &Session, pace: &mut Pace) -> Result<(), Failure> {
    loop {
        sweep_next(store, session, pace).await?;
        if !pace.goes_on() {
            sleep(sweep::pause(store.state.options.sweep_interval)).await;
        }
    }
}

/// Sweeps the next page, if it is due.
async fn sweep_next(store: &Store, session: &Session, pace: &mut Pace) -> Result<(), Failure> {
    let path = &store.keys.sweep;
    let Replied { time, found, .. } = session.run(Vec::new(), vec![path.clone()]).await?;
    let Some(Ok(stored)) = found.into_iter().next() else { return Err(Failure::unfit()) };
    let cursor = stored.as_ref().map(|(value, _)| Cursor::decode(value)).unwrap_or_default();
    if time.clock < cursor.due && !pace.goes_on() {
        return Ok(());
    }
    let (next, deleted) = match sweep_page(store, session, &Place::of(&cursor.from), pace.page()).await {
        Ok(swept) => swept,
        Err(failure) => {
            if pace.failed() {
                let (server, reason) = (store.state.server.address(), failure.answer.reason());
                tracing::warn!(
                    server,
                    reason,
                    "Sweeping fails again and again, so ended records stay and fill ZooKeeper"
                );
            }
            return Err(failure);
        }
    };
    let is_last = next.is_none();
    let cursor = Cursor::after_page(time.clock, next.map(Place::encode), store.state.options.sweep_interval).encode();
    let change = match stored {
        Some((_, stat)) => Change::Set(path.clone(), cursor, stat.version),
        None => Change::Create(path.clone(), cursor),
    };
    // If another gateway was faster, its cursor stays.
    let Replied { changed, .. } = session.run(vec![vec![change]], Vec::new()).await?;
    pace.swept(deleted, !is_last && matches!(changed.first(), Some(Ok(_))));
    Ok(())
}

/// Start of a page: in this folder, after this name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Place {
    folder: String,
    after: String,
}

impl Place {
    fn of(stored: &Bytes) -> Self {
        let text = std::str::from_utf8(stored).unwrap_or_default();
        let (folder, after) = text.split_once('\n').unwrap_or((text, ""));
        Self { folder: folder.to_owned(), after: after.to_owned() }
    }

    fn encode(self) -> Bytes {
        format!("{}\n{}", self.folder, self.after).into()
    }
}

/// Deletes ended records in the page of this size from here on. Returns where the next one begins, `None` after the last one, and how
/// many were deleted.
async fn sweep_page(
    store: &Store,
    session: &Session,
    from: &Place,
    page: usize,
) -> Result<(Option<Place>, usize), Failure> {
    let keys = &store.keys;
    let mut folders = Vec::new();
    // In the order of their names, which is that of the places.
    for above in [&keys.claims, &keys.grants, &keys.locks] {
        let names = lists::children(session, above).await?;
        folders.extend(names.into_iter().map(|name| format!("{above}/{name}")));
    }
    let mut folders = folders.into_iter().filter(|folder| *folder >= from.folder);
    let some: Vec<_> = folders.by_ref().take(FOLDERS).collect();
    let next_folder = folders.next();
    let (mut left, mut deleted) = (page, 0);
    for (folder, mut names) in some.iter().zip(lists::all_children(session, &some).await?) {
        if *folder == from.folder {
            names.retain(|name| *name > from.after);
        }
        let is_cut = names.len() > left;
        names.truncate(left);
        left -= names.len();
        deleted += sweep_nodes(store, session, folder, &names).await?;
        if is_cut {
            let after = names.pop().unwrap_or_default();
            return Ok((Some(Place { folder: folder.clone(), after }), deleted));
        }
    }
    Ok((next_folder.map(|folder| Place { folder, after: String::new() }), deleted))
}

/// Deletes the ended records among these nodes. Returns how many.
async fn sweep_nodes(store: &Store, session: &Session, folder: &str, names: &[String]) -> Result<usize, Failure> {
    let is_claim = folder.starts_with(&store.keys.claims);
    let mut deleted = 0;
    for some in names.chunks(NODES) {
        let paths: Vec<_> = some.iter().map(|name| format!("{folder}/{name}")).collect();
        let Replied { time, sent_at, found, .. } = session.run(Vec::new(), paths.clone()).await?;
        let mut deletions = Vec::new();
        for (path, found) in paths.into_iter().zip(found) {
            let Ok(Some((value, stat))) = found else { continue };
            let mark = Mark { number: stat.version.into(), seen_at: sent_at };
            let found = Found { value, revision: stat.mzxid, mark };
            if is_over(&found, time, is_claim, store.state.options.linger) {
                deletions.push(vec![Change::Delete(path, stat.version)]);
            }
        }
        if !deletions.is_empty() {
            deleted += deletions.len();
            session.run(deletions, Vec::new()).await?;
        }
    }
    Ok(deleted)
}

/// Returns whether a record ended so long ago that no gateway remembers a version of its node.
fn is_over(found: &Found, time: Time, is_claim: bool, linger: std::time::Duration) -> bool {
    let since = if is_claim {
        StoredClaim::read(found, time).ok().and_then(|stored| stored.over_since())
    } else {
        StoredRecord::read(found, time).ok().and_then(|stored| stored.over_since())
    };
    since.is_some_and(|since| since.plus(linger) <= time.clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back_and_a_damaged_one_is_the_first() {
        let place = Place { folder: "/oncegate/c/0ff".into(), after: "x.shop".into() };
        assert_eq!(Place::of(&place.clone().encode()), place);
        assert_eq!(Place::of(&Bytes::from_static(b"\xff")), Place::default());
    }
}
