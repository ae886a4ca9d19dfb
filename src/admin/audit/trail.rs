//! The file of the audit trail: one JSON object a line, each durable before it counts. Opened anew for every line, so that
//! it can be moved away at any time; lines that a crash has cut short are passed over.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use crate::web::problem::{Code, Problem};

const FILE_NAME: &str = "audit.jsonl";

/// How long a disk may take for a line. What takes longer may still be written, as a change that was never begun.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far back the newest entries are looked for.
const TAIL_BYTES_MAX: u64 = 4 << 20;

/// The file, and whose turn it is.
pub(super) struct Trail {
    path: PathBuf,
    /// One at a time: lines do not mix, and a disk that hangs holds one thread up, not many.
    turn: Arc<Semaphore>,
}

/// The trail could not be written or read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the audit trail {path} {why}")]
pub struct Unwritten {
    path: String,
    why: String,
}

/// A change as the trail shows it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
pub struct Entry {
    /// Names the change in trail and log.
    pub id: String,
    /// When it was asked for.
    pub at: String,
    /// The name of the token of whoever asked.
    pub who: String,
    /// The request.
    pub request_id: String,
    /// What was to be done.
    pub action: String,
    /// The app.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// The operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_id: Option<String>,
    /// The attempt that was found to hold it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_hash: Option<String>,
    /// What else there is to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What came of it: a word, or the code of the problem. Nothing while it is not known.
    pub result: Option<String>,
    /// When that was known.
    pub ended_at: Option<String>,
}

/// A line is one of these.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Ended { id: String, at: String, result: String },
    Asked(Box<Entry>),
}

/// A line of the trail, with its end.
pub(super) fn line<T: Serialize>(entry: &T) -> Result<String, Problem> {
    let fault =
        |_| Problem::new(Code::Internal, "The entry of the audit trail could not be written; nothing was changed.");
    serde_json::to_string(entry).map(|text| text + "\n").map_err(fault)
}

impl Trail {
    pub(super) fn new(folder: &Path) -> Self {
        Self { path: folder.join(FILE_NAME), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Adds a line. Once this returns, it is on the disk.
    pub(super) async fn append(&self, line: String) -> Result<(), Unwritten> {
        self.at_its_turn("cannot be written", move |path| append(path, &line)).await
    }

    /// The newest entries, newest first.
    pub(super) async fn newest(&self, count: usize) -> Result<Vec<Entry>, Unwritten> {
        self.at_its_turn("cannot be read", move |path| newest(path, count)).await
    }

    async fn at_its_turn<Answer: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce(&Path) -> io::Result<Answer> + Send + 'static,
    ) -> Result<Answer, Unwritten> {
        let (turn, path) = (self.turn.clone(), self.path.clone());
        let done = async move {
            let turn = turn.acquire_owned().await.map_err(io::Error::other)?;
            let work = move || {
                let done = work(&path);
                drop(turn);
                done
            };
            tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
        };
        let in_time = tokio::time::timeout(PATIENCE, done).await;
        let why = match in_time {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => format!("{what}: {failure}"),
            Err(_) => format!("{what}: the disk did not answer within {} s", PATIENCE.as_secs()),
        };
        Err(Unwritten { path: self.path.display().to_string(), why })
    }
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let is_new = !path.try_exists()?;
    let mut file = options().open(path)?;
    // A crash may have cut the last line short: the new one must not go with it.
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if bytes > 0 {
        file.seek(SeekFrom::Start(bytes - 1))?;
        file.read_exact(&mut last)?;
    }
    let start = if last == [b'\n'] { "" } else { "\n" };
    // In one piece: another gateway may write to the same file.
    file.write_all(format!("{start}{line}").as_bytes())?;
    file.sync_all()?;
    if is_new {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Only for the gateway's own user: the trail names people, and what they were up to.
fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn newest(path: &Path, count: usize) -> io::Result<Vec<Entry>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        // Nothing was ever changed.
        Err(failure) if failure.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(failure) => return Err(failure),
    };
    let bytes = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(bytes.saturating_sub(TAIL_BYTES_MAX)))?;
    let mut tail = Vec::new();
    // Not beyond what was there: it may be written to meanwhile.
    file.take(TAIL_BYTES_MAX).read_to_end(&mut tail)?;
    let mut ended: HashMap<String, (String, String)> = HashMap::new();
    let mut entries = Vec::new();
    for line in tail.rsplit(|byte| *byte == b'\n') {
        if entries.len() == count {
            break;
        }
        match serde_json::from_slice(line) {
            Ok(Line::Ended { id, at, result }) => {
                ended.insert(id, (at, result));
            }
            Ok(Line::Asked(mut entry)) => {
                if let Some((at, result)) = ended.remove(&entry.id) {
                    (entry.ended_at, entry.result) = (Some(at), Some(result));
                }
                entries.push(*entry);
            }
            // Cut short by a crash, or by where the tail begins; or the end of the file.
            Err(_) => {}
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(id: u32) -> String {
        let entry = json!({ "id": id.to_string(), "at": "then", "who": "alice", "request_id": "r", "action": "test" });
        line(&entry).unwrap()
    }

    fn ended(id: u32) -> String {
        line(&json!({ "id": id.to_string(), "at": "later", "result": "done" })).unwrap()
    }

    fn ids(entries: &[Entry]) -> Vec<&str> {
        entries.iter().map(|entry| &*entry.id).collect()
    }

    #[tokio::test]
    async fn the_newest_come_first_each_with_what_came_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let trail = Trail::new(&folder.path().join("made"));
        assert_eq!(trail.newest(5).await, Ok(vec![]));
        for text in [asked(1), asked(2), ended(1), asked(3)] {
            trail.append(text).await.unwrap();
        }
        let entries = trail.newest(5).await.unwrap();
        assert_eq!(ids(&entries), ["3", "2", "1"]);
        let results: Vec<_> = entries.iter().map(|entry| entry.result.as_deref()).collect();
        assert_eq!(results, [None, None, Some("done")]);
        assert_eq!(ids(&trail.newest(1).await.unwrap()), ["3"]);
    }

    #[tokio::test]
    async fn a_line_cut_short_takes_no_other_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let trail = Trail::new(folder.path());
        trail.append(asked(1)).await.unwrap();
        let mut file = options().open(folder.path().join(FILE_NAME)).unwrap();
        file.write_all(b"{\"id\":\"2\",\"at\":\"th").unwrap();
        trail.append(asked(3)).await.unwrap();
        assert_eq!(ids(&trail.newest(5).await.unwrap()), ["3", "1"]);
    }

    #[tokio::test]
    async fn a_trail_that_was_moved_away_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let trail = Trail::new(folder.path());
        trail.append(asked(1)).await.unwrap();
        fs::rename(folder.path().join(FILE_NAME), folder.path().join("old")).unwrap();
        trail.append(asked(2)).await.unwrap();
        assert_eq!(ids(&trail.newest(5).await.unwrap()), ["2"]);
    }

    #[tokio::test]
    async fn where_nothing_can_be_written_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let trail = Trail::new(&folder.path().join("file"));
        let why = trail.append(asked(1)).await.unwrap_err().to_string();
        assert!(why.contains("audit.jsonl cannot be written: "), "{why}");
    }
}
