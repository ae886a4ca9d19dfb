//! The console over sockets: sign-in, the end of a session, refused forms, and texts of others that are shown and never
//! run.

mod actions;
mod apps;
mod browser;
mod commands;
mod config;
mod cost;
mod drafts;
#[cfg(feature = "etcd")]
mod engines;
#[cfg(all(feature = "redis", feature = "etcd"))]
mod failover;
mod find;
mod forms;
mod gateways;
mod hostile;
mod json;
mod languages;
mod live;
mod locks;
mod operations;
mod overview;
mod pages;
mod proxy;
mod recent;
mod routes;
mod sessions;
mod several;
mod suspects;
mod timeline;

use std::fmt::Write as _;

use oncegate_core::hex;
use oncegate_testkit::gateway::Setup;
use sha2::{Digest, Sha256};

use crate::support::gateway;

const ROLES: [&str; 3] = ["view", "read", "act"];

/// Returns the token of the operator who is named after its role.
fn token(role: &str) -> String {
    format!("token_of_{role}_0123456789abcdef")
}

/// Returns the configuration of operators of these roles, named after them.
fn operators(roles: &[&str]) -> String {
    roles.iter().fold("[admin.tokens]\n".to_owned(), |mut lines, role| {
        let digest = hex::encode(&Sha256::digest(token(role)));
        writeln!(lines, "{role} = {{ digest = \"sha256:{digest}\", role = \"{role}\" }}").unwrap();
        lines
    })
}

/// Returns a page without the tag of the console's own script, which each page has once.
fn without_own_script(page: &str) -> String {
    let (before, rest) = page.split_once("<script src=\"/console/assets/").expect("the script of the console");
    let (_, after) = rest.split_once(".js\" defer></script>").expect("the end of its tag");
    format!("{before}{after}")
}

/// A gateway on the engine in memory with an operator of each role.
fn operated() -> Setup {
    gateway::on_memory().config(&operators(&ROLES))
}
