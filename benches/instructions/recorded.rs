//! The figures under version control: read, compared with what was counted, and written anew when a change is meant.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

/// Where the figures are, from the root of the tree.
pub(crate) const FILE: &str = "benches/instructions.toml";

/// How far a piece may be from its figure, in percent of it. The same build counts the same to a few thousandths; what is
/// above that leaves room for what other code does to what the compiler inlines.
const PERCENT: u64 = 10;

/// How the file opens.
const HEAD: &str = "\
# Instructions that the pieces of benches/instructions take, each done once, on x86-64 Linux.
#
# `make bench` compares, and fails on what takes a tenth more. Written by `make bench-record`, when a change is meant:
# commit it with that change, and say there what is bought with it.
";

/// What is recorded.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    /// The compiler that it was counted with.
    rustc: String,
    /// The figures by piece.
    instructions: BTreeMap<String, u64>,
}

impl Recorded {
    /// What was counted now, with this compiler.
    ///
    /// # Errors
    /// That the compiler does not say which one it is.
    pub(crate) fn of(counted: Vec<(&'static str, u64)>) -> anyhow::Result<Self> {
        let instructions = counted.into_iter().map(|(name, figure)| (name.to_owned(), figure)).collect();
        Ok(Self { rustc: rustc()?, instructions })
    }

    /// What the file says.
    ///
    /// # Errors
    /// That it cannot be read.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path()).with_context(|| FILE.to_owned())?;
        toml::from_str(&text).with_context(|| FILE.to_owned())
    }

    /// Writes the file.
    ///
    /// # Errors
    /// That it cannot be written.
    pub(crate) fn write(&self) -> anyhow::Result<()> {
        std::fs::write(path(), self.to_string()).with_context(|| FILE.to_owned())
    }

    /// What was counted beside what is recorded.
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

/// What was counted beside what is recorded. Shown as a table, with what to do.
pub(crate) struct Compared {
    lines: Vec<Line>,
    recorded_with: String,
    counted_with: String,
}

/// One piece.
struct Line {
    name: String,
    was: Option<u64>,
    now: Option<u64>,
}

/// How a piece stands to its figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Standing {
    AsRecorded,
    Better,
    Worse,
    NotRecorded,
    Gone,
}

/// Whether all pieces are within their figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Held,
    Broken,
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
    /// Fails on what takes more than it may, and on what nobody has recorded or does any more.
    pub(crate) fn verdict(&self) -> Verdict {
        let breaks = [Standing::Worse, Standing::NotRecorded, Standing::Gone];
        if breaks.into_iter().any(|standing| self.has(standing)) { Verdict::Broken } else { Verdict::Held }
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
                "\nWhat is WORSE takes more than {PERCENT} % more than is recorded. Find what does it (callgrind shows"
            )?;
            writeln!(f, "where); or, if it is meant, `make bench-record` and say in the commit what it is for.")?;
        }
        if self.has(Standing::NotRecorded) || self.has(Standing::Gone) {
            writeln!(f, "\nThe pieces and {FILE} do not agree: `make bench-record`.")?;
        }
        if self.has(Standing::Better) {
            writeln!(f, "\nWhat is better is not held until it is recorded anew: `make bench-record`.")?;
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
    /// By how much it has changed, in percent, with one decimal.
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
