//! The scenario programs of the clients: building, starting, and reading the lines that they print.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncegate_core::hex;
use oncegate_testkit::missing::tool;
use oncegate_testkit::wait::until;
use sha2::{Digest, Sha256};

/// Longer than any scenario takes on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A language that there is a client in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    Python,
    TypeScript,
    Java,
    Go,
    Rust,
}

/// A running scenario program; killed on drop.
pub(super) struct Program {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Language {
    /// Starts the program with these words. Returns nothing where the language is not installed: the test prints that
    /// it is skipped, and on CI it fails.
    pub(super) fn start(self, words: &[&str]) -> Option<Program> {
        let mut command = self.command()?;
        let mut child = command.args(words).stdout(Stdio::piped()).spawn().expect("it starts");
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stdout.take().expect("its words are piped")).lines();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| heard.lock().expect("the lines").push(line));
        });
        Some(Program { child, said })
    }

    /// Starts the program, and waits for its end.
    pub(super) async fn run(self, words: &[&str]) -> Option<Vec<String>> {
        Some(self.start(words)?.ended().await)
    }

    fn command(self) -> Option<Command> {
        let mut command = match self {
            Self::Python => {
                let mut command = tool("python3")?;
                let package = root().join("clients/python");
                command.env("PYTHONPATH", package.join("src")).arg("-B").arg(package.join("tests/scenario.py"));
                command
            }
            Self::TypeScript => {
                let mut command = tool("node")?;
                tool("tsc")?;
                let package = root().join("clients/typescript");
                let mut sources = with_extension(&package.join("src"), "ts");
                sources.push(package.join("test/scenario.ts"));
                let built = built("typescript", &sources, |_, out| {
                    // The output consists of modules, which node must know.
                    std::fs::write(out.join("package.json"), r#"{"type": "module"}"#).expect("a file");
                    // Types are checked by `clients/typescript/check`, with the packages that they need; here they are removed.
                    let compile = "tsc --target es2022 --module es2022 --moduleResolution node --outDir \"$0\" test/scenario.ts; \
                                   test -f \"$0/test/scenario.js\"";
                    let mut compiler = Command::new("sh");
                    compiler.current_dir(&package).args(["-c", compile]).arg(out);
                    compiler
                });
                command.arg(built.join("test/scenario.js"));
                command
            }
            Self::Java => {
                let (mut command, mut compiler) = (tool("java")?, tool("javac")?);
                let built = built("java", &java_sources(), |sources, out| {
                    compiler.args(["-Xlint:all,-serial,-try", "-Werror", "-d"]).arg(out).args(sources);
                    compiler
                });
                // It runs for seconds, so a slow start does not pay off.
                command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]).arg(built).arg("Scenario");
                command
            }
            Self::Go => {
                let mut compiler = tool("go")?;
                let module = root().join("clients/go");
                let mut sources = with_extension(&module, "go");
                sources.extend(with_extension(&module.join("internal/scenario"), "go"));
                let built = built("go", &sources, |_, out| {
                    compiler
                        .current_dir(&module)
                        .args(["build", "-o"])
                        .arg(out.join("scenario"))
                        .arg("./internal/scenario");
                    compiler
                });
                Command::new(built.join("scenario"))
            }
            Self::Rust => {
                let program = Path::new(env!("CARGO_BIN_EXE_oncegate")).with_file_name("examples/client_scenario");
                assert!(
                    program.is_file(),
                    "{} is not there: cargo builds examples with all tests, and not with `--test it` alone. First `cargo \
                     build --example client_scenario`, with the same profile and features",
                    program.display()
                );
                Command::new(program)
            }
        };
        command.stdin(Stdio::null());
        Some(command)
    }
}

impl Program {
    /// Returns its output so far.
    pub(super) fn said(&self) -> Vec<String> {
        self.said.lock().expect("the lines").clone()
    }

    /// Waits until it says something that begins so.
    pub(super) async fn says(&self, begin: &str) {
        let said = async || {
            let all_is_read = self.all_is_read();
            let said = self.said().iter().any(|line| line.starts_with(begin));
            assert!(said || !all_is_read, "the program has ended, and only said {:#?}", self.said());
            said
        };
        until(&format!("the program says `{begin}`"), TIMEOUT, said).await;
    }

    /// Waits for its successful end, and returns all lines that it printed.
    pub(super) async fn ended(&mut self) -> Vec<String> {
        until("the program ends", TIMEOUT, async || self.has_ended()).await;
        let status = self.child.wait().expect("its status");
        assert!(status.success(), "{status}, after {:#?}", self.said());
        // The reader may be a line behind the process.
        until("all its lines are read", TIMEOUT, async || self.all_is_read()).await;
        self.said()
    }

    /// Returns true if it has exited.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Returns true if its output has ended.
    fn all_is_read(&self) -> bool {
        Arc::strong_count(&self.said) == 1
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

/// The client, without what needs a library, and its scenario program.
fn java_sources() -> Vec<PathBuf> {
    let folder = root().join("clients/java");
    let package = folder.join("oncegate-client/src/main/java/io/oncegate/client");
    let mut sources = with_extension(&package, "java");
    sources.retain(|source| !std::fs::read_to_string(source).expect("a source").contains("import io.opentelemetry"));
    sources.push(folder.join("scenario/Scenario.java"));
    sources
}

/// The files of a folder with this extension, in order.
fn with_extension(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    files.sort();
    files
}

/// The folder for the program compiled from these sources. It is kept as long as they do not change, since each test
/// runs in its own process.
fn built(language: &str, sources: &[PathBuf], compiler: impl FnOnce(&[PathBuf], &Path) -> Command) -> PathBuf {
    let mut digest = Sha256::new();
    for source in sources {
        digest.update(std::fs::read(source).expect("a source"));
    }
    let digest = hex::encode(&digest.finalize()[..8]);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("client-{language}-{digest}"));
    if kept.is_dir() {
        return kept;
    }
    // One test builds, and the others wait for it: a build takes much longer than a test.
    let building = File::create(kept.with_extension("building")).expect("a file");
    building.lock().expect("no build panics");
    if !kept.is_dir() {
        let fresh = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let output = compiler(sources, fresh.path()).stdin(Stdio::null()).output().expect("the compiler runs");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&said));
        std::fs::rename(fresh.keep(), &kept).expect("what was built is kept");
    }
    kept
}
