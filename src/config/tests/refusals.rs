//! Mistakes in a configuration, and the messages about them.

use super::*;

fn refused(file: &str) -> String {
    super::file(file).refused()
}

#[test]
fn an_unknown_key_names_its_origin_and_the_nearest_known_one() {
    let file = "[server]\nlistn = \"127.0.0.1:1\"\n\n[serve]\nx = 1";
    let environment = [("ONCEGATE_DEFAULTS__RETENSION", "1h"), ("ONCEGATE_SERVER_LISTEN", "127.0.0.1:1")];
    let refused = Given { file, environment: &environment, ..Given::default() }.refused();
    insta::assert_snapshot!(refused, @r#"
    environment variable ONCEGATE_SERVER_LISTEN: unknown setting; did you mean ONCEGATE_SERVER__LISTEN? Separate tables and keys by `__`
    environment variable ONCEGATE_DEFAULTS__RETENSION: defaults.retension: unknown key; did you mean `retention`? Known keys: chain, mode, lease, retention, unknown_retention, on_lease_end, accept_loss, contents_stored_bytes, deadline, on_outage, retention_max, quota
    oncegate.toml, line 2: server.listn: unknown key; did you mean `listen`? Known keys: listen, admin_listen, allow_open, data_dir, drain_delay, drain_timeout, problem_base, tls, admin_tls
    oncegate.toml, line 4: serve: unknown key; did you mean `server`? Known keys: server, admin, console, engines, chains, defaults, registry, apps, limits, proxy, log, traces
    "#);
}

#[test]
fn a_wrong_value_names_its_origin_and_an_example() {
    let refused = refused(
        "[server]\nlisten = \"localhost\"\ndata_dir = 5\ndrain_delay = \"soon\"\n\
         [defaults]\nlease = 30\nretention = \"for ever\"\nmode = \"watch\"\ncontents_stored_bytes = -1\n\
         [limits]\nheaders = \"many\"\n[engines]\nprimary = [\"redis://:hidden@host\"]\n\
         [apps.shop]\nsecrets = \"hidden\"\nlease = true\n[apps.shop.operations.\"a b\"]\n[apps.Shop]\n\
         [chains.x]\n[log]\nformat = \"xml\"",
    );
    assert!(!refused.contains("hidden"));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: server.listen: an address is an IP address and a port; the default is `listen = "127.0.0.1:8080"`
    oncegate.toml, line 3: server.data_dir: expected a text, found the number 5; the default is `data_dir = "./oncegate-data"`
    oncegate.toml, line 4: server.drain_delay: a delay is "0s", or a whole number from 1 to 999999999 and a unit, ms, s, m, h or d: "5s"; the default is `drain_delay = "0s"`
    oncegate.toml, line 6: defaults.lease: expected a text such as "30s", found the number 30; the default is `lease = "30s"`
    oncegate.toml, line 7: defaults.retention: a retention is a duration or "forever": "24h", "30d", "forever"; the default is `retention = "24h"`
    oncegate.toml, line 8: defaults.mode: "watch" is not a valid choice; write "enforce" or "observe"
    oncegate.toml, line 9: defaults.contents_stored_bytes: expected a whole number from 0, found the number -1; the default is `contents_stored_bytes = 1024`
    oncegate.toml, line 11: limits.headers: expected a whole number from 0, found a text; the default is `headers = 64`
    oncegate.toml, line 13: engines.primary: expected a text, found a list; the default is `primary = "disk:./oncegate-data/claims"`
    oncegate.toml, line 15: apps.shop.secrets: expected a list, found a text; write it in brackets: secrets = ["…"]
    oncegate.toml, line 16: apps.shop.lease: expected a text such as "30s", found true or false; the default is `lease = "30s"`
    oncegate.toml, line 17: apps.shop.operations."a b": an operation is 1 to 128 characters of A-Z, a-z, 0-9, `.`, `_`, `:`, `/` and `-`, the first one a letter or a digit, such as `order.submit`
    oncegate.toml, line 18: apps.Shop: an app key is 1 to 64 characters of a-z, 0-9, `.`, `_` and `-`, the first one a letter or a digit, such as `shop`
    oncegate.toml, line 19: chains.x: `engines` is missing
    oncegate.toml, line 21: log.format: "xml" is not a valid choice; write "json" or "pretty" or "auto"
    "#);
}

#[test]
fn names_must_refer_to_something() {
    let refused = refused(&format!(
        "[chains.default]\nengines = [\"x\", \"primary\", \"primary\"]\n[chains.empty]\nengines = []\n[chains.\"a/b\"]\n\
         engines = [\"primary\"]\n[defaults]\nchain = \"y\"\n[apps.shop]\nsecrets = [\"{DIGEST}\"]\nchain = \"z\""
    ));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: chains.default.engines: chain `default` names engine `x`, which is not in [engines]; there are: primary
    oncegate.toml, line 2: chains.default.engines: chain `default` names engine `primary` twice; name it once
    oncegate.toml, line 4: chains.empty.engines: a chain needs an engine; name one of [engines], such as ["primary"]
    oncegate.toml, line 5: chains."a/b": a name is 1 to 64 letters, digits, `.`, `_` and `-`, such as `primary`
    oncegate.toml, line 8: defaults.chain: there is no chain `y` in [chains]; there are: a/b, default, empty
    oncegate.toml, line 11: apps.shop.chain: there is no chain `z` in [chains]; there are: a/b, default, empty
    "#);
}

#[test]
fn terms_keep_to_the_limits() {
    let refused = refused(&format!(
        "[defaults]\nlease = \"25h\"\ndeadline = \"61s\"\n[limits]\nforever_allowed = false\n[apps.shop]\n\
         secrets = [\"{DIGEST}\"]\nunknown_retention = \"forever\"\n[apps.shop.operations.\"a.b\"]\nretention = \"4000d\""
    ));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: defaults.lease: a lease is from 100ms to 1d, such as "30s" (limits.lease_min, limits.lease_max)
    oncegate.toml, line 3: defaults.deadline: a deadline is from 1ms to 60s, such as "1s"
    oncegate.toml, line 8: apps.shop.unknown_retention: a retention is from 1s to 3650d, such as "1d" (limits.forever_allowed)
    oncegate.toml, line 10: apps.shop.operations."a.b".retention: a retention is from 1s to 3650d, such as "1d" (limits.retention_min, limits.retention_max)
    "#);
}

#[test]
fn limits_do_not_contradict_themselves() {
    let refused = refused("[limits]\nheaders = 0\nbody_bytes = 1000\nlease_min = \"2m\"\nlease_max = \"1m\"");
    // The line of a default moves with every key that is added above it.
    let (place, lines) = ("the embedded defaults, line ", refused.lines());
    let lines = lines.map(|line| match line.strip_prefix(place).and_then(|rest| rest.split_once(':')) {
        Some((number, rest)) if number.parse::<u32>().is_ok() => format!("{place}N:{rest}"),
        _ => line.to_owned(),
    });
    let refused = lines.collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: limits.headers: must be at least 1: 0 admits nothing
    oncegate.toml, line 4: limits.lease_min: 2m is longer than limits.lease_max (1m); swap them
    the embedded defaults, line N: limits.contents_bytes: 65536 is more than limits.body_bytes (1000); lower this or raise that
    the embedded defaults, line N: limits.result_bytes: 65536 is more than limits.body_bytes (1000); lower this or raise that
    "#);
}

#[test]
fn secrets_and_tokens_are_digests_and_never_shown() {
    let refused = refused(&format!(
        "[admin.tokens]\nalice = \"hidden\"\n[apps.none]\n[apps.gone]\ndisabled = true\n\
         [apps.plain]\nsecrets = [\"hidden\"]\n[apps.three]\nsecrets = [\"{DIGEST}\", \"{DIGEST}\", \"{DIGEST}\"]"
    ));
    assert!(!refused.contains("hidden"));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: admin.tokens.alice: a secret is configured as "sha256:" and the 64 hex digits of its SHA-256; `oncegate app new NAME` makes one for an app, `oncegate admin-token new NAME` for an operator
    oncegate.toml, line 3: apps.none: the app has no secret and can never call; set secrets = ["sha256:<64 hex digits>"] or disabled = true
    oncegate.toml, line 7: apps.plain.secrets: a secret is configured as "sha256:" and the 64 hex digits of its SHA-256; `oncegate app new NAME` makes one for an app, `oncegate admin-token new NAME` for an operator
    oncegate.toml, line 9: apps.three.secrets: 3 secrets; at most 2 may be valid at once
    "#);
}

#[test]
fn a_token_with_a_wrong_role_is_refused() {
    let refused = refused(&format!(
        "[admin.tokens]\na = {{ digest = \"{DIGEST}\", role = \"admin\" }}\nb = {{ digest = \"{DIGEST}\" }}\nc = 5\n\
         d = {{ digest = \"{DIGEST}\", role = \"view\", rol = 1 }}"
    ));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: admin.tokens.a.role: "admin" is not a valid choice; write "view" or "read" or "act"
    oncegate.toml, line 3: admin.tokens.b: `role` is missing
    oncegate.toml, line 4: admin.tokens.c: expected a digest, or a table such as { digest = "sha256:…", role = "view" }, found the number 5
    oncegate.toml, line 5: admin.tokens.d.rol: unknown key; did you mean `role`? Known keys: digest, role
    "#);
}

#[test]
fn digests_of_nothing_and_of_well_known_words_are_refused() {
    let [nothing, test] = ["", "test"].map(SecretDigest::of);
    let refused =
        refused(&format!("[admin.tokens]\nalice = \"{nothing}\"\n[apps.shop]\nsecrets = [\"{DIGEST}\", \"{test}\"]"));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: admin.tokens.alice: this is the SHA-256 of nothing or of a well-known word; `oncegate app new NAME` makes a secret for an app, `oncegate admin-token new NAME` a token for an operator
    oncegate.toml, line 4: apps.shop.secrets: this is the SHA-256 of nothing or of a well-known word; `oncegate app new NAME` makes a secret for an app, `oncegate admin-token new NAME` a token for an operator
    "#);
}

#[test]
fn an_open_gateway_stays_on_loopback() {
    let listen = ("ONCEGATE_SERVER__LISTEN", "0.0.0.0:8080");
    insta::assert_snapshot!(environment(&[listen]).refused(), @r#"environment variable ONCEGATE_SERVER__LISTEN: server.listen: without apps, anyone who can reach 0.0.0.0:8080 could make claims; add an [apps.<name>] with a secret, listen on 127.0.0.1, or set server.allow_open = true"#);
    assert!(environment(&[listen, ("ONCEGATE_SERVER__ALLOW_OPEN", "true")]).load().is_ok());
    assert!(environment(&[("ONCEGATE_SERVER__LISTEN", "[::1]:8080")]).load().is_ok());
    let file = &format!("[apps.shop]\nsecrets = [\"{DIGEST}\"]");
    assert!(Given { file, environment: &[listen], ..Given::default() }.load().is_ok());
}

#[test]
fn the_listeners_need_different_ports() {
    let flags = Flags { admin_listen: Some("0.0.0.0:8080".into()), ..Flags::default() };
    insta::assert_snapshot!(Given { flags, ..Given::default() }.refused(), @r#"flag --admin-listen: server.admin_listen: 0.0.0.0:8080 and server.listen (127.0.0.1:8080) are the same address; give each its own port"#);
    assert!(load("[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"").server.listen.port() == 0);
}

#[test]
fn an_unknown_level_is_refused() {
    insta::assert_snapshot!(environment(&[("ONCEGATE_LOG__LEVEL", "inf")]).refused(), @r#"environment variable ONCEGATE_LOG__LEVEL: log.level: `inf` is neither a level nor target=level; write off, error, warn, info, debug or trace, and exceptions such as "info,oncegate_redis=debug""#);
}

#[test]
fn a_syntax_error_names_its_position_without_showing_the_line() {
    let refused = refused("[engines]\nprimary = \"redis://:hidden@host\n");
    assert!(!refused.contains("hidden"));
    insta::assert_snapshot!(refused, @r#"oncegate.toml, line 2, column 32: not valid TOML: invalid basic string, expected `"`"#);
}

#[test]
fn a_named_file_must_exist() {
    let flags = Flags { config: Some("no/such/file.toml".into()), ..Flags::default() };
    insta::assert_snapshot!(Config::load(&flags, []).unwrap_err(), @r#"
    the configuration cannot be used
      no/such/file.toml: cannot read this file, named by --config: No such file or directory (os error 2)
    "#);
}

#[test]
fn apps_are_in_the_registry_or_in_the_configuration() {
    let apps = format!("[registry]\nurl = \"postgres://u@h/d\"\n[apps.shop]\nsecrets = [\"{DIGEST}\"]");
    for (text, word) in [
        (apps.as_str(), "oncegate.toml, line 3: apps.shop: registry.url is set, so all apps must be in that database"),
        ("[registry]\nurl = \"mysql://u:hunter2@h/d\"", "oncegate.toml, line 2: registry.url: "),
        ("[registry]\nurl = \"postgres://u:hunter2@h/d?pooller=x\"", "did you mean `pooler`?"),
    ] {
        let refused = file(text).refused();
        assert!(refused.contains(word), "no {word:?} in {refused}");
        assert!(!refused.contains("hunter2"), "{refused}");
    }
    // A gateway with a registry is never open, so it may listen on any address.
    let anywhere = "[server]\nlisten = \"0.0.0.0:8080\"\n[registry]\nurl = \"postgres://u:hunter2@h/d\"";
    let config = file(anywhere).load().expect("it is right");
    assert!(!config.redacted_toml().unwrap().contains("hunter2"));
}

#[test]
fn quotas_are_numbers_or_none() {
    let refused = refused(&format!(
        "[defaults.quota]\nrequests_per_second = 0\nclaim_bytes_per_second = \"1MB\"\n[apps.shop]\n\
         secrets = [\"{DIGEST}\"]\n[apps.shop.quota]\nrequests_in_flight = \"101%\"\nburst = \"2h\"\nrequests = 5"
    ));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 2: defaults.quota.requests_per_second: expected a whole number from 1 to 4294967295, or "none", found the number 0; the default is `requests_per_second = "none"`
    oncegate.toml, line 3: defaults.quota.claim_bytes_per_second: expected a whole number from 1 to 4294967295, or "none", found a text; the default is `claim_bytes_per_second = "none"`
    oncegate.toml, line 7: apps.shop.quota.requests_in_flight: expected a whole number from 1, a part of limits.requests_in_flight such as "50%", or "none", found a text; the default is `requests_in_flight = "50%"`
    oncegate.toml, line 9: apps.shop.quota.requests: unknown key; did you mean `requests_in_flight`? Known keys: requests_per_second, claim_bytes_per_second, burst, requests_in_flight, response_bytes_total
    "#);
    let refused = self::refused("[defaults.quota]\nburst = \"61m\"");
    insta::assert_snapshot!(refused, @r#"oncegate.toml, line 2: defaults.quota.burst: 61m is longer than a burst may be; write 1ms to 1h"#);
}

#[test]
fn no_retention_exceeds_the_maximum_of_its_app() {
    let refused = refused(&format!(
        "[defaults]\nretention_max = \"12h\"\n[apps.shop]\nsecrets = [\"{DIGEST}\"]\nretention = \"1h\"\n\
         [apps.shop.operations.x]\nretention = \"13h\"\n[apps.shop.operations.y]\nretention = \"forever\"\n\
         [apps.bank]\nsecrets = [\"{DIGEST}\"]\n[apps.free]\nsecrets = [\"{DIGEST}\"]\nretention_max = \"forever\"\n\
         retention = \"forever\""
    ));
    insta::assert_snapshot!(refused, @r#"
    apps.bank.retention: 1d is longer than the retention_max of 12h that holds here; set a shorter retention, or a longer retention_max
    oncegate.toml, line 7: apps.shop.operations.x.retention: 13h is longer than the retention_max of 12h that holds here; set a shorter retention, or a longer retention_max
    oncegate.toml, line 9: apps.shop.operations.y.retention: forever is longer than the retention_max of 12h that holds here; set a shorter retention, or a longer retention_max
    "#);
    let refused = self::refused("[defaults]\nretention_max = \"12h\"");
    let expected =
        "defaults.retention: 1d is longer than the retention_max of 12h that holds here; set a shorter retention";
    assert!(refused.starts_with("the embedded defaults, line ") && refused.contains(expected), "{refused}");
}

#[test]
fn chains_require_only_what_their_engines_offer() {
    let refused = refused(
        "[engines]\nm = \"memory:\"\nd = \"disk:d\"\nr = \"redis://r\"\n[chains.default]\nengines = [\"m\"]\n\
         requires = [\"strict_fence\", \"durable\", \"forever\", \"shared\"]\n[chains.d]\nengines = [\"d\"]\n\
         requires = [\"strict_fence\", \"durable\", \"forever\", \"shared\"]\n[chains.r]\nengines = [\"r\"]\n\
         requires = [\"strict_fence\", \"durable\", \"forever\", \"shared\"]\n[chains.mixed]\nengines = [\"d\", \"m\"]\n\
         requires = [\"durable\"]",
    );
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 7: chains.default.requires: engine `m` (memory:) keeps nothing across a restart; use another one (disk:, postgres://, etcd://, zookeeper:// from 3.9.4 on, redis:// with appendfsync always), or leave `durable` out
    oncegate.toml, line 7: chains.default.requires: engine `m` (memory:) cannot keep claims without a time limit; use another one (disk:, redis://, postgres://, etcd://, zookeeper://), or leave `forever` out
    oncegate.toml, line 7: chains.default.requires: engine `m` (memory:) serves a single gateway; use another one (redis://, postgres://, etcd://, zookeeper://), or leave `shared` out
    oncegate.toml, line 10: chains.d.requires: engine `d` (disk:) serves a single gateway; use another one (redis://, postgres://, etcd://, zookeeper://), or leave `shared` out
    oncegate.toml, line 13: chains.r.requires: engine `r` (redis:) has no fences; use another one (disk:, postgres://, etcd://, zookeeper://), or leave `strict_fence` out
    oncegate.toml, line 16: chains.mixed.requires: engine `m` (memory:) keeps nothing across a restart; use another one (disk:, postgres://, etcd://, zookeeper:// from 3.9.4 on, redis:// with appendfsync always), or leave `durable` out
    "#);
    let refused = self::refused("[chains.default]\nengines = [\"primary\"]\nrequires = [\"speed\"]");
    insta::assert_snapshot!(refused, @r#"oncegate.toml, line 3: chains.default.requires: "speed" is not a valid choice; write "durable" or "strict_fence" or "forever" or "shared""#);
}

#[test]
fn a_deadline_leaves_replicas_the_time_that_the_url_asks_for() {
    let engine = "[engines]\nr = \"redis+cluster://r?replicas=1&replica_timeout=1500ms&response_timeout=2s\"\n[chains.default]\nengines = [\"r\"]\n";
    let apps = format!(
        "[apps.shop]\nsecrets = [\"{DIGEST}\"]\ndeadline = \"2s\"\n[apps.shop.operations.x]\ndeadline = \"1999ms\"\n"
    );
    let refused = refused(&format!("{engine}{apps}"));
    insta::assert_snapshot!(refused, @"oncegate.toml, line 9: apps.shop.operations.x.deadline: engine `r` in chain `default` waits for replicas by its replica_timeout, so every call would fail; write a deadline of 2s or more, or a shorter replica_timeout");
    let open = self::refused(engine);
    assert!(open.contains("defaults.deadline") && open.contains("write a deadline of 2s or more"), "{open}");
}

#[test]
fn retention_for_ever_needs_an_engine_that_offers_it() {
    let memory = "[engines]\nm = \"memory:\"\nd = \"disk:d\"\n[chains.default]\nengines = [\"m\"]\n[chains.d]\nengines = [\"d\"]\n";
    let refused = refused(&format!(
        "{memory}[apps.shop]\nsecrets = [\"{DIGEST}\"]\nretention = \"forever\"\nunknown_retention = \"forever\"\n\
         [apps.shop.operations.x]\nunknown_retention = \"forever\"\n[apps.safe]\nsecrets = [\"{DIGEST}\"]\nchain = \"d\"\n\
         retention = \"forever\""
    ));
    insta::assert_snapshot!(refused, @r#"
    oncegate.toml, line 10: apps.shop.retention: engine `m` (memory:) cannot keep claims without a time limit; use another one (disk:, redis://, postgres://, etcd://, zookeeper://) in chain `default`, or a retention that ends
    oncegate.toml, line 11: apps.shop.unknown_retention: engine `m` (memory:) cannot keep claims without a time limit; use another one (disk:, redis://, postgres://, etcd://, zookeeper://) in chain `default`, or a retention that ends
    oncegate.toml, line 13: apps.shop.operations.x.unknown_retention: engine `m` (memory:) cannot keep claims without a time limit; use another one (disk:, redis://, postgres://, etcd://, zookeeper://) in chain `default`, or a retention that ends
    "#);
    // The defaults are checked for the apps that use them, and for no others.
    let forever = "[defaults]\nretention = \"forever\"\n";
    let refused = self::refused(&format!("{memory}{forever}"));
    insta::assert_snapshot!(refused, @r#"oncegate.toml, line 9: defaults.retention: engine `m` (memory:) cannot keep claims without a time limit; use another one (disk:, redis://, postgres://, etcd://, zookeeper://) in chain `default`, or a retention that ends"#);
    let app = |terms: &str| format!("{memory}{forever}[apps.shop]\nsecrets = [\"{DIGEST}\"]\n{terms}");
    assert!(self::refused(&app("")).contains("line 9: defaults.retention: engine `m`"));
    for good in ["retention = \"1d\"", "chain = \"d\""] {
        assert!(file(&app(good)).load().is_ok(), "{good}");
    }
}

#[test]
fn an_engine_of_memory_needs_no_other_setting() {
    let flags = Flags { engine: Some("memory:".into()), ..Flags::default() };
    assert!(Given { flags, ..Given::default() }.load().is_ok());
}

#[test]
fn a_route_that_could_not_keep_its_promises_is_refused() {
    let refused = |of_proxy: &str, of_route: &str| {
        refused(&format!(
            "[proxy]\n{of_proxy}[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:9000\"]\n[[proxy.routes]]\n\
             name = \"orders\"\napp = \"default\"\npath = \"/orders\"\nmethods = [\"POST\"]\nupstream = \"orders\"\n{of_route}"
        ))
    };
    for (of_proxy, of_route, why) in [
        ("", "principal = [\"client-cert\"]\n", "server.tls.client_ca, or proxy.tls.client_ca"),
        ("", "principal = [\"trusted:x-user\"]\n", "no peer may set the trusted field"),
        ("", "principal = []\n", "shared_keys = true"),
        ("", "principal = [\"authorization\"]\nlease = \"1s\"\n", "shorter than twice the connect_timeout"),
        ("", "principal = [\"authorization\"]\nauthorize = \"auth:9100\"\n", "is no URL"),
        ("trusted_peers = [\"10.0.0.0/8\"]\n", "principal = [\"client-cert\"]\nauthorize = \"/x\"\n", "is no URL"),
        (
            "",
            "principal = [\"authorization\"]\nstore_with = [\"X-A\", \"connection\"]\n",
            "store_with has \"connection\", which concerns a single connection",
        ),
        (
            "",
            "principal = [\"authorization\"]\nstore_with = [\"Content-Length\"]\n",
            "store_with has \"content-length\", which each replay gets from its body",
        ),
        (
            "",
            "principal = [\"authorization\"]\nstore_with = [\"Oncegate-Outcome\"]\n",
            "store_with has \"oncegate-outcome\", which only the gateway",
        ),
        (
            "",
            "principal = [\"authorization\"]\nstore_with = [\"a b\"]\n",
            "store_with has \"a b\", which is no field name",
        ),
        (
            "",
            "principal = [\"authorization\"]\nstore_without = [\"a b\"]\n",
            "store_without has \"a b\", which is no field name",
        ),
        (
            "",
            "principal = [\"authorization\"]\nstore = [\"2xx\", \"403\"]\nrelease = [\"403\"]\n",
            "403 is in `store` and in `release`",
        ),
        (
            "",
            "principal = [\"authorization\"]\nstore = [\"2xx\"]\nrelease = [\"429\", \"2xx\"]\n",
            "2xx is in `store` and in `release`",
        ),
        ("", "principal = [\"jwt:iss+sub\"]\n", "no issuer of tokens is known"),
        ("", "principal = [\"jwt:sub\"]\n", "write \"jwt:iss+sub\""),
        ("issuers = [{ issuer = \"i\" }]\n", "principal = [\"jwt:iss+sub\"]\n", "either jwks_url or jwks_file"),
        (
            "issuers = [{ issuer = \"i\", jwks_url = \"http://id.example/keys\" }]\n",
            "principal = [\"jwt:iss+sub\"]\n",
            "is not https",
        ),
    ] {
        let refused = refused(of_proxy, of_route);
        assert!(refused.contains(why) && refused.lines().count() == 1, "{of_route}: {refused}");
    }
}

#[test]
fn a_template_of_the_console_has_one_place() {
    let app = |template: &str| {
        let operation = "[apps.shop.operations.\"order.submit\"]";
        format!("[apps.shop]\nsecrets = [\"{DIGEST}\"]\n{operation}\nconsole_find = '{template}'\n")
    };
    assert!(file(&app("{\"order_id\": \"{text}\"}")).load().is_ok());
    for wrong in ["", "{text}", "{\"order_id\": 1}", "{\"a\": \"{text}\", \"b\": \"{text}\"}"] {
        let refused = refused(&app(wrong));
        let place = "line 4: apps.shop.operations.\"order.submit\".console_find: write JSON";
        assert!(refused.contains(place), "{wrong}: {refused}");
    }
}

#[test]
fn terms_of_a_route_are_written_at_the_route() {
    let app = |terms: &str| {
        format!("[apps.shop]\nsecrets = [\"{DIGEST}\"]\n[apps.shop.operations.\"proxy:orders\"]\n{terms}")
    };
    let terms = "lease = \"1m\"\nretention = \"2h\"\nunknown_retention = \"1d\"\non_lease_end = \"release\"\nmode = \"observe\"\n";
    insta::assert_snapshot!(refused(&app(terms)), @r#"
    oncegate.toml, line 4: apps.shop.operations."proxy:orders".lease: has no effect here: write `lease` in [[proxy.routes]], at the route `orders`
    oncegate.toml, line 5: apps.shop.operations."proxy:orders".retention: has no effect here: write `retention` in [[proxy.routes]], at the route `orders`
    oncegate.toml, line 6: apps.shop.operations."proxy:orders".unknown_retention: has no effect here: write `retention` in [[proxy.routes]], at the route `orders`
    oncegate.toml, line 7: apps.shop.operations."proxy:orders".on_lease_end: has no effect here: a lease of the proxy that ends leaves an unknown outcome. Leave it out
    "#);
    assert!(file(&app("mode = \"observe\"\ndeadline = \"2s\"")).load().is_ok());
}

#[test]
fn a_route_that_no_request_can_take_is_refused() {
    let route = |methods: &str, hosts: &str| {
        format!(
            "[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:9000\"]\n[[proxy.routes]]\nname = \"orders\"\n\
             app = \"default\"\npath = \"/orders\"\nmethods = [{methods:?}]\nhosts = [{hosts:?}]\nupstream = \"orders\"\n\
             principal = [\"authorization\"]\n"
        )
    };
    for host in ["shop.example", "Shop.Example", "10.0.0.7", "[::1]"] {
        assert!(file(&route("POST", host)).load().is_ok(), "{host}");
    }
    for host in ["shop.example:443", "https://shop.example", "shop.example/v1", "*.shop.example", ""] {
        let refused = refused(&route("POST", host));
        assert!(refused.contains("which is no host; write it without scheme, port"), "{host}: {refused}");
    }
    assert!(
        refused(&route("post", "shop.example"))
            .contains("methods has \"post\", which is no method; write it in capital letters")
    );
}

#[test]
fn what_newcomers_write_gets_a_hint() {
    for (file, part) in [
        ("listen = \"127.0.0.1:80\"", "listen: unknown key; server.listen is in the table [server]"),
        ("[server]\nport = 80", "host and port are one address: `listen = \"127.0.0.1:8080\"`"),
        ("[engines]\nprimary = \"memory\"", "write memory: in place of memory"),
        ("[server]\nproblem_base = \"problems\"", "ends with `/`, `:`, `#` or `=`"),
        ("[defaults]\nretention = 1", "expected a text such as \"24h\" or \"forever\", found the number 1"),
        ("[apps.shop]\non_outage = \"fail_open\"", "write on_outage = { claim = \"fail_open\" }"),
        ("[apps.shop]\nquota = 100", "write quota = { requests_per_second = 100 }"),
        (
            "[apps.shop.operations.order.submit]\nlease = \"1m\"",
            "A name with a dot is written in quotes: [apps.shop.operations.\"order.submit\"]",
        ),
        ("[apps.my.shop]\nlease = \"1m\"", "A name with a dot is written in quotes: [apps.\"my.shop\"]"),
        ("[proxy.routes.orders]\npath = \"/\"", "found a table; write [[proxy.routes]], with two brackets"),
        ("[[proxy.routes]]\nname = \"a\"", "proxy.routes: route 1 (`a`): `"),
        (
            "[chains.default]\nengines = [\"other\"]",
            "there are: primary, the default; or add it there, such as other = ",
        ),
    ] {
        let refused = refused(file);
        assert!(refused.contains(part), "{file}: {refused}");
    }
}

#[test]
fn a_mistake_in_a_route_names_the_route_the_key_and_the_line() {
    let route = |name: &str, principal: &str| {
        format!(
            "[[proxy.routes]]\nname = \"{name}\"\napp = \"default\"\npath = \"/{name}\"\nmethods = [\"POST\"]\nupstream = \"s\"\n\
             principal = {principal}\n"
        )
    };
    let (good, bad) = (route("orders", "[\"authorization\"]"), route("refunds", "\"authorization\""));
    insta::assert_snapshot!(refused(&format!("{good}{bad}")), @r#"oncegate.toml, line 14: proxy.routes: route 2 (`refunds`): principal: expected a list, found a text; write it in brackets: principal = ["…"]"#);
    let misspelt = route("refunds", "[\"authorization\"]\nmetods = [\"POST\"]");
    let refused = refused(&misspelt);
    assert!(
        refused.starts_with(
            "oncegate.toml, line 8: proxy.routes: route 1 (`refunds`): metods: unknown key; did you mean `methods`?"
        ),
        "{refused}"
    );
}

/// A chain that switches automatically, with another text in place of a line of it.
#[cfg(all(feature = "etcd", feature = "postgres", feature = "redis"))]
fn failover(line: &str, instead: &str) -> String {
    let file = "[engines]\na = \"redis://a\"\nb = \"redis://b\"\nw = \"etcd://w\"\n[chains.default]\nengines = [\"a\", \"b\"]\n\
                [chains.default.failover]\nwitness = \"w\"\nmode = \"automatic\"\nmirror = false\naccept_loss = true\n\
                after = \"3s\"\n";
    assert!(file.contains(line), "{line}");
    file.replace(line, instead)
}

#[cfg(all(feature = "etcd", feature = "postgres", feature = "redis"))]
#[test]
fn a_chain_that_switches_by_itself_says_all_that_this_means() {
    for (line, instead) in [
        ("", ""),
        ("w = \"etcd://w\"", "w = \"postgres://w/w\""),
        #[cfg(feature = "zookeeper")]
        ("w = \"etcd://w\"", "w = \"zookeeper://w\""),
        ("b = \"redis://b\"", "b = \"etcd://b\""),
        ("after = \"3s\"", "after = \"60s\""),
        ("mode = \"automatic\"", "mode = \"manual\""),
        ("after = \"3s\"", "after = \"1s\"\n[defaults]\non_lease_end = \"unknown\"\naccept_loss = true"),
    ] {
        let loaded = file(&failover(line, instead)).load();
        assert!(loaded.is_ok(), "{instead}: {:?}", loaded.err().map(|problems| problems.to_string()));
    }
    for (line, instead, part) in [
        ("witness = \"w\"\n", "", "`witness` is missing"),
        ("witness = \"w\"", "witness = \"x\"", "there is no engine `x` in [engines]"),
        ("witness = \"w\"", "witness = \"b\"", "engine `b` is in chain `default`"),
        ("etcd://w", "redis://w", "engine `w` (redis:) may lose what it has acknowledged"),
        ("etcd://w", "memory:", "engine `w` (memory:) may lose"),
        ("etcd://w", "disk:./w", "engine `w` (disk:) may lose"),
        ("redis://b", "etcd://w", "engine `w` is the same server as engine `b`"),
        ("redis://b", "etcd://v,w:2379/b", "engine `w` is on the server of engine `b`, w:2379"),
        ("redis://b", "redis://a:6379/1?prefix=b", "engines `a` and `b` are one server, a:6379"),
        ("mode = \"automatic\"", "mode = \"magic\"", "write \"automatic\" or \"manual\""),
        ("mirror = false\n", "", "write mirror = false"),
        ("mirror = false", "mirror = true", "this release does not mirror"),
        ("accept_loss = true\n", "", "Write accept_loss = true if that is better than waiting"),
        ("accept_loss = true", "accept_loss = false", "Write accept_loss = true"),
        ("after = \"3s\"", "after = \"999ms\"", "999ms is not from 1s to 60s"),
        ("after = \"3s\"", "after = \"61s\"", "61s is not from 1s to 60s"),
        ("after = \"3s\"", "afer = \"3s\"", "did you mean `after`?"),
        ("[\"a\", \"b\"]", "[\"a\"]", "has a table failover and 1 engines; it needs two"),
        ("redis://b", "disk:./b", "engine `b` (disk:) serves a single gateway"),
        ("redis://b", "memory:", "engine `b` (memory:) serves a single gateway"),
        ("redis://b", "redis+cluster://b", "engine `b` (redis+cluster:) loses one shard at a time"),
    ] {
        let refused = refused(&failover(line, instead));
        assert!(refused.contains(part), "{instead}: {refused}");
    }
}

#[cfg(all(feature = "etcd", feature = "postgres", feature = "redis"))]
#[test]
fn claims_that_may_become_unknown_are_not_kept_where_a_switch_forgets_them() {
    let app = format!("after = \"3s\"\n[apps.shop]\nsecrets = [\"{DIGEST}\"]\n");
    let operation = "[apps.shop.operations.\"a.b\"]\non_lease_end = \"unknown\"\n";
    for (more, key) in [
        ("after = \"3s\"\n[defaults]\non_lease_end = \"unknown\"".to_owned(), "defaults.on_lease_end"),
        (format!("{app}on_lease_end = \"unknown\"\n"), "apps.shop.on_lease_end"),
        (format!("{app}{operation}"), "apps.shop.operations.\"a.b\".on_lease_end"),
        (
            format!("{app}accept_loss = true\n{operation}accept_loss = false\n"),
            "apps.shop.operations.\"a.b\".on_lease_end",
        ),
    ] {
        let refused = refused(&failover("after = \"3s\"", &more));
        assert!(
            refused.contains(key) && refused.contains("chain `default` switches automatically and then forgets it"),
            "{refused}"
        );
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    for accepted in [format!("{app}{operation}accept_loss = true\n"), format!("{app}accept_loss = true\n{operation}")] {
        assert!(file(&failover("after = \"3s\"", &accepted)).load().is_ok(), "{accepted}");
    }
    let manual = failover("mode = \"automatic\"", "mode = \"manual\"");
    assert!(
        file(&format!("{manual}[defaults]\non_lease_end = \"unknown\"\n")).load().is_ok(),
        "people know what they do"
    );
    let route = "[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:9000\"]\n[[proxy.routes]]\nname = \"orders\"\napp = \"shop\"\n\
                 path = \"/orders\"\nmethods = [\"POST\"]\nupstream = \"orders\"\nprincipal = [\"authorization\"]\n";
    let refused = refused(&failover("after = \"3s\"", &format!("{app}{route}")));
    assert!(refused.contains("route `orders`: a claim may become `unknown`"), "{refused}");
}

#[cfg(feature = "etcd")]
#[test]
fn results_and_responses_that_an_engine_cannot_store_are_refused() {
    let of = |result_bytes: usize, response_bytes: &str| {
        format!(
            "[engines]\nprimary = \"etcd://e1\"\n[limits]\nresult_bytes = {result_bytes}\n\
             [proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:9000\"]\n[[proxy.routes]]\nname = \"orders\"\n\
             app = \"default\"\npath = \"/orders\"\nmethods = [\"POST\"]\nupstream = \"orders\"\n\
             principal = [\"authorization\"]\nresponse_bytes = \"{response_bytes}\"\n"
        )
    };
    let refused = refused(&of(524_289, "385KiB"));
    for part in [
        "524289 is more than engine `primary` can store; write 524288",
        "is 394240, and engine `primary` can store 393216",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(file(&of(524_288, "384KiB")).load().is_ok());
}
