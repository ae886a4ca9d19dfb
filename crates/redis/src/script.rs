//! The Lua scripts. They are called by digest, and by their text where the server does not have them any more.

use std::borrow::Cow;
use std::sync::LazyLock;

use redis::Cmd;

use super::commands::Commands;

/// A script and its digest.
pub(super) struct Script {
    text: Cow<'static, str>,
    digest: String,
}

impl Script {
    fn new(text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        Self { digest: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    /// Runs the script by its digest.
    pub(super) fn call<Argument: AsRef<[u8]>>(&self, key: &str, arguments: &[Argument]) -> Commands {
        invocation("EVALSHA", &self.digest, key, arguments)
    }

    /// Runs the script by its text, which also loads it.
    pub(super) fn load_and_call<Argument: AsRef<[u8]>>(&self, key: &str, arguments: &[Argument]) -> Commands {
        invocation("EVAL", &self.text, key, arguments)
    }

    /// Loads the script.
    pub(super) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&*self.text);
        command
    }
}

/// Passes the key as such: a cluster routes by it, and an ACL is applied to it.
fn invocation(command: &str, script: &str, key: &str, arguments: &[impl AsRef<[u8]>]) -> Commands {
    let words = [command, script, "1", key].into_iter().map(str::as_bytes);
    Commands::of(words.chain(arguments.iter().map(AsRef::as_ref)))
}

/// All scripts of this engine.
pub(super) struct Scripts {
    /// Reads a claim and its remaining time, on a server that is full.
    pub(super) read: Script,
    /// Settles an outcome.
    pub(super) settle: Script,
    /// Renews a lease.
    pub(super) renew: Script,
    /// Claims for a caller that waits.
    pub(super) claim_waiting: Script,
    /// Takes over an `unknown` claim.
    pub(super) take_over: Script,
    /// Releases a claim.
    pub(super) release: Script,
    /// Reads a shared record.
    pub(super) get_record: Script,
    /// Compares and sets a shared record.
    pub(super) change_record: Script,
    /// Does so unless the server is full.
    pub(super) grant_record: Script,
}

impl Scripts {
    /// Returns all scripts.
    pub(super) fn all(&self) -> [&Script; 9] {
        let Self { read, settle, renew, claim_waiting, take_over, release, .. } = self;
        let Self { get_record, change_record, grant_record, .. } = self;
        [read, settle, renew, claim_waiting, take_over, release, get_record, change_record, grant_record]
    }
}

/// Returns the text of a script that needs room: a server at its maxmemory refuses it.
fn granting(text: &str) -> String {
    text.replacen("#!lua flags=allow-oom\n", "#!lua\n", 1)
}

/// The scripts, digested once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    read: Script::new(include_str!("read.lua")),
    settle: Script::new(concat!(include_str!("live_claim.lua"), include_str!("settle.lua"))),
    renew: Script::new(concat!(include_str!("live_claim.lua"), include_str!("renew.lua"))),
    claim_waiting: Script::new(granting(concat!(include_str!("live_claim.lua"), include_str!("claim_waiting.lua")))),
    // A full server has room for it: it replaces a value.
    take_over: Script::new(concat!(include_str!("live_claim.lua"), include_str!("take_over.lua"))),
    release: Script::new(concat!(include_str!("live_claim.lua"), include_str!("release.lua"))),
    get_record: Script::new(include_str!("get_record.lua")),
    change_record: Script::new(concat!("#!lua flags=allow-oom\n", include_str!("change_record.lua"))),
    grant_record: Script::new(concat!("#!lua\n", include_str!("change_record.lua"))),
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_and_lua_give_the_same_grace() {
        let line = format!("\nlocal GRACE = {}\n", super::super::reply::GRACE.as_millis());
        assert!(SCRIPTS.settle.text.contains(&line));
    }

    #[test]
    fn every_script_that_needs_no_room_works_while_the_server_is_full_and_none_works_on_a_replica() {
        for script in SCRIPTS.all() {
            let grants = [&SCRIPTS.claim_waiting, &SCRIPTS.grant_record].map(std::ptr::from_ref);
            let grants = grants.into_iter().any(|grant| std::ptr::eq(script, grant));
            assert!(script.text.starts_with(if grants { "#!lua\n" } else { "#!lua flags=allow-oom\n" }));
        }
    }
}
