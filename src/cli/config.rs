//! `oncegate config`: checks the configuration, or prints it with all its layers merged. `show` asks a gateway that runs.

mod connect;
mod show;

use std::io::Write;
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;

use anyhow::bail;
use clap::Subcommand;
use oncegate_core::clock::{Clock as _, SystemClock};
use oncegate_proxy::identities;
use oncegate_proxy::options::{ProxyOptions, RouteOptions, server_of};

use super::output::Out;
use super::{environment, load};
use crate::config::{Config, Flags};
use crate::engines::promise_of;

const EXAMPLES: &str = "\
Examples:
  oncegate config check --config oncegate.toml
  oncegate config check --config new.toml --against oncegate.toml
  oncegate config check --config oncegate.toml --connect
  ONCEGATE_SERVER__LISTEN=0.0.0.0:8080 oncegate config print --config oncegate.toml
  oncegate config show --changed";

#[derive(Subcommand)]
#[command(after_help = EXAMPLES)]
pub(super) enum Action {
    /// Check whether a gateway can use the configuration; the exit code is 2 if it cannot
    Check(CheckArgs),
    /// Print the configuration with all layers merged, without secrets
    Print(Flags),
    /// Show the settings that a running gateway uses, and the place where each was set
    Show(show::ShowArgs),
}

#[derive(clap::Args)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    flags: Flags,
    /// The file in use: report which changes of the proxy's routes would let repeats of earlier requests run again or be refused;
    /// the exit code is 1 if there are any
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Connect to the engines too, and report what their servers say; nothing is written to them. The exit code is 2 if an engine, or
    /// a server that its URL names, cannot be used
    #[arg(long)]
    connect: bool,
}

pub(super) fn run(action: Action, out: &mut impl Out) -> anyhow::Result<()> {
    match action {
        Action::Check(CheckArgs { flags, against, connect }) => {
            let config = Config::load_to_serve(&flags, environment())?.config;
            let (apps, engines) = (config.apps.len(), config.engines.len());
            writeln!(out, "The configuration is valid. Apps: {apps}, engines: {engines}.")?;
            if let Some(file) = flags.overlooked_file(environment()) {
                writeln!(out, "Warning: {file} in this folder is not read: name it with --config {file}.")?;
            }
            for (name, url) in &config.engines {
                writeln!(out, "Engine {name}: {}", promise_of(url)?.text)?;
            }
            for (key, expired_at) in config.expired_certificates(SystemClock::new().wall()) {
                writeln!(
                    out,
                    "Warning: {key}: the certificate expired at {expired_at}: clients reject it, and a reload does not take it."
                )?;
            }
            for name in config.unused_engines() {
                writeln!(
                    out,
                    "Warning: the engine {name} is in no chain, so nothing is stored there: write engines = [\"{name}\"] in \
                     [chains.default]."
                )?;
            }
            if config.proxy.listen.is_some() && config.proxy.encryption.keys.is_empty() {
                writeln!(out, "Warning: the proxy stores responses in clear text; name a key in [proxy.encryption].")?;
            }
            for warning in config.proxy.encryption.warnings() {
                writeln!(out, "Warning: {warning}")?;
            }
            let keeps_cookies =
                |route: &&RouteOptions| route.store_with.iter().any(|name| name.eq_ignore_ascii_case("set-cookie"));
            for route in config.proxy.routes.iter().filter(keeps_cookies) {
                let name = &route.name;
                writeln!(
                    out,
                    "Warning: the route {name} stores Set-Cookie: each repeat gets the session of the first request again."
                )?;
            }
            for (route, path) in left_out(&config.proxy) {
                writeln!(
                    out,
                    "Warning: the route {route} does not take {path} itself, and no other route does: add one, if that path needs \
                     protection."
                )?;
            }
            for host in unresolved(&config.proxy) {
                writeln!(out, "Warning: the upstream {host} of the proxy cannot be resolved from here.")?;
            }
            if connect {
                connect::run(&config, out)?;
            }
            if let Some(against) = against {
                compare(&config, &Flags { config: Some(against), ..flags }, out)?;
            }
        }
        Action::Print(flags) => out.write_all(load(&flags)?.redacted_toml()?.as_bytes())?,
        Action::Show(args) => show::run(args, out)?,
    }
    Ok(())
}

/// Compares the identities of requests behind the proxy with those of the configuration in use.
///
/// # Errors
/// There are changes, or that configuration cannot be read.
fn compare(config: &Config, in_use: &Flags, out: &mut impl Write) -> anyhow::Result<()> {
    let changes = identities::changes(&load(in_use)?.proxy, &config.proxy);
    if changes.is_empty() {
        writeln!(out, "Requests behind the proxy keep their identities.")?;
        return Ok(());
    }
    bail!(
        "Requests behind the proxy change their identities. Keep the old routes until their retention is over, or choose a time \
         without repeats:\n  {}",
        changes.join("\n  ")
    )
}

