//! CPU time of other processes, from `/proc`.

use std::{fs, str::FromStr};

use anyhow::{Context as _, bail};

/// Linux tells programs CPU time in hundredths of a second, whatever the kernel's own clock does.
const TICK_US: u64 = 10_000;

/// A process to watch, by the name to report it under.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) pid: u32,
}

impl Watched {
    /// This process, the generator.
    pub(crate) fn generator() -> Self {
        Self { name: "generator".to_owned(), pid: std::process::id() }
    }

    /// What all its threads have used since it began, in microseconds.
    pub(crate) fn cpu_us(&self) -> anyhow::Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .with_context(|| format!("cannot read the CPU time of {} (process {})", self.name, self.pid))?;
        cpu_ticks(&stat).map(|ticks| ticks * TICK_US).context("/proc/<pid>/stat is not in its usual form")
    }
}

impl FromStr for Watched {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let Some((name, pid)) = text.split_once('=') else { bail!("expected NAME=PID, such as gateway=1234") };
        let pid = pid.parse().with_context(|| format!("{pid:?} is not a process ID"))?;
        Ok(Self { name: name.to_owned(), pid })
    }
}

/// User plus system time: fields 14 and 15. The second field, the name, may hold spaces and parentheses, so count from its end.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_stepped_over() {
        let stat = "42 (odd) name) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 1234 0 0";
        assert_eq!(cpu_ticks(stat), Some(300));
    }

    #[test]
    fn its_own_time_can_be_read() {
        assert!(Watched::generator().cpu_us().is_ok());
    }
}
