//! CPU time of other processes and of their children, and their memory, from `/proc`.

use std::{fs, str::FromStr};

use anyhow::{Context as _, bail};

/// Linux tells programs CPU time in hundredths of a second, whatever the kernel's own clock does.
const TICK_US: u64 = 10_000;

/// A process to watch, by the name to report it under.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// Whether its children count too: what a server starts is the server.
    family: bool,
}

impl Watched {
    /// A server, with the processes it starts.
    pub(crate) fn server(name: &str, pid: u32) -> Self {
        Self { name: name.to_owned(), pid, family: true }
    }

    /// This process, the generator. What it starts is what it measures.
    pub(crate) fn generator() -> Self {
        Self { name: "generator".to_owned(), pid: std::process::id(), family: false }
    }

    /// What all its threads have used since it began, in microseconds.
    pub(crate) fn cpu_us(&self) -> anyhow::Result<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))
            .with_context(|| format!("cannot read the CPU time of {} (process {})", self.name, self.pid))?;
        let own = Stat::parse(&stat).context("/proc/<pid>/stat is not in its usual form")?;
        if !self.family {
            return Ok(own.ticks * TICK_US);
        }
        // One that ends meanwhile is gone from here, but then its parent has its time.
        let all: Vec<_> = processes().collect();
        let mut family = vec![self.pid];
        let mut ticks = own.ticks + own.ended_ticks;
        let mut next = 0;
        while let Some(parent) = family.get(next).copied() {
            for (pid, stat) in all.iter().filter(|(_, stat)| stat.parent == parent) {
                family.push(*pid);
                ticks += stat.ticks + stat.ended_ticks;
            }
            next += 1;
        }
        Ok(ticks * TICK_US)
    }

    /// Memory of it that is in RAM, in bytes, without its children's.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))
            .with_context(|| format!("cannot read the memory of {} (process {})", self.name, self.pid))?;
        let kib =
            status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next()?.parse::<u64>().ok());
        Ok(kib.context("/proc/<pid>/status is not in its usual form")? * 1024)
    }
}

/// What all cores of this machine have been busy with, in microseconds, and what was kept from it by its host.
pub(crate) fn machine_us() -> anyhow::Result<u64> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read the CPU time of this machine")?;
    busy_ticks(&stat).map(|ticks| ticks * TICK_US).context("/proc/stat is not in its usual form")
}

/// All but the fourth and the fifth figure, in which it waited; the last two are in the first two already.
fn busy_ticks(stat: &str) -> Option<u64> {
    let figures = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let figures: Vec<u64> = figures.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, _, _, irq, softirq, steal] = figures[..] else { return None };
    Some(user + nice + system + irq + softirq + steal)
}

impl FromStr for Watched {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let Some((name, pid)) = text.split_once('=') else { bail!("expected NAME=PID, such as gateway=1234") };
        let pid = pid.parse().with_context(|| format!("{pid:?} is not a process ID"))?;
        Ok(Self::server(name, pid))
    }
}

/// What one process has used and whose child it is.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    ticks: u64,
    /// Of its children that have ended.
    ended_ticks: u64,
}

impl Stat {
    /// Field 4, and user plus system time: fields 14 and 15, those of ended children 16 and 17. The second field, the name,
    /// may hold spaces and parentheses, so count from its end.
    fn parse(stat: &str) -> Option<Self> {
        let (_, after_name) = stat.rsplit_once(')')?;
        let mut fields = after_name.split_ascii_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let times: Vec<u64> = fields.skip(9).take(4).map(str::parse).collect::<Result<_, _>>().ok()?;
        let [user, system, ended_user, ended_system] = times[..] else { return None };
        Some(Self { parent, ticks: user + system, ended_ticks: ended_user + ended_system })
    }
}

fn processes() -> impl Iterator<Item = (u32, Stat)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, Stat::parse(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_is_stepped_over() {
        let stat = "42 (odd) name) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 7 3 20 0 4 0 1234 0 0";
        assert_eq!(Stat::parse(stat), Some(Stat { parent: 1, ticks: 300, ended_ticks: 10 }));
    }

    #[test]
    fn a_machine_that_waits_is_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 1"), Some(63));
        assert!(machine_us().is_ok());
    }

    #[test]
    fn its_own_time_can_be_read() {
        assert!(Watched::generator().cpu_us().is_ok());
        assert!(Watched::generator().resident_bytes().is_ok_and(|bytes| bytes > 1 << 20));
    }
}