/// Returns the routes with a `{*rest}`, and the path before it if no route takes that path.
fn left_out(proxy: &ProxyOptions) -> Vec<(&str, &str)> {
    let takes = |other: &RouteOptions, route: &RouteOptions, path: &str| {
        let has_hosts =
            other.hosts.is_empty() || !route.hosts.is_empty() && route.hosts.iter().all(|host| other.has_host(host));
        // A parameter takes any segment, even a segment that looks like a parameter.
        let sample = path.replace(['{', '}'], "");
        let has_methods = route.methods.iter().all(|method| other.methods.contains(method));
        has_hosts && has_methods && other.matcher().is_ok_and(|matcher| matcher.at(&sample).is_ok())
    };
    let paths = proxy.routes.iter().filter_map(|route| Some((route, route.left_out()?)));
    let is_taken = |(route, path): &(&RouteOptions, &str)| proxy.routes.iter().any(|other| takes(other, route, path));
    paths.filter(|left_out| !is_taken(left_out)).map(|(route, path)| (route.name.as_str(), path)).collect()
}

/// Returns the servers of upstreams whose names have no address now. A name may get one later, so this is no error.
fn unresolved(proxy: &ProxyOptions) -> Vec<String> {
    let urls = proxy.upstreams.values().flat_map(|upstream| &upstream.urls);
    let servers = urls.filter_map(|url| Some(server_of(url)?.1));
    let is_unresolved = |host: &str| (host.trim_matches(['[', ']']), 0).to_socket_addrs().is_err();
    servers.map(|server| server.host().to_owned()).filter(|host| is_unresolved(host)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::Problems;

    fn flags(engine: &str) -> Flags {
        Flags { engine: Some(engine.to_owned()), ..Flags::default() }
    }

    fn check(flags: Flags) -> Action {
        Action::Check(CheckArgs { flags, against: None, connect: false })
    }

    fn answer(action: Action) -> String {
        let mut out = Vec::new();
        run(action, &mut out).expect("a good configuration");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_valid_configuration_is_reported_as_valid() {
        let expected = "The configuration is valid. Apps: 0, engines: 1.\n\
                        Engine primary: Keeps nothing when the gateway ends: for tests.\n";
        assert_eq!(answer(check(flags("memory:"))), expected);
    }

    #[test]
    fn engines_are_connected_to_only_if_that_is_asked_for() {
        let connected = |engine: &str| {
            let action = Action::Check(CheckArgs { flags: flags(engine), against: None, connect: true });
            let mut out = Vec::new();
            let done = run(action, &mut out);
            (String::from_utf8(out).expect("UTF-8"), done)
        };
        let (said, done) = connected("memory:");
        assert!(
            done.is_ok() && said.ends_with("Engine primary can be used.\n  it answers; it is: strict_fence\n"),
            "{said}"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let disk = format!("disk:{}", folder.path().join("claims").display());
        let (said, done) = connected(&disk);
        assert!(done.is_ok() && said.contains("is not there; the first start creates it"), "{said}");
        assert!(!folder.path().join("claims").exists(), "nothing is written");
        std::fs::write(folder.path().join("claims"), "a file").expect("written");
        let (said, done) = connected(&disk);
        let error = done.expect_err("no folder");
        assert!(error.is::<Problems>() && error.to_string().contains("engines.primary: "), "{error}");
        assert!(error.to_string().contains("is not a folder; name a folder"), "{error}");
        assert!(said.contains("Engine primary cannot be used."), "{said}");
        assert!(answer(check(flags(&disk))).contains("is valid"), "without --connect, nothing is opened");
    }

    #[test]
    fn an_engine_in_no_chain_is_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("oncegate.toml");
        let chain = |engine: &str| format!("[chains.default]\nengines = [\"{engine}\"]\n");
        let unused = |name: &str| {
            format!(
                "Warning: the engine {name} is in no chain, so nothing is stored there: write engines = [\"{name}\"] in \
                 [chains.default].\n"
            )
        };
        for (engine, chain, warning) in [
            ("main", String::new(), Some(unused("main"))),
            ("main", chain("primary"), Some(unused("main"))),
            ("main", chain("main"), None),
            ("primary", String::new(), None),
        ] {
            std::fs::write(&file, format!("[engines]\n{engine} = \"memory:\"\n{chain}")).expect("written");
            let said = answer(check(Flags { config: Some(file.clone()), ..Flags::default() }));
            assert_eq!(said.matches("Warning").count(), usize::from(warning.is_some()), "{said}");
            assert!(warning.is_none_or(|warning| said.contains(&warning)), "{engine}, {chain}: {said}");
        }
    }

    #[test]
    fn an_upstream_that_cannot_be_resolved_is_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("oncegate.toml");
        let urls = "[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:9000\", \"http://[::1]:9000\", \"http://orders.invalid\"]\n";
        std::fs::write(&file, urls).expect("the file is written");
        let said = answer(check(Flags { config: Some(file), ..Flags::default() }));
        assert_eq!(said.matches("Warning").count(), 1, "{said}");
        assert!(said.contains("orders.invalid"), "{said}");
    }

    #[test]
    fn a_path_that_no_route_takes_although_one_looks_so_is_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("oncegate.toml");
        let route = |name: &str, path: &str, methods: &str| {
            format!(
                "[[proxy.routes]]\nname = \"{name}\"\napp = \"default\"\npath = \"{path}\"\nmethods = [{methods}]\n\
                 upstream = \"s\"\nprincipal = [\"authorization\"]\n"
            )
        };
        let rest = route("rest", "/v1/orders/{*rest}", "\"POST\"");
        for (other, is_warned) in [
            (String::new(), true),
            (route("one", "/v1/orders/{id}", "\"POST\""), true),
            (route("other", "/v1/orders", "\"PATCH\""), true),
            (route("all", "/v1/orders", "\"PATCH\", \"POST\""), false),
            (route("any", "/v1/{kind}", "\"POST\""), false),
        ] {
            let text = format!("[proxy.upstreams.s]\nurls = [\"http://127.0.0.1:9\"]\n{other}{rest}");
            std::fs::write(&file, text).expect("the file is written");
            let said = answer(check(Flags { config: Some(file.clone()), ..Flags::default() }));
            let warning = "Warning: the route rest does not take /v1/orders itself";
            assert_eq!(said.contains(warning), is_warned, "{other}: {said}");
        }
    }

    #[test]
    fn a_stored_cookie_is_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("oncegate.toml");
        for (stored, warnings) in [("set-Cookie", 1), ("X-Session", 0)] {
            let route = format!(
                "[proxy.upstreams.s]\nurls = [\"http://127.0.0.1:9\"]\n[[proxy.routes]]\nname = \"orders\"\napp = \"default\"\n\
                 path = \"/\"\nmethods = [\"POST\"]\nupstream = \"s\"\nprincipal = [\"authorization\"]\nstore_with = [\"{stored}\"]\n"
            );
            std::fs::write(&file, route).expect("the file is written");
            let said = answer(check(Flags { config: Some(file.clone()), ..Flags::default() }));
            assert_eq!(said.matches("Warning: the route orders stores Set-Cookie").count(), warnings, "{said}");
        }
    }

    #[test]
    fn responses_in_clear_text_and_a_key_that_every_user_can_read_are_warnings() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, key) = (folder.path().join("oncegate.toml"), folder.path().join("key"));
        std::fs::write(&key, "0f".repeat(32)).expect("the key is written");
        let keys = format!("[proxy.encryption]\nkeys = [{{ id = \"k\", file = {:?} }}]\n", key.display().to_string());
        let clear = "Warning: the proxy stores responses in clear text";
        for (encryption, mode, warnings) in [
            ("", 0o600, &[clear][..]),
            (&keys, 0o600, &[]),
            (&keys, 0o644, &["Warning: Every user of this host can read"]),
        ] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).expect("the mode is changed");
            std::fs::write(&file, format!("[proxy]\nlisten = \"127.0.0.1:8081\"\n{encryption}")).expect("written");
            let said = answer(check(Flags { config: Some(file.clone()), ..Flags::default() }));
            assert_eq!(said.matches("Warning").count(), warnings.len(), "{said}");
            assert!(warnings.iter().all(|warning| said.contains(warning)), "{said}");
        }
    }

    #[test]
    fn changes_of_identities_are_an_error_only_where_they_are_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, principal: &str| {
            let text = format!(
                "[proxy]\nlisten = \"127.0.0.1:8081\"\n[proxy.upstreams.s]\nurls = [\"http://127.0.0.1:9\"]\n[[proxy.routes]]\n\
                 name = \"orders\"\napp = \"default\"\npath = \"/\"\nmethods = [\"POST\"]\nupstream = \"s\"\nprincipal = [\"{principal}\"]\n"
            );
            std::fs::write(folder.path().join(name), text).expect("the file is written");
            Some(folder.path().join(name))
        };
        let (old, new) = (file("old", "authorization"), file("new", "x-user"));
        let flags = Flags { config: new.clone(), ..Flags::default() };
        let compared = |against| Action::Check(CheckArgs { flags: flags.clone(), against, connect: false });
        assert!(answer(compared(None)).contains("is valid"));
        assert!(answer(compared(new)).ends_with("Requests behind the proxy keep their identities.\n"));
        let error = run(compared(old), &mut Vec::new()).expect_err("they change");
        assert!(error.to_string().contains("\n  route `orders`: its principal changes"), "{error}");
        assert!(!error.is::<Problems>(), "the configuration can be used");
        let missing = run(compared(Some(folder.path().join("missing"))), &mut Vec::new()).expect_err("no file");
        assert!(missing.is::<Problems>(), "{missing}");
    }

    #[test]
    fn the_printed_configuration_has_no_passwords() {
        let printed = answer(Action::Print(flags("redis://:hidden@host")));
        assert!(
            printed.contains("primary = \"redis://:***@host\"") && printed.contains("lease = \"30s\""),
            "{printed}"
        );
    }

    #[test]
    fn an_invalid_configuration_is_an_error_of_its_own_type() {
        let bad = Flags { listen: Some("nowhere".to_owned()), ..Flags::default() };
        let error = run(check(bad), &mut Vec::new()).expect_err("no address");
        assert!(error.is::<Problems>());
        assert!(error.to_string().contains("flag --listen: server.listen: an address is"), "{error}");
    }
}
