//! The scenario programs of `examples/clients`: how each is built and started, and what it says, line by line.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::missing;
use crate::support::wait::until;

/// Longer than any story takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A language that there is a client in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    Python,
}

/// A scenario program at work; killed on drop.
pub(super) struct Program {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Language {
    /// Starts the program with these words. Nothing where the language is not installed: the test is to be skipped then,
    /// loudly; on CI it fails instead.
    pub(super) fn start(self, words: &[&str]) -> Option<Program> {
        let mut command = self.command()?;
        let mut child = command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stdout.take().expect("its words are piped")).lines();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| heard.lock().expect("the lines").push(line));
        });
        Some(Program { child, said })
    }

    /// Starts the program and waits until it has ended by itself.
    pub(super) async fn run(self, words: &[&str]) -> Option<Vec<String>> {
        Some(self.start(words)?.ended().await)
    }

    /// Whether a value of this language cannot show what makes these contents wrong: it is gone once they are read.
    pub(super) fn cannot_tell(self, why: &str) -> bool {
        let _ = why;
        match self {
            Self::Python => false,
        }
    }

    fn command(self) -> Option<Command> {
        let folder = root().join("examples/clients");
        match self {
            Self::Python => {
                let mut command = tool("python3", "--version")?;
                command.arg("-B").arg(folder.join("python/scenario.py"));
                Some(command)
            }
        }
    }
}

impl Program {
    /// What it has said so far.
    pub(super) fn said(&self) -> Vec<String> {
        self.said.lock().expect("the lines").clone()
    }

    /// Waits until it says something that begins so.
    pub(super) async fn says(&self, begin: &str) {
        let said = async || self.said().iter().any(|line| line.starts_with(begin));
        until(&format!("the program says `{begin}`"), PATIENCE, said).await;
    }

    /// Waits until it has ended by itself, and well; all that it said.
    pub(super) async fn ended(&mut self) -> Vec<String> {
        until("the program ends", PATIENCE, async || self.has_ended()).await;
        let status = self.child.wait().expect("its status");
        assert!(status.success(), "{status}, after {:#?}", self.said());
        // The reader may be a line behind the process.
        until("all its lines are read", PATIENCE, async || Arc::strong_count(&self.said) == 1).await;
        self.said()
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Sends a signal, such as `STOP`.
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A command of this program, if it is installed.
fn tool(name: &str, probe: &str) -> Option<Command> {
    let probed =
        Command::new(name).arg(probe).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !probed.is_ok_and(|status| status.success()) {
        missing::skip(name);
        return None;
    }
    Some(Command::new(name))
}
