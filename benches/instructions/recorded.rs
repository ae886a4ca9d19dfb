//! Recorded counts under version control: read, compared, and rewritten when a change is intended.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

/// Path of the recorded counts, from the root of the repository.
pub(crate) const FILE: &str = "benches/instructions.toml";

/// Tolerance of a count, in percent. The same build counts the same within a few thousandths; the rest is for inlining
/// decisions that depend on other code.
const PERCENT: u64 = 10;

/// Header of the file.
const HEAD: &str = "\
# Instructions of each piece of benches/instructions, on x86-64 Linux.
#
# `make bench` compares, and fails if a piece takes a tenth more. `make bench-record` rewrites this file when a change is
# intended: commit it with that change, and give the reason there.
";

/// Recorded counts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    /// Version of the compiler.
    rustc: String,
    /// Counts by piece.
    instructions: BTreeMap<String, u64>,
}

impl Recorded {
    /// Returns new counts, with the current compiler.
    ///
    /// # Errors
    /// The compiler does not print its version.
    pub(crate) fn of(counted: Vec<(&'static str, u64)>) -> anyhow::Result<Self> {
        let instructions = counted.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect();
        Ok(Self { rustc: rustc()?, instructions })
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path()).with_context(|| FILE.to_owned())?;
        toml::from_str(&text).with_context(|| FILE.to_owned())
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        std::fs::write(path(), self.to_string()).with_context(|| FILE.to_owned())
    }

    /// Compares new counts with the recorded ones.
    pub(crate) fn compare(mut self, counted: &[(&str, u64)]) -> Compared {
        let line = |&(name, now): &(&str, u64)| {
            let was = self.instructions.remove(name);
            Line { name: name.to_owned(), was, now: Some(now) }
        };
        let mut lines: Vec<_> = counted.iter().map(line).collect();
        lines.extend(self.instructions.into_iter().map(|(name, was)| Line { name, was: Some(was), now: None }));
        Compared { lines, recorded_with: self.rustc, counted_with: rustc().unwrap_or_default() }
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\nrustc = \"{}\"\n\n[instructions]", self.rustc)?;
        self.instructions.iter().try_for_each(|(name, figure)| writeln!(f, "\"{name}\" = {figure}"))
    }
}

/// Result of a comparison. Displayed as a table, with what to do.
pub(crate) struct Compared {
    lines: Vec<Line>,
    recorded_with: String,
    counted_with: String,
}

/// Comparison of one piece.
struct Line {
    name: String,
    was: Option<u64>,
    now: Option<u64>,
}

/// Result of one piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    AsRecorded,
    Better,
    Worse,
    NotRecorded,
    Gone,
}

/// Overall result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Unchanged,
    Failed,
}

impl Line {
    fn standing(&self) -> Standing {
        match (self.was, self.now) {
            (_, None) => Standing::Gone,
            (None, Some(_)) => Standing::NotRecorded,
            (Some(was), Some(now)) if now * 100 > was * (100 + PERCENT) => Standing::Worse,
            (Some(was), Some(now)) if now * 100 < was * (100 - PERCENT) => Standing::Better,
            (Some(_), Some(_)) => Standing::AsRecorded,
        }
    }
}

impl Compared {
    /// Fails if a piece takes more than it may, is not recorded, or no longer exists.
    pub(crate) fn outcome(&self) -> Outcome {
        let breaks = [Standing::Worse, Standing::NotRecorded, Standing::Gone];
        if breaks.into_iter().any(|standing| self.has(standing)) { Outcome::Failed } else { Outcome::Unchanged }
    }

    fn has(&self, standing: Standing) -> bool {
        self.lines.iter().any(|line| line.standing() == standing)
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24} {:>12} {:>12} {:>8}", "instructions", "recorded", "now", "")?;
        for line in &self.lines {
            let figure = |figure: Option<u64>| figure.map_or_else(|| "–".to_owned(), |figure| figure.to_string());
            write!(f, "{:<24} {:>12} {:>12} {:>8}", line.name, figure(line.was), figure(line.now), line.change())?;
            writeln!(
                f,
                "{}",
                match line.standing() {
                    Standing::AsRecorded => "",
                    Standing::Better => "  better",
                    Standing::Worse => "  WORSE",
                    Standing::NotRecorded => "  NOT RECORDED",
                    Standing::Gone => "  GONE",
                }
            )?;
        }
        if self.has(Standing::Worse) {
            writeln!(
                f,
                "\nA piece that is WORSE takes over {PERCENT} % more than recorded. Find the cause with callgrind,"
            )?;
            writeln!(f, "or, if the change is intended, run `make bench-record` and give the reason in the commit.")?;
        }
        if self.has(Standing::NotRecorded) || self.has(Standing::Gone) {
            writeln!(f, "\nThe pieces and {FILE} do not match: run `make bench-record`.")?;
        }
        if self.has(Standing::Better) {
            writeln!(f, "\nAn improvement is not protected until it is recorded: run `make bench-record`.")?;
        }
        if self.recorded_with != self.counted_with {
            writeln!(
                f,
                "\nRecorded with {}, counted with {}: another compiler counts differently.",
                self.recorded_with, self.counted_with
            )?;
        }
        Ok(())
    }
}

impl Line {
    /// Returns the change in percent, with one decimal.
    fn change(&self) -> String {
        let (Some(was), Some(now)) = (self.was, self.now) else { return String::new() };
        let thousandths = (i128::from(now) - i128::from(was)) * 1000 / i128::from(was.max(1));
        format!("{}{}.{} %", if thousandths < 0 { '-' } else { '+' }, thousandths.abs() / 10, thousandths.abs() % 10)
    }
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(FILE)
}

fn rustc() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("--version").output().context("rustc cannot be run")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
