//! Loading of the configuration as a whole: the order of the layers, and the defaults. Error messages are tested in
//! `refusals`.

mod refusals;
mod routes;
mod secret_files;

use std::ffi::OsString;
use std::time::Duration;

use oncegate_core::terms::{LeaseEnd, Mode, Retention};
use oncegate_gateway::tenants::quota::Quota;
use oncegate_gateway::tenants::quota::options::QuotaOptions;
use oncegate_gateway::tenants::secret::SecretDigest;
use oncegate_telemetry::logging::LogFormat;
use oncegate_transport::tls::TlsOptions;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::*;

const DEFAULTS: &str = include_str!("../../oncegate.default.toml");
const PAGE: &str = include_str!("../../docs/reference/configuration.md");
/// Digest of a secret, and its placeholder in examples.
const DIGEST: &str = "sha256:1f55b9dbb34db31ee615fea98af1b62ec6f169bb38355164364099813349e079";
const PLACEHOLDER: &str = "sha256:<64 hex digits>";

/// Settings above the defaults.
#[derive(Default)]
struct Given<'a> {
    file: &'a str,
    environment: &'a [(&'a str, &'a str)],
    flags: Flags,
}

impl Given<'_> {
    fn load(&self) -> Result<Config, Problems> {
        let folder = tempfile::tempdir().expect("a folder for the file");
        let path = folder.path().join("oncegate.toml");
        std::fs::write(&path, self.file).expect("writes the file");
        let flags = Flags { config: Some(path), ..self.flags.clone() };
        let environment = self.environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Config::load(&flags, environment).map_err(|problems| {
            let here = format!("{}/", folder.path().display());
            Problems(
                problems
                    .0
                    .into_iter()
                    .map(|problem| Problem {
                        source: problem.source.map(|source| source.replace(&here, "")),
                        ..problem
                    })
                    .collect(),
            )
        })
    }

    /// Returns the problems, one per line.
    fn refused(&self) -> String {
        let lines: Vec<_> = self.load().expect_err("a mistake").0.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

fn file(file: &str) -> Given<'_> {
    Given { file, ..Given::default() }
}

fn load(file: &str) -> Config {
    self::file(file).load().expect("a good file")
}

fn environment<'a>(environment: &'a [(&'a str, &'a str)]) -> Given<'a> {
    Given { environment, ..Given::default() }
}

#[test]
fn the_defaults_are_those_of_the_contract() {
    let config = Config::load(&Flags::default(), []).expect("the defaults are good");
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.server.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.server.admin_listen, "127.0.0.1:9464".parse().unwrap());
    assert_eq!(config.server.drain_delay, Duration::ZERO);
    assert_eq!(config.engines["primary"], "disk:./oncegate-data/claims");
    assert_eq!(config.chains["default"].engines, ["primary"]);
    assert_eq!(config.log.format, LogFormat::Auto);
    assert!(config.apps.is_empty() && config.admin.tokens.is_empty() && !config.server.allow_open);
    let terms = config.terms_of(None, None);
    assert_eq!((config.retention_max_of(None), config.quota_of(None)), (Retention::Forever, Quota::default()));
    assert_eq!((config.chain_of(None), terms.mode, terms.contents_stored_bytes), ("default", Mode::Enforce, 1024));
    assert_eq!((terms.terms.lease, terms.deadline), (Duration::from_secs(30), Duration::from_secs(1)));
    assert_eq!(terms.terms.retention, Retention::For(Duration::from_hours(24)));
    assert_eq!(terms.terms.unknown_retention, Retention::For(Duration::from_hours(7 * 24)));
    assert_eq!(terms.terms.on_lease_end, LeaseEnd::Release);
}

#[test]
fn every_key_has_a_default() {
    fn hold<T: DeserializeOwned>(path: &str) {
        let unknown = Table::from_iter([("?".to_owned(), Value::Boolean(true))]);
        let error = T::deserialize(Value::Table(unknown)).err().expect("no table has a key `?`");
        let defaults: Table = DEFAULTS.parse().unwrap();
        let table = path
            .split('.')
            .filter(|name| !name.is_empty())
            .try_fold(&defaults, |table, name| table.get(name)?.as_table())
            .unwrap_or_else(|| panic!("no table {path}"));
        let names: Vec<_> = explain::names(error.message()).into_iter().skip(1).collect();
        assert!(!names.is_empty(), "{error}");
        // A chain has no failover by default.
        for name in names.into_iter().filter(|name| *name != "failover") {
            assert!(table.contains_key(name), "[{path}] has no {name}");
        }
    }
    hold::<Config>("");
    hold::<ServerOptions>("server");
    hold::<TlsOptions>("server.tls");
    hold::<TlsOptions>("server.admin_tls");
    hold::<TlsOptions>("proxy.tls");
    hold::<AdminOptions>("admin");
    hold::<ChainOptions>("chains.default");
    hold::<TermsOptions>("defaults");
    hold::<OnOutage>("defaults.on_outage");
    hold::<QuotaOptions>("defaults.quota");
    hold::<Limits>("limits");
    hold::<LogOptions>("log");
}

