//! Recorded counts under version control: read, compared, and rewritten when a change is intended.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

use crate::valgrind::Counts;

/// Path of the recorded counts, from the root of the repository.
pub(crate) const FILE: &str = "benches/instructions.toml";

/// Tolerance of a count, in percent. The same build counts the same within a few thousandths; the rest is for inlining
/// decisions that depend on other code.
const PERCENT: u64 = 10;

/// Tolerance of a count of system calls, in percent: a busy machine splits some reads in two.
const SYSCALL_PERCENT: u64 = 30;

/// Fewest system calls of a hundred repetitions that are recorded. The allocator makes some, now and then.
const SYSCALLS_MIN: u64 = 100;

/// Header of the file.
const HEAD: &str = "\
# Instructions and system calls of each piece of benches/instructions, on x86-64 Linux.
#
# `make bench` compares, and fails if a piece takes 10 % more instructions or 30 % more system calls. `make bench-record`
# rewrites this file when a change is intended: commit it with that change, and give the reason there.
";

/// Recorded counts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    /// Version of the compiler.
    rustc: String,
    /// Instructions by piece.
    instructions: BTreeMap<String, u64>,
    /// System calls of a hundred repetitions, by piece. Pieces of computation alone are left out.
    #[serde(default)]
    syscalls: BTreeMap<String, u64>,
}

impl Recorded {
    /// Returns new counts, with the current compiler.
    ///
    /// # Errors
    /// The compiler does not print its version.
    pub(crate) fn of(counted: &[(&str, Counts)]) -> anyhow::Result<Self> {
        let named = |(name, figure): (&str, u64)| (name.to_owned(), figure);
        let instructions = instructions(counted).into_iter().map(named).collect();
        Ok(Self { rustc: rustc()?, instructions, syscalls: syscalls(counted).into_iter().map(named).collect() })
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
    pub(crate) fn compare(self, counted: &[(&str, Counts)]) -> Compared {
        Compared {
            instructions: lines(self.instructions, &instructions(counted), PERCENT),
            syscalls: lines(self.syscalls, &syscalls(counted), SYSCALL_PERCENT),
            recorded_with: self.rustc,
            counted_with: rustc().unwrap_or_default(),
        }
    }
}

fn instructions<'n>(counted: &[(&'n str, Counts)]) -> Vec<(&'n str, u64)> {
    counted.iter().map(|(name, counts)| (*name, counts.instructions)).collect()
}

fn syscalls<'n>(counted: &[(&'n str, Counts)]) -> Vec<(&'n str, u64)> {
    let figures = counted.iter().map(|(name, counts)| (*name, counts.syscalls));
    figures.filter(|(_, syscalls)| *syscalls >= SYSCALLS_MIN).collect()
}

/// Returns the figures of each piece, recorded or counted.
fn lines(mut recorded: BTreeMap<String, u64>, counted: &[(&str, u64)], percent: u64) -> Vec<Line> {
    let line = |&(name, now): &(&str, u64)| {
        let was = recorded.remove(name);
        Line { name: name.to_owned(), was, now: Some(now), percent }
    };
    let mut lines: Vec<_> = counted.iter().map(line).collect();
    lines.extend(recorded.into_iter().map(|(name, was)| Line { name, was: Some(was), now: None, percent }));
    lines
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\nrustc = \"{}\"\n\n[instructions]", self.rustc)?;
        self.instructions.iter().try_for_each(|(name, figure)| writeln!(f, "\"{name}\" = {figure}"))?;
        writeln!(f, "\n# Of a hundred repetitions, without reads of a clock.\n[syscalls]")?;
        self.syscalls.iter().try_for_each(|(name, figure)| writeln!(f, "\"{name}\" = {figure}"))
    }
}

/// Result of a comparison. Displayed as a table, with what to do.
pub(crate) struct Compared {
    instructions: Vec<Line>,
    syscalls: Vec<Line>,
    recorded_with: String,
    counted_with: String,
}

/// Comparison of one piece.
struct Line {
    name: String,
    was: Option<u64>,
    now: Option<u64>,
    /// Tolerance, in percent.
    percent: u64,
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
            (Some(was), Some(now)) if now * 100 > was * (100 + self.percent) => Standing::Worse,
            (Some(was), Some(now)) if now * 100 < was * (100 - self.percent) => Standing::Better,
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
        self.instructions.iter().chain(&self.syscalls).any(|line| line.standing() == standing)
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = [("instructions", &self.instructions), ("syscalls of 100", &self.syscalls)];
        for (number, (name, lines)) in tables.into_iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{name:<24} {:>12} {:>12} {:>8}", "recorded", "now", "")?;
            lines.iter().try_for_each(|line| line.fmt(f))?;
        }
        if self.has(Standing::Worse) {
            writeln!(
                f,
                "\nA piece that is WORSE takes over {PERCENT} % more instructions than recorded, or over {SYSCALL_PERCENT} %"
            )?;
            writeln!(
                f,
                "more system calls. Find the cause with callgrind, or, if the change is intended, run `make bench-record` and"
            )?;
            writeln!(f, "give the reason in the commit.")?;
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

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figure = |figure: Option<u64>| figure.map_or_else(|| "–".to_owned(), |figure| figure.to_string());
        write!(f, "{:<24} {:>12} {:>12} {:>8}", self.name, figure(self.was), figure(self.now), self.change())?;
        let standing = match self.standing() {
            Standing::AsRecorded => "",
            Standing::Better => "  better",
            Standing::Worse => "  WORSE",
            Standing::NotRecorded => "  NOT RECORDED",
            Standing::Gone => "  GONE",
        };
        writeln!(f, "{standing}")
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
