//! CPU time and memory of other processes and their children, from `/proc`.

use std::{fs, str::FromStr};

use anyhow::{Context as _, bail};

/// Linux reports CPU time to programs in hundredths of a second.
const TICK_US: u64 = 10_000;

/// Process to watch, with its name in reports.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) pid: u32,
    extent: Extent,
}

/// What counts.
#[derive(Debug, Clone, Copy)]
enum Extent {
    /// Its children, too: the processes of a server are the server.
    Family,
    Process,
    /// A thread of it alone.
    Thread(u32),
    /// All of its threads but this one.
    Without(u32),
}

impl Watched {
    /// Returns a server, including the processes it starts.
    pub(crate) fn server(name: &str, pid: u32) -> Self {
        Self { name: name.to_owned(), pid, extent: Extent::Family }
    }

    /// Returns this process, the generator, without its children: these are the processes that it measures.
    pub(crate) fn generator() -> Self {
        Self { name: "generator".to_owned(), pid: std::process::id(), extent: Extent::Process }
    }

    /// Returns the calling thread, which knows when operations are due.
    pub(crate) fn pacer() -> Self {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        Self { name: "pacer".to_owned(), extent: Extent::Thread(thread), ..Self::generator() }
    }

    /// Returns the same process without a thread that is watched separately.
    pub(crate) fn without(self, other: &Self) -> Self {
        match other.extent {
            Extent::Thread(thread) => Self { extent: Extent::Without(thread), ..self },
            _ => self,
        }
    }

    /// Returns the CPU time of all its threads so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> anyhow::Result<u64> {
        let ticks = match self.extent {
            Extent::Family => {
                let own = self.stat("stat")?;
                // A child that has ended is missing here, but its parent has its time.
                let ticks: u64 = self.children().iter().map(|(_, child)| child.ticks + child.ended_ticks).sum();
                own.ticks + own.ended_ticks + ticks
            }
            Extent::Process => self.stat("stat")?.ticks,
            Extent::Thread(thread) => self.stat(&format!("task/{thread}/stat"))?.ticks,
            Extent::Without(thread) => {
                let others = self.stat(&format!("task/{thread}/stat"))?.ticks;
                self.stat("stat")?.ticks.saturating_sub(others)
            }
        };
        Ok(ticks * TICK_US)
    }

    fn stat(&self, file: &str) -> anyhow::Result<Stat> {
        let stat = fs::read_to_string(format!("/proc/{}/{file}", self.pid))
            .with_context(|| format!("cannot read the CPU time of {} (process {})", self.name, self.pid))?;
        Stat::parse(&stat).context("/proc/<pid>/stat is not in its usual form")
    }

    /// Returns its process ID and those of its children.
    pub(crate) fn family(&self) -> Vec<u32> {
        [self.pid].into_iter().chain(self.children().into_iter().map(|(pid, _)| pid)).collect()
    }

    /// Returns its children, their children, and so on.
    fn children(&self) -> Vec<(u32, Stat)> {
        let (mut found, mut others): (Vec<(u32, Stat)>, Vec<_>) = (Vec::new(), processes().collect());
        let mut parents = vec![self.pid];
        while let Some(parent) = parents.pop() {
            let (children, rest): (Vec<_>, Vec<_>) = others.into_iter().partition(|(_, stat)| stat.parent == parent);
            parents.extend(children.iter().map(|(pid, _)| *pid));
            found.extend(children);
            others = rest;
        }
        found
    }

    /// Returns its open descriptors.
    pub(crate) fn descriptors(&self) -> anyhow::Result<u64> {
        self.entries("fd")
    }

    /// Returns its threads.
    pub(crate) fn threads(&self) -> anyhow::Result<u64> {
        self.entries("task")
    }

    fn entries(&self, folder: &str) -> anyhow::Result<u64> {
        let entries = fs::read_dir(format!("/proc/{}/{folder}", self.pid))
            .with_context(|| format!("cannot read the {folder} entries of {} (process {})", self.name, self.pid))?;
        Ok(u64::try_from(entries.count())?)
    }

    /// Returns its resident memory in bytes, without its children's.
    pub(crate) fn resident_bytes(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// Returns the highest resident memory since it was started.
    pub(crate) fn peak_bytes(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, field: &str) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))
            .with_context(|| format!("cannot read the memory of {} (process {})", self.name, self.pid))?;
        let kib =
            status.lines().find_map(|line| line.strip_prefix(field)?.trim().split(' ').next()?.parse::<u64>().ok());
        Ok(kib.context("/proc/<pid>/status is not in its usual form")? * 1024)
    }
}

/// Returns the busy time of all cores, including time stolen by the host, in microseconds.
pub(crate) fn machine_us() -> anyhow::Result<u64> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read the CPU time of this machine")?;
    busy_ticks(&stat).map(|ticks| ticks * TICK_US).context("/proc/stat is not in its usual form")
}

/// Returns the number of cores of this machine.
pub(crate) fn cores() -> Option<usize> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let is_core = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    Some(stat.lines().filter(is_core).count()).filter(|cores| *cores > 0)
}

/// Returns all but the fourth and fifth figure, which are idle time; the last two are contained in the first two.
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

/// CPU time and parent of a process.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    ticks: u64,
    /// CPU time of its children that have ended.
    ended_ticks: u64,
}

impl Stat {
    /// Field 4, and user plus system time: fields 14 and 15, of ended children 16 and 17. The second field, the name,
    /// may contain spaces and parentheses, so fields are counted from its end.
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
    fn a_name_may_contain_spaces_and_parentheses() {
        let stat = "42 (odd) name) S 1 42 42 0 -1 4194304 100 0 0 0 250 50 7 3 20 0 4 0 1234 0 0";
        assert_eq!(Stat::parse(stat), Some(Stat { parent: 1, ticks: 300, ended_ticks: 10 }));
    }

    #[test]
    fn idle_time_is_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 1"), Some(63));
        assert!(machine_us().is_ok());
    }

    #[test]
    fn a_thread_and_the_rest_of_its_process_are_the_process() {
        let pacer = Watched::pacer();
        let started = std::time::Instant::now();
        while pacer.cpu_us().expect("no CPU time") < 5 * TICK_US {
            assert!(started.elapsed().as_secs() < 60, "a busy thread has no CPU time");
        }
        let rest = Watched::generator().without(&pacer);
        let (process, parts) =
            (Watched::generator().cpu_us(), rest.cpu_us().expect("none") + pacer.cpu_us().expect("none"));
        // Other tests run at the same time, in threads of this process.
        assert!(process.expect("none") <= parts && rest.cpu_us().is_ok());
    }

    #[test]
    fn its_own_cpu_time_can_be_read() {
        assert!(Watched::generator().cpu_us().is_ok());
        assert!(Watched::generator().resident_bytes().is_ok_and(|bytes| bytes > 1 << 20));
        let generator = Watched::generator();
        assert!(
            generator.descriptors().is_ok_and(|count| count >= 3) && generator.threads().is_ok_and(|count| count >= 1)
        );
    }
}
