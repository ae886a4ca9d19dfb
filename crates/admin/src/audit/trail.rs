//! The file of the audit trail: one JSON object per line, each synced before its change begins. Opened for each line,
//! so that the file can be moved away at any time. Lines that a crash has truncated are skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use oncegate_web::problem::{Code, Problem};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

const FILE_NAME: &str = "audit.jsonl";

/// Time for the disk to write a line. A line that takes longer may still be written, for a change that never began.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Number of bytes at the end of the file that are searched: about 27 000 changes.
const SEARCHED_BYTES_MAX: u64 = 16 << 20;

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 1 << 20;

/// The file and its lock.
pub(super) struct Trail {
    path: PathBuf,
    /// One access at a time: lines do not mix, and a disk that hangs blocks only one thread.
    lock: Arc<Semaphore>,
}

/// The audit trail could not be written or read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the audit trail {path} {why}")]
pub struct Unwritten {
    path: String,
    why: String,
}

/// An entry of the audit trail.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub(super) struct Entry {
    /// ID of the change in the audit trail and in the log.
    pub(crate) id: String,
    /// Time of the request.
    pub(crate) at: String,
    /// Name of the operator's token.
    pub(crate) who: String,
    pub(crate) request_id: String,
    /// The interface, if it is not the admin API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) via: Option<String>,
    pub(crate) action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<String>,
    /// The realm of the claim, if it is not that of the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) realm: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) global_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The result: a word, or the code of the problem. `None` while it is unknown.
    pub(crate) result: Option<String>,
    /// Time of the result.
    pub(crate) ended_at: Option<String>,
}

/// The entries to look for. An absent member means any.
#[derive(Clone, Default, Debug)]
pub(super) struct Filter {
    /// Only those of this operator.
    pub(super) who: Option<String>,
    /// Only those of this action.
    pub(super) action: Option<String>,
    /// Only those of this app.
    pub(super) app: Option<String>,
    /// Only those about this claim.
    pub(super) global_id: Option<String>,
    /// Only those older than the entry with this ID.
    pub(super) after: Option<String>,
}

/// A line is one of these.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Ended { id: String, at: String, result: String },
    Begun(Box<Entry>),
}

/// Returns a line of the trail, with its newline.
pub(super) fn line<T: Serialize>(entry: &T) -> Result<String, Problem> {
    let fault =
        |_| Problem::new(Code::Internal, "The entry of the audit trail could not be written; nothing was changed.");
    serde_json::to_string(entry).map(|text| text + "\n").map_err(fault)
}

impl Trail {
    pub(super) fn new(folder: &Path) -> Self {
        Self { path: folder.join(FILE_NAME), lock: Arc::new(Semaphore::new(1)) }
    }

    /// Appends a line and syncs it.
    pub(super) async fn append(&self, line: String) -> Result<(), Unwritten> {
        self.exclusively("cannot be written", move |path| append(path, &line)).await
    }

    /// Returns up to `count` entries that pass the filter, newest first. `None` if the entry that they have to be older than was not
    /// found.
    pub(super) async fn find(&self, filter: Filter, count: usize) -> Result<Option<Vec<Entry>>, Unwritten> {
        self.exclusively("cannot be read", move |path| find(path, &filter, count)).await
    }