#[test]
fn every_key_has_a_comment_above_it() {
    let mut above = "";
    for line in DEFAULTS.lines() {
        let is_setting = !line.is_empty() && !line.starts_with('#');
        assert!(!is_setting || above.starts_with("# "), "no comment above `{line}`");
        above = line;
    }
}

#[test]
fn the_examples_in_the_defaults_are_valid() {
    let examples: Vec<_> = DEFAULTS
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(example) if !example.is_empty() && !example.starts_with(' ') => example,
            _ => line,
        })
        .collect();
    let examples = examples.join("\n");
    let config = load(&examples.replace(PLACEHOLDER, DIGEST));
    assert_eq!((config.apps.len(), config.admin.tokens.len()), (1, 2));
    let refused = file(&examples).refused();
    assert!(refused.contains("apps.shop.secrets: ") && refused.contains("admin.tokens.alice: "), "{refused}");
}

#[test]
fn the_examples_of_the_documentation_are_valid() {
    let examples: Vec<_> = PAGE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 3);
    for example in examples {
        if let Err(problems) = file(&example.replace(PLACEHOLDER, DIGEST)).load() {
            panic!("{problems}\n{example}");
        }
        assert!(!example.contains("secrets") || file(example).load().is_err(), "a copied example must not work");
    }
}

#[test]
fn a_later_layer_replaces_what_an_earlier_one_set() {
    let file = "[server]\nlisten = \"127.0.0.1:1\"\nadmin_listen = \"127.0.0.1:2\"\ndrain_timeout = \"3s\"";
    let environment = [("ONCEGATE_SERVER__LISTEN", "127.0.0.1:4"), ("ONCEGATE_SERVER__ADMIN_LISTEN", "127.0.0.1:5")];
    let flags = Flags { listen: Some("127.0.0.1:6".into()), ..Flags::default() };
    let server = Given { file, environment: &environment, flags }.load().unwrap().server;
    assert_eq!((server.listen.port(), server.admin_listen.port()), (6, 5));
    assert_eq!((server.drain_timeout, server.allow_open), (Duration::from_secs(3), false));
}

#[test]
fn the_environment_can_set_every_kind_of_value() {
    let digests = format!("[\"{DIGEST}\"]");
    let config = environment(&[
        ("ONCEGATE_SERVER__ALLOW_OPEN", "true"),
        ("ONCEGATE_LIMITS__HEADERS", "32"),
        ("ONCEGATE_ENGINES__SPARE", "redis://localhost"),
        ("ONCEGATE_CHAINS__DEFAULT__ENGINES", "[\"spare\"]"),
        ("ONCEGATE_APPS__SHOP__SECRETS", &digests),
        ("ONCEGATE_APPS__SHOP__OPERATIONS__REFUND__RETENTION", "forever"),
        ("ONCEGATE_PORT", "tcp://10.0.0.1:8080"),
        ("ONCEGATE_CREDENTIAL", "shop.secret"),
        ("PATH", "/bin"),
    ])
    .load()
    .unwrap();
    assert!(config.server.allow_open);
    assert_eq!(config.limits.headers, 32);
    assert_eq!(config.chains["default"].engines, ["spare"]);
    let terms = config.terms_of("shop".parse().ok().as_ref(), "refund".parse().ok().as_ref());
    assert_eq!(terms.terms.retention, Retention::Forever);
}

#[test]
fn the_environment_may_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("og.toml");
    std::fs::write(&path, "[log]\nlevel = \"warn\"").unwrap();
    let environment = || [("ONCEGATE_CONFIG".into(), path.clone().into_os_string())];
    assert_eq!(Config::load(&Flags::default(), environment()).unwrap().log.level, "warn");
    let unset = [("ONCEGATE_CONFIG".into(), OsString::new())];
    assert_eq!(Config::load(&Flags::default(), unset).unwrap().log.level, "info");
    std::fs::remove_file(&path).unwrap();
    let refused = Config::load(&Flags::default(), environment()).unwrap_err().to_string();
    assert!(refused.contains("og.toml: cannot read this file, named by ONCEGATE_CONFIG: No such file"), "{refused}");
}

