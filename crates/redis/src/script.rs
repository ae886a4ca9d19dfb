//! The Lua scripts. They are called by digest, and by their text where the server does not have them any more.

use std::borrow::Cow;
use std::sync::LazyLock;

use redis::Cmd;

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
    pub(super) fn call(&self, key: &str, arguments: &[&str]) -> Cmd {
        invocation("EVALSHA", &self.digest, key, arguments)
    }

    /// Runs the script by its text, which also loads it.
    pub(super) fn load_and_call(&self, key: &str, arguments: &[&str]) -> Cmd {
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
fn invocation(command: &str, script: &str, key: &str, arguments: &[&str]) -> Cmd {
    let mut command = redis::cmd(command);
    command.arg(script).arg(1).arg(key).arg(arguments);
    command
}

/// All scripts of this engine.
pub(super) struct Scripts {
    /// Reads a claim and its remaining time.
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
    /// Compares and sets a metadata value.
    pub(super) compare_and_set_metadata: Script,
}

impl Scripts {
    /// Returns all scripts.
    pub(super) fn all(&self) -> [&Script; 7] {
        let Self { read, settle, renew, claim_waiting, take_over, release, compare_and_set_metadata } = self;
        [read, settle, renew, claim_waiting, take_over, release, compare_and_set_metadata]
    }
}

/// Returns the text of a script that grants: a server at its maxmemory refuses it.
fn granting(text: &str) -> String {
    text.replacen("#!lua flags=allow-oom\n", "#!lua\n", 1)
}

/// The scripts, digested once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    read: Script::new(include_str!("read.lua")),
    settle: Script::new(concat!(include_str!("live_claim.lua"), include_str!("settle.lua"))),
    renew: Script::new(concat!(include_str!("live_claim.lua"), include_str!("renew.lua"))),
    claim_waiting: Script::new(granting(concat!(include_str!("live_claim.lua"), include_str!("claim_waiting.lua")))),
    take_over: Script::new(concat!(include_str!("live_claim.lua"), include_str!("take_over.lua"))),
    release: Script::new(concat!(include_str!("live_claim.lua"), include_str!("release.lua"))),
    compare_and_set_metadata: Script::new(include_str!("compare_and_set_metadata.lua")),
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
    fn every_script_that_grants_nothing_works_while_the_server_is_full_and_none_works_on_a_replica() {
        for script in SCRIPTS.all() {
            let grants = std::ptr::eq(script, &raw const SCRIPTS.claim_waiting);
            assert!(script.text.starts_with(if grants { "#!lua\n" } else { "#!lua flags=allow-oom\n" }));
        }
    }
}