    async fn exclusively<Answer: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce(&Path) -> io::Result<Answer> + Send + 'static,
    ) -> Result<Answer, Unwritten> {
        let (lock, path) = (self.lock.clone(), self.path.clone());
        let done = async move {
            let permit = lock.acquire_owned().await.map_err(io::Error::other)?;
            let work = move || {
                let done = work(&path);
                drop(permit);
                done
            };
            tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
        };
        let in_time = tokio::time::timeout(TIMEOUT, done).await;
        let why = match in_time {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => format!("{what}: {failure}"),
            Err(_) => format!("{what}: the disk did not answer within {} s", TIMEOUT.as_secs()),
        };
        Err(Unwritten { path: self.path.display().to_string(), why })
    }
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let is_new = !path.try_exists()?;
    let mut file = options().open(path)?;
    // A crash may have truncated the last line; the new one must not become part of it.
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if bytes > 0 {
        file.seek(SeekFrom::Start(bytes - 1))?;
        file.read_exact(&mut last)?;
    }
    let start = if last == [b'\n'] { "" } else { "\n" };
    // In one write: another gateway may write to the same file.
    file.write_all(format!("{start}{line}").as_bytes())?;
    file.sync_all()?;
    if is_new {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Readable only for the gateway's user: the trail names people and their actions.
fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

impl Filter {
    fn passes(&self, entry: &Entry) -> bool {
        let is_same = |wanted: &Option<String>, found: Option<&String>| wanted.is_none() || wanted.as_ref() == found;
        is_same(&self.who, Some(&entry.who))
            && is_same(&self.action, Some(&entry.action))
            && is_same(&self.app, entry.app.as_ref())
            && is_same(&self.global_id, entry.global_id.as_ref())
    }
}

fn find(path: &Path, filter: &Filter, count: usize) -> io::Result<Option<Vec<Entry>>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        // There was no change yet.
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => {
            return Ok(filter.after.is_none().then(Vec::new));
        }
        Err(failure) => return Err(failure),
    };
    let mut ended: HashMap<String, (String, String)> = HashMap::new();
    let mut entries = Vec::new();
    let mut is_old_enough = filter.after.is_none();
    each_line_backwards(&mut file, |line| {
        match serde_json::from_slice(line) {
            Ok(Line::Ended { id, at, result }) => drop(ended.insert(id, (at, result))),
            Ok(Line::Begun(mut entry)) => {
                if let Some((at, result)) = ended.remove(&entry.id) {
                    (entry.ended_at, entry.result) = (Some(at), Some(result));
                }
                if is_old_enough && filter.passes(&entry) {
                    entries.push(*entry);
                } else if filter.after.as_ref() == Some(&entry.id) {
                    is_old_enough = true;
                }
            }
            // Truncated by a crash, or the end of the file.
            Err(_) => {}
        }
        if entries.len() < count { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(is_old_enough.then_some(entries))
}

/// Calls `see` with each line at the end of a file, the last one first, until it breaks.
fn each_line_backwards(file: &mut File, mut see: impl FnMut(&[u8]) -> ControlFlow<()>) -> io::Result<()> {
    let mut end = file.seek(SeekFrom::End(0))?;
    let floor = end.saturating_sub(SEARCHED_BYTES_MAX);
    // The rest of a line that begins before `end`.
    let mut rest = Vec::new();
    while end > floor {
        let start = end.saturating_sub(PIECE_BYTES).max(floor);
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::new();
        // Not more: another gateway may append at the same time.
        (&mut *file).take(end - start).read_to_end(&mut piece)?;
        piece.append(&mut rest);
        let newline = piece.iter().position(|byte| *byte == b'\n');
        let first = if start == 0 { 0 } else { newline.map_or(piece.len(), |place| place + 1) };
        if piece[first..].rsplit(|byte| *byte == b'\n').try_for_each(&mut see).is_break() {
            break;
        }
        piece.truncate(first);
        (rest, end) = (piece, start);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn started(id: u32) -> String {
        let entry = json!({ "id": id.to_string(), "at": "then", "who": "alice", "request_id": "r", "action": "test" });
        line(&entry).unwrap()
    }

    fn ended(id: u32) -> String {
        line(&json!({ "id": id.to_string(), "at": "later", "result": "done" })).unwrap()
    }

    fn ids(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| &*entry.id).collect()
    }

    async fn newest(trail: &Trail, count: usize) -> Vec<Entry> {
        trail.find(Filter::default(), count).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn the_newest_entries_come_first_with_their_results() {
        let folder = tempfile::tempdir().unwrap();
        let trail = Trail::new(&folder.path().join("made"));
        assert_eq!(newest(&trail, 5).await, []);
        for text in [started(1), started(2), ended(1), started(3)] {
            trail.append(text).await.unwrap();
        }
        let entries = newest(&trail, 5).await;
        assert_eq!(ids(&entries), ["3", "2", "1"]);
        let results: Vec<_> = entries.iter().map(|entry| entry.result.as_deref()).collect();
        assert_eq!(results, [None, None, Some("done")]);
        assert_eq!(ids(&newest(&trail, 1).await), ["3"]);
    }

    #[tokio::test]
    async fn entries_are_found_by_each_member_and_read_in_pages() {
        let folder = tempfile::tempdir().unwrap();
        let trail = Trail::new(folder.path());
        let mut lines = String::new();
        // More than one piece of the file, in lines that no piece ends with.
        for number in 0..3000 {
            let (who, action) = if number % 3 == 0 { ("bob", "claim.settle") } else { ("alice", "claim.release") };
            let entry = json!({
                "id": number.to_string(), "at": "then", "who": who, "request_id": "r", "action": action,
                "app": format!("app{}", number % 5), "global_id": format!("{:032x}", number / 10), "reason": "ü".repeat(300),
            });
            lines += &line(&entry).unwrap();
            lines += &ended(number);
        }
        assert!(lines.len() as u64 > 2 * PIECE_BYTES);
        trail.append(lines).await.unwrap();
        let some = |text: &str| Some(text.to_owned());
        let all = Filter::default();
        for (filter, passes) in [
            (Filter { who: some("bob"), ..all.clone() }, (|number| number % 3 == 0) as fn(u32) -> bool),
            (Filter { action: some("claim.release"), ..all.clone() }, |number| number % 3 != 0),
            (Filter { app: some("app2"), ..all.clone() }, |number| number % 5 == 2),
            (Filter { global_id: some(&format!("{:032x}", 7)), ..all.clone() }, |number| number / 10 == 7),
            (Filter { who: some("bob"), app: some("app2"), ..all.clone() }, |number| number % 15 == 12),
            (Filter { who: some("eve"), ..all.clone() }, |_| false),
            (all.clone(), |_| true),
        ] {
            let expected: Vec<_> =
                (0..3000).rev().filter(|number| passes(*number)).map(|number| number.to_string()).collect();
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = trail.find(Filter { after, ..filter.clone() }, 700).await.unwrap().unwrap();
                assert!(page.iter().all(|entry| entry.result.as_deref() == Some("done")));
                found.extend(ids(&page).into_iter().map(str::to_owned));
                after = page.last().map(|last| last.id.clone());
                if page.len() < 700 {
                    break;
                }
            }
            assert_eq!(found, expected, "{filter:?}");
        }
        assert_eq!(trail.find(Filter { after: some("gone"), ..all }, 7).await, Ok(None));
    }

    #[tokio::test]
    async fn a_truncated_line_damages_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let trail = Trail::new(folder.path());
        trail.append(started(1)).await.unwrap();
        let mut file = options().open(folder.path().join(FILE_NAME)).unwrap();
        file.write_all(b"{\"id\":\"2\",\"at\":\"th").unwrap();
        trail.append(started(3)).await.unwrap();
        assert_eq!(ids(&newest(&trail, 5).await), ["3", "1"]);
    }

    #[tokio::test]
    async fn a_trail_that_was_moved_away_starts_again() {
        let folder = tempfile::tempdir().unwrap();
        let trail = Trail::new(folder.path());
        trail.append(started(1)).await.unwrap();
        fs::rename(folder.path().join(FILE_NAME), folder.path().join("old")).unwrap();
        trail.append(started(2)).await.unwrap();
        assert_eq!(ids(&newest(&trail, 5).await), ["2"]);
    }

    #[tokio::test]
    async fn an_error_names_the_file_that_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let trail = Trail::new(&folder.path().join("file"));
        let why = trail.append(started(1)).await.unwrap_err().to_string();
        assert!(why.contains("audit.jsonl cannot be written: "), "{why}");
    }
}
