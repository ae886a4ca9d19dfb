//! Runs this program under valgrind, once for each piece and number of repetitions, and reads the instruction counts.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, thread};

use anyhow::{Context as _, bail, ensure};

/// Numbers of repetitions. The second count minus the first is the cost of the piece alone, without its setup.
const TIMES: usize = crate::pieces::TIMES_MAX / 2;

/// Makes the C library choose the same copy and compare functions on every processor.
const PLAIN_PROCESSOR: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-BMI2,-ERMS,-FSRM,-MOVBE,-RTM");

/// Beginning of the lines about system calls.
const SYSCALL: &str = "SYSCALL[";

/// Functions that are not counted. A clock of the metrics library calibrates itself against the system's, which takes
/// millions of instructions, and a different number each time.
const NOT_COUNTED: &str = "quanta::Calibration::calibrate*";

/// Number of the system call that reads a clock. Outside of valgrind that is a function, without a change to the kernel.
const CLOCK_GETTIME: &str = "(228)";

/// Counts of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Instructions of one repetition.
    pub(crate) instructions: u64,
    /// System calls of a hundred repetitions, without reads of a clock.
    pub(crate) syscalls: u64,
}

/// Returns the counts of each piece, in the order of the names.
///
/// # Errors
/// Valgrind is missing, or a piece failed.
pub(crate) fn count(names: &[&'static str]) -> anyhow::Result<Vec<(&'static str, Counts)>> {
    let runs: Vec<(usize, usize)> = (0..names.len()).flat_map(|piece| [(piece, TIMES), (piece, 2 * TIMES)]).collect();
    let next = AtomicUsize::new(0);
    let counts = Mutex::new(vec![[Run::default(); 2]; names.len()]);
    let work = || -> anyhow::Result<()> {
        while let Some(&(piece, times)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let counted = run(names[piece], times).with_context(|| format!("the piece `{}`", names[piece]))?;
            let mut counts = counts.lock().map_err(|_| anyhow::anyhow!("another run failed"))?;
            counts[piece][usize::from(times > TIMES)] = counted;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a run of valgrind could not be looked after")))
        })
    })?;
    let counts = counts.into_inner().map_err(|_| anyhow::anyhow!("a run failed"))?;
    let each = |(name, [once, twice]): (&&'static str, [Run; 2])| {
        let (one, two) = (once.instructions, twice.instructions);
        ensure!(two > one, "`{name}` does nothing: {one} instructions, and {two} for twice as much");
        let syscalls = twice.syscalls.saturating_sub(once.syscalls) * 100 / TIMES as u64;
        Ok((*name, Counts { instructions: (two - one) / TIMES as u64, syscalls }))
    };
    names.iter().zip(counts).map(each).collect()
}

/// Counts of one run.
#[derive(Clone, Copy, Default)]
struct Run {
    instructions: u64,
    syscalls: u64,
}

fn run(name: &str, times: usize) -> anyhow::Result<Run> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--trace-syscalls=yes"])
        // In this order: the first option alone would start with counting switched off.
        .args([&format!("--toggle-collect={NOT_COUNTED}"), "--collect-atstart=yes"])
        .arg(env::current_exe()?)
        .args(["--piece", name, "--times", &times.to_string()])
        // The environment is on the stack, and its size would move what is there.
        .env_clear()
        .envs(path())
        .env(PLAIN_PROCESSOR.0, PLAIN_PROCESSOR.1);
    let output = command.output().context("valgrind cannot be run; scripts/install-test-deps installs it")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let lines = stderr.lines().filter(|line| !line.starts_with(SYSCALL)).collect::<Vec<_>>();
        bail!("failed under valgrind:\n{}", lines.join("\n"));
    }
    let collected = stderr.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, count)| count.trim());
    let instructions = collected.and_then(|count| count.parse().ok()).context("valgrind did not say how many")?;
    let syscalls = stderr.lines().filter(|line| is_syscall(line)).count() as u64;
    Ok(Run { instructions, syscalls })
}

/// Returns whether a line is the beginning of a system call other than a read of a clock, such as
/// `SYSCALL[7,1](44) sys_sendto ( … ) --> [async] ...`. Its end is a line without a name.
fn is_syscall(line: &str) -> bool {
    line.starts_with(SYSCALL) && line.contains(") sys_") && !line.contains(CLOCK_GETTIME)
}

#[expect(clippy::disallowed_methods, reason = "the child needs it to find valgrind")]
fn path() -> Option<(&'static str, std::ffi::OsString)> {
    env::var_os("PATH").map(|path| ("PATH", path))
}
