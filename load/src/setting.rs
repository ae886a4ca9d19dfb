//! Machine and versions, without which figures mean little: processor, cores, file system, programs.

use std::{fs, path::Path, process::Command};

use crate::trial::Bench;

/// Returns the description in one line.
pub(crate) fn describe(bench: &Bench) -> String {
    let installed = &bench.installed;
    let version = |program: Option<&Path>, flag: &str| program.and_then(|it| version(it, flag));
    let parts = [
        processor(),
        Some(bench.cores.to_string()).filter(|shares| !shares.is_empty()),
        file_system(&bench.parent()).map(|name| format!("data on {name}")),
        version(installed.gateway.as_deref(), "--version"),
        version(installed.redis_server.as_deref(), "--version").map(|it| first_words(&it, 3)),
        installed.postgres.as_ref().and_then(|it| version(Some(&it.server()), "--version")),
        version(installed.nginx.as_deref(), "-v").map(|it| it.trim_start_matches("nginx version: ").to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn processor() -> Option<String> {
    let processors = fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut names = processors.lines().filter_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let (_, name) = names.next()?;
    Some(format!("{} cores of {}", names.count() + 1, name.trim()))
}

/// Returns the file system of a folder.
fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?)).filter(|(place, _)| folder.starts_with(place))
    });
    mounts.max_by_key(|(place, _)| place.len()).map(|(_, name)| name.to_owned())
}

/// Returns the first line of a program's version output, from either stream.
fn version(program: &Path, flag: &str) -> Option<String> {
    let said = Command::new(program).arg(flag).output().ok()?;
    let said = [said.stdout, said.stderr].concat();
    Some(String::from_utf8_lossy(&said).lines().next()?.trim().to_owned())
}

fn first_words(text: &str, count: usize) -> String {
    text.split(' ').take(count).collect::<Vec<_>>().join(" ")
}