#[test]
fn the_default_engine_follows_the_data_folder() {
    let moved = environment(&[("ONCEGATE_SERVER__DATA_DIR", "/var/lib/og/")]).load().unwrap();
    assert_eq!(moved.engines["primary"], "disk:/var/lib/og/claims");
    let named = load("[server]\ndata_dir = \"d\"\n[engines]\nprimary = \"memory:\"");
    assert_eq!(named.engines["primary"], "memory:");
}

#[test]
fn the_engine_of_the_flag_is_used() {
    let file = "[engines]\na = \"redis://a\"\n[chains.default]\nengines = [\"a\"]\n[chains.b]\nengines = [\"a\"]\n\
                [defaults]\nchain = \"b\"";
    let flags = Flags { engine: Some("memory:".into()), data_dir: Some("d".into()), ..Flags::default() };
    let config = Given { file, flags, ..Given::default() }.load().unwrap();
    let chain = &config.chains[config.chain_of(None)];
    assert_eq!(chain.engines, ["primary"]);
    assert_eq!(config.engines["primary"], "memory:");
}

#[test]
fn unused_defaults_are_dropped() {
    let config = load("[engines]\nr = \"redis://r\"\n[chains.default]\nengines = [\"r\"]");
    assert_eq!(config.engines.keys().collect::<Vec<_>>(), ["r"]);
    let config = load("[engines]\nr = \"redis://r\"\n[chains.main]\nengines = [\"r\"]\n[defaults]\nchain = \"main\"");
    assert_eq!(config.engines.keys().collect::<Vec<_>>(), ["r"]);
    assert_eq!(config.chains.keys().collect::<Vec<_>>(), ["main"]);
}

#[test]
fn the_most_specific_terms_win() {
    let config = load(&format!(
        "[engines]\nr = \"redis://r\"\n[chains.r]\nengines = [\"r\"]\n[defaults]\nlease = \"10s\"\n\
         [apps.shop]\nsecrets = [\"{DIGEST}\"]\nchain = \"r\"\nretention = \"30d\"\nmode = \"observe\"\n\
         [apps.shop.operations.\"coupon.redeem\"]\nretention = \"forever\"\nlease = \"1m\"\non_lease_end = \"unknown\"\n\
         contents_stored_bytes = 0\ndeadline = \"2s\""
    ));
    let (shop, other) = ("shop".parse().unwrap(), "other".parse().unwrap());
    let (redeem, submit) = ("coupon.redeem".parse().unwrap(), "order.submit".parse().unwrap());

    let own = config.terms_of(Some(&shop), Some(&redeem));
    assert_eq!((config.chain_of(Some(&shop)), own.mode, own.contents_stored_bytes), ("r", Mode::Observe, 0));
    assert_eq!((own.terms.lease, own.deadline), (Duration::from_mins(1), Duration::from_secs(2)));
    assert_eq!((own.terms.retention, own.terms.on_lease_end), (Retention::Forever, LeaseEnd::Unknown));

    let of_app = config.terms_of(Some(&shop), Some(&submit));
    assert_eq!(of_app, config.terms_of(Some(&shop), None));
    assert_eq!(of_app.terms.retention, Retention::For(Duration::from_hours(30 * 24)));
    assert_eq!(of_app.terms.lease, Duration::from_secs(10));

    assert_eq!(config.terms_of(Some(&other), Some(&redeem)), config.terms_of(None, None));
}

#[test]
fn an_app_has_half_of_all_permits_by_default() {
    let config = load(&format!(
        "[defaults.quota]\nrequests_per_second = 10\n[limits]\nrequests_in_flight = 100\n\
         [apps.shop]\nsecrets = [\"{DIGEST}\"]\nretention_max = \"30d\"\n[apps.shop.quota]\nburst = \"5s\"\n\
         [apps.bank]\nsecrets = [\"{DIGEST}\"]\nquota = {{ requests_per_second = \"none\", requests_in_flight = 90 }}"
    ));
    let quota = |app: &str| config.quota_of(Some(&app.parse().unwrap()));
    let (shop, bank) = (quota("shop"), quota("bank"));
    assert_eq!((shop.requests_per_second.map(u32::from), shop.requests_in_flight), (Some(10), Some(50)));
    assert_eq!((bank.requests_per_second, bank.requests_in_flight), (None, Some(90)));
    assert_eq!((shop.burst, bank.burst), (Duration::from_secs(5), Duration::from_secs(1)));
    let month = Retention::For(Duration::from_hours(30 * 24));
    assert_eq!(config.retention_max_of("shop".parse().ok().as_ref()), month);
    assert_eq!(config.retention_max_of("bank".parse().ok().as_ref()), Retention::Forever);
}

