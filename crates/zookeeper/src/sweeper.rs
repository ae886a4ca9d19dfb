//! Deletes what has ended, a page at a time.

use bytes::Bytes;
use oncegate_coordination::claims::StoredClaim;
use oncegate_coordination::records::StoredRecord;
use oncegate_coordination::time::Time;
use oncegate_coordination::value::Found;

use super::failure::Failure;
use super::lists;
use super::proto::Change;
use super::session::{Replied, Session, version};

/// Folders whose children one page lists.
const FOLDERS: usize = 32;
/// Nodes in one exchange.
const NODES: usize = 100;

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
pub(super) async fn sweep_page(
    session: &Session,
    from: &Bytes,
    page: usize,
) -> Result<(Option<Bytes>, usize), Failure> {
    let (keys, from) = (&session.store().keys, Place::of(from));
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
        deleted += sweep_nodes(session, folder, &names).await?;
        if is_cut {
            let after = names.pop().unwrap_or_default();
            return Ok((Some(Place { folder: folder.clone(), after }.encode()), deleted));
        }
    }
    Ok((next_folder.map(|folder| Place { folder, after: String::new() }.encode()), deleted))
}

/// Deletes the ended records among these nodes. Returns how many.
async fn sweep_nodes(session: &Session, folder: &str, names: &[String]) -> Result<usize, Failure> {
    let store = session.store();
    let is_claim = folder.starts_with(&store.keys.claims);
    let mut deleted = 0;
    for some in names.chunks(NODES) {
        let paths: Vec<_> = some.iter().map(|name| format!("{folder}/{name}")).collect();
        let Replied { time, found, .. } = session.run(Vec::new(), paths.clone()).await?;
        let mut deletions = Vec::new();
        for (path, found) in paths.into_iter().zip(found) {
            let Ok(Some(found)) = found else { continue };
            if is_over(&found, time, is_claim, store.state.options.linger) {
                deletions.push(vec![Change::Delete(path, version(found.mark)?)]);
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
