//! System calls of a gateway, recorded by strace: in order over all threads, with the file or socket of each.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::missing;

/// Calls to record: reads, writes, sends and syncs.
const CALLS: &str = "trace=read,readv,recvfrom,recvmsg,write,writev,pwrite64,sendto,sendmsg,fsync,fdatasync";

/// Returns whether programs can be traced here. If not, prints that the test is skipped.
pub fn is_available() -> bool {
    if missing::tool("strace").is_none() {
        return false;
    }
    let traced = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    let permitted = traced.is_ok_and(|status| status.success());
    if !permitted {
        missing::skip_because("ptrace is not permitted");
    }
    permitted
}

/// Returns a command that runs a program with its calls recorded in a file. The process is the program itself: the
/// tracer is another process, and exits with it.
pub fn command(file: &Path, program: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-qq", "-yy", "-s", "64", "-e", CALLS, "-e", "signal=none", "-o"]);
    command.arg(file).arg(program);
    command
}

/// A call that succeeded.
#[derive(Clone, Debug)]
pub struct Call {
    pub kind: Kind,
    /// Path of a file, or the two ends of a connection.
    pub target: String,
    /// First bytes that were read or written.
    pub text: String,
    /// Line of the record at its start, and at its end.
    pub started: usize,
    pub ended: usize,
}

/// Kind of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write,
    Sync,
}

/// Reads a record. Returns the calls in the order of their starts.
pub fn calls(file: &Path) -> Vec<Call> {
    let record = std::fs::read_to_string(file).expect("the record is there");
    let mut started: Vec<(&str, usize, String)> = Vec::new();
    let mut calls = Vec::new();
    for (line_number, line) in record.lines().enumerate() {
        let Some((thread, line)) = line.split_once(' ') else { continue };
        let line = line.trim_start();
        if let Some(first) = line.strip_suffix(" <unfinished ...>") {
            started.push((thread, line_number, first.to_owned()));
        } else if let Some((_, rest)) = line.strip_prefix("<... ").and_then(|line| line.split_once(" resumed>")) {
            let of_thread = started.iter().position(|(other, ..)| *other == thread).expect("a call that has started");
            let (_, since, first) = started.swap_remove(of_thread);
            calls.extend(call(&(first + rest), since, line_number));
        } else {
            calls.extend(call(line, line_number, line_number));
        }
    }
    calls.sort_by_key(|call| call.started);
    calls
}

/// Parses `write(9</var/claims>, "…"..., 512) = 512`. `None` if the call failed, or is of another kind.
fn call(line: &str, started: usize, ended: usize) -> Option<Call> {
    let (name, arguments) = line.split_once('(')?;
    let kind = match name {
        "read" | "readv" | "recvfrom" | "recvmsg" => Kind::Read,
        "write" | "writev" | "pwrite64" | "sendto" | "sendmsg" => Kind::Write,
        "fsync" | "fdatasync" => Kind::Sync,
        _ => return None,
    };
    let (arguments, result) = arguments.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    if result.starts_with('-') {
        return None;
    }
    let (_, target) = arguments.split_once('<')?;
    let (target, rest) = target.split_once(">, ").or_else(|| target.strip_suffix('>').map(|target| (target, "")))?;
    let text = rest.split_once('"').map_or("", |(_, text)| text);
    Some(Call { kind, target: target.to_owned(), text: text.to_owned(), started, ended })
}
