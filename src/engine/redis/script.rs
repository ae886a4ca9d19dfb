//! The Lua scripts, and how they are called: by digest, and with their whole text where the server has forgotten them.

use std::sync::LazyLock;

use redis::Cmd;

/// A script, and the digest that the server knows it by once it has seen it.
pub(super) struct Script {
    text: &'static str,
    digest: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, digest: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Runs the script by its digest.
    pub(super) fn call(&self, key: &str, arguments: &[&str]) -> Cmd {
        invocation("EVALSHA", &self.digest, key, arguments)
    }

    /// Runs the script by its text, which also makes the server know it again.
    pub(super) fn teach(&self, key: &str, arguments: &[&str]) -> Cmd {
        invocation("EVAL", self.text, key, arguments)
    }

    /// Makes the server know the script.
    pub(super) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(self.text);
        command
    }
}

/// Names the key: a server that keeps only some keys, or lets a user touch only some, must be able to tell.
fn invocation(command: &str, script: &str, key: &str, arguments: &[&str]) -> Cmd {
    let mut command = redis::cmd(command);
    command.arg(script).arg(1).arg(key).arg(arguments);
    command
}

/// All scripts of this engine.
pub(super) struct Scripts {
    /// Reads a claim and what is left of it.
    pub(super) read: Script,
    /// The outcome call.
    pub(super) settle: Script,
    /// Renewal.
    pub(super) renew: Script,
    /// Take-over of an `unknown` claim.
    pub(super) take_over: Script,
    /// Release by an operator.
    pub(super) release: Script,
    /// Compare-and-set of a note.
    pub(super) compare_and_set_metadata: Script,
}

impl Scripts {
    /// Each of them.
    pub(super) fn all(&self) -> [&Script; 6] {
        [&self.read, &self.settle, &self.renew, &self.take_over, &self.release, &self.compare_and_set_metadata]
    }
}

/// The scripts, digested once.
pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    read: Script::new(include_str!("read.lua")),
    settle: Script::new(concat!(include_str!("held.lua"), include_str!("settle.lua"))),
    renew: Script::new(concat!(include_str!("held.lua"), include_str!("renew.lua"))),
    take_over: Script::new(concat!(include_str!("held.lua"), include_str!("take_over.lua"))),
    release: Script::new(concat!(include_str!("held.lua"), include_str!("release.lua"))),
    compare_and_set_metadata: Script::new(include_str!("swap_note.lua")),
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
    fn every_script_works_while_the_server_is_full_and_none_works_on_a_replica() {
        for script in SCRIPTS.all() {
            assert!(script.text.starts_with("#!lua flags=allow-oom\n"));
        }
    }
}
