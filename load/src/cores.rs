//! Cores of each process, for machines that have enough of them: shares that do not disturb each other.

use std::{collections::BTreeMap, fmt, str::FromStr};

use anyhow::{Context as _, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Process or thread that gets cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Gateway,
    Store,
    /// The network between them.
    Network,
    Generator,
    /// The thread of the generator that knows when operations are due. On a separate core it spins.
    Pacer,
}

impl Role {
    const ALL: [(Self, &str); 5] = [
        (Self::Gateway, "gateway"),
        (Self::Store, "store"),
        (Self::Network, "network"),
        (Self::Generator, "generator"),
        (Self::Pacer, "pacer"),
    ];

    /// Returns the role of a child process with this name in reports.
    pub(crate) fn of_child(name: &str) -> Self {
        match name {
            "store" | "upstream" => Self::Store,
            "network" => Self::Network,
            _ => Self::Gateway,
        }
    }
}

/// Cores of each role. A role without any runs where the system puts it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cores(BTreeMap<Role, Vec<usize>>);

impl Cores {
    /// Reports whether the pacer has a core that nothing else runs on, so that it may spin.
    pub(crate) fn pacer_spins(&self) -> bool {
        self.0.contains_key(&Role::Pacer)
    }

    /// Limits the calling thread, and the threads and processes that it starts, to the cores of a role. Without any,
    /// changes nothing. The guard undoes it.
    pub(crate) fn limit(&self, role: Role) -> anyhow::Result<Limit> {
        let before = sched_getaffinity(None).context("cannot read the cores of this process")?;
        // The network is on the way to the store.
        let of_network = || self.0.get(&Role::Store).filter(|_| role == Role::Network);
        if let Some(cores) = self.0.get(&role).or_else(of_network) {
            let mut set = CpuSet::new();
            for core in cores {
                set.set(*core);
            }
            sched_setaffinity(None, &set).with_context(|| format!("cannot run on the cores {cores:?}"))?;
        }
        Ok(Limit { before })
    }

    /// Checks the cores, and puts this process on those of the generator.
    pub(crate) fn start_generator(&self) -> anyhow::Result<()> {
        self.check()?;
        self.limit(Role::Generator)?.keep();
        Ok(())
    }

    /// Checks that this machine has these cores.
    fn check(&self) -> anyhow::Result<()> {
        let here = sched_getaffinity(None).context("cannot read the cores of this process")?;
        let missing = self.0.values().flatten().find(|core| !here.is_set(**core));
        match missing {
            Some(core) => bail!("core {core} is not here, or not for this program"),
            None => Ok(()),
        }
    }
}

/// Undoes a limit when it is dropped.
#[must_use]
pub(crate) struct Limit {
    before: CpuSet,
}

impl Limit {
    /// Does not restore the earlier limit at the end.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        // They were its cores before, so this cannot fail.
        let _ = sched_setaffinity(None, &self.before);
    }
}

impl FromStr for Cores {
    type Err = anyhow::Error;

    /// Parses shares such as `gateway=0-3,store=4,generator=5+7`.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut cores = BTreeMap::new();
        for share in text.split(',') {
            let (name, list) = share.split_once('=').with_context(|| format!("{share:?} is not ROLE=CORES"))?;
            let Some((role, _)) = Role::ALL.into_iter().find(|(_, it)| *it == name) else {
                bail!("{name:?} is none of gateway, store, network, generator, pacer");
            };
            let list: Vec<Vec<usize>> = list.split('+').map(range).collect::<anyhow::Result<_>>()?;
            ensure!(cores.insert(role, list.concat()).is_none(), "{name} is there twice");
        }
        if let Some(own) = cores.get(&Role::Pacer) {
            let others: Vec<_> = cores.iter().filter(|(role, _)| **role != Role::Pacer).collect();
            ensure!(
                others.iter().all(|(_, it)| own.iter().all(|core| !it.contains(core))),
                "the pacer spins, so it needs a core that no other role has"
            );
            for (role, name) in Role::ALL.into_iter().filter(|(role, _)| *role != Role::Network) {
                ensure!(cores.contains_key(&role), "the pacer spins, so {name} needs cores, too: it must not meet it");
            }
        }
        Ok(Self(cores))
    }
}

/// Parses one core or a range.
fn range(text: &str) -> anyhow::Result<Vec<usize>> {
    let number = |text: &str| {
        let core = text.parse().ok().filter(|core| *core < CpuSet::MAX_CPU);
        core.with_context(|| format!("{text:?} is not the number of a core"))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    ensure!(first <= last, "{text:?} is no range");
    Ok((first..=last).collect())
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = Role::ALL.into_iter().filter_map(|(role, name)| Some((name, self.0.get(&role)?)));
        let shares = shares.map(|(name, cores)| {
            let cores: Vec<_> = cores.iter().map(ToString::to_string).collect();
            format!("{name} on {}", cores.join("+"))
        });
        f.write_str(&shares.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn cores(text: &str) -> anyhow::Result<Cores> {
        text.parse()
    }

    #[test]
    fn shares_are_parsed_and_shown() {
        let parsed = cores("store=4,gateway=0-2+5").expect("good shares");
        assert_eq!(parsed.to_string(), "gateway on 0+1+2+5, store on 4");
        assert!(!parsed.pacer_spins());
        for wrong in ["", "gateway", "gateway=", "gateway=2-1", "gateway=x", "gateway=0,gateway=1", "other=1"] {
            assert!(cores(wrong).is_err(), "{wrong:?} was accepted");
        }
    }

    #[test]
    fn a_pacer_spins_on_a_core_of_its_own_only() {
        assert!(cores("gateway=0,store=0,generator=0,pacer=1").is_ok_and(|cores| cores.pacer_spins()));
        assert!(cores("gateway=0-1,store=0,generator=0,pacer=1").is_err(), "it takes the gateway's core");
        assert!(cores("gateway=0,generator=0,pacer=1").is_err(), "the store may run anywhere");
    }

    #[test]
    fn a_limit_holds_for_new_threads_until_it_is_dropped() {
        let here = || sched_getaffinity(None).expect("no cores");
        let all = here();
        let first = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).expect("no core");
        let limited = cores(&format!("store={first}")).expect("good shares");
        limited.check().expect("the core is here");
        let guard = limited.limit(Role::Store).expect("not limited");
        assert_eq!(thread::spawn(here).join().expect("a panic").count(), 1);
        drop(guard);
        assert_eq!(here().count(), all.count());
        let other = limited.limit(Role::Gateway).expect("no limit");
        assert_eq!(here().count(), all.count(), "a role without cores was limited");
        drop(other);
    }
}