#[test]
fn the_redacted_configuration_has_no_secret_and_can_be_loaded() {
    let config = load(&format!(
        "[admin.tokens]\nalice = \"{DIGEST}\"\nbob = {{ digest = \"{DIGEST}\", role = \"view\" }}\n\
         [engines]\nprimary = \"redis://og:hidden@host/0\"\n\
         [apps.shop]\nsecrets = [\"{DIGEST}\"]\nlease = \"5s\"\n[apps.shop.quota]\nrequests_per_second = 5\n\
         requests_in_flight = \"5%\"\n[apps.shop.operations.x.on_outage]\nclaim = \"fail_closed\""
    ));
    let shown = config.redacted_toml().unwrap();
    assert!(!shown.contains("hidden") && !shown.contains(&DIGEST[7..]) && !format!("{config:?}").contains("hidden"));
    let mut expected = config.clone();
    expected.engines.insert("primary".into(), "redis://og:***@host/0".into());
    let redacted = || "sha256:***".to_owned();
    expected.admin.tokens.values_mut().for_each(|token| token.digest = redacted());
    expected.apps.values_mut().for_each(|app| app.secrets = vec![redacted()]);
    assert_eq!(toml::from_str::<Config>(&shown).unwrap(), expected, "{shown}");
}

/// Known and unknown keys, with values of every type.
fn settings() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("listen".to_owned()),
        Just("lease".to_owned()),
        Just("engines".to_owned()),
        Just("secrets".to_owned()),
        Just("on_outage".to_owned()),
        "[a-z_]{1,8}",
        any::<String>().prop_map(|name| Value::String(name).to_string()),
    ];
    let table = prop_oneof![
        Just("server".to_owned()),
        Just("defaults".to_owned()),
        Just("chains.default".to_owned()),
        Just("apps.shop".to_owned()),
        Just("apps.shop.operations.\"a.b\"".to_owned()),
        "[a-z]{1,5}(\\.[a-z]{1,5}){0,2}",
    ];
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<bool>().prop_map(|it| it.to_string()),
        any::<String>().prop_map(|text| Value::String(text).to_string()),
        "\"[0-9]{1,4}(ms|s|d|x)\"",
        Just("[1, \"x\", [{}]]".to_owned()),
        Just("{ a = 1979-05-27 }".to_owned()),
        Just("1e400".to_owned()),
    ];
    let line = prop_oneof![
        1 => table.prop_map(|table| format!("[{table}]")),
        3 => (name, value).prop_map(|(name, value)| format!("{name} = {value}")),
    ];
    prop::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_file_causes_a_panic(tables in settings(), noise: String) {
        for text in [&tables, &noise] {
            match file(text).load() {
                Ok(config) => prop_assert!(config.validate().is_empty()),
                Err(problems) => prop_assert!(!problems.0.is_empty()),
            }
        }
    }

    #[test]
    fn no_environment_causes_a_panic(name in "[A-Za-z_]{0,12}(__[A-Z]{0,9}){0,9}", value: String) {
        let name = format!("ONCEGATE_{name}");
        let _either = environment(&[(&name, &value)]).load();
    }
}

#[test]
fn other_certificates_apply_at_once_and_a_listener_stays_with_or_without_tls() {
    type Options = fn(&mut Config) -> &mut TlsOptions;
    let config = || Given::default().load().unwrap();
    let none = config().server.tls;
    let [one, other] =
        ["one.pem", "other.pem"].map(|file| TlsOptions { certificate: file.into(), key: file.into(), ..none.clone() });
    let listeners: [(&str, Options); 3] = [
        ("server", |config| &mut config.server.tls),
        ("server", |config| &mut config.server.admin_tls),
        ("proxy", |config| &mut config.proxy.tls),
    ];
    for (table, options) in listeners {
        for (before, after, is_restart_needed) in
            [(&one, &other, false), (&none, &one, true), (&one, &none, true), (&none, &none, false)]
        {
            let [mut running, mut new] = [config(), config()];
            options(&mut running).clone_from(before);
            options(&mut new).clone_from(after);
            let expected: &[&str] = if is_restart_needed { &[table] } else { &[] };
            assert_eq!(running.restart_needed_for(&new), expected, "{before:?} {after:?}");
        }
    }
}
