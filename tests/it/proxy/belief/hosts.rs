//! Hosts in identities (rules 2 and 6): the same key at another host is another request, and what peers say about hosts is no host.

use super::{Recorder, address, code, exchange};
use crate::support::gateway;

/// Returns the configuration of a proxy with a route for any host, one for two hosts, and one with optional keys.
fn config(port: u16, is_observed: bool) -> String {
    let route = |name: &str, more: &str| {
        format!(
            "[[proxy.routes]]\nname = \"{name}\"\napp = \"default\"\npath = \"/{name}\"\nmethods = [\"POST\"]\nupstream = \"u\"\n\
             principal = [\"authorization\"]\n{more}"
        )
    };
    let mode = if is_observed { "[defaults]\nmode = \"observe\"\n" } else { "" };
    let routes = [
        route("any", ""),
        route("optional", "key = \"optional\"\n"),
        route("named", "hosts = [\"a.example\", \"B.example.\"]\n"),
        route("address", "hosts = [\"[2001:DB8:0::0:1]\"]\n"),
    ];
    format!(
        "{mode}[proxy]\nlisten = \"127.0.0.1:0\"\ntrusted_peers = [\"127.0.0.1\"]\nunmatched = \"u\"\n\
         [proxy.upstreams.u]\n\
         urls = [\"http://127.0.0.1:{port}\"]\n{}",
        routes.concat()
    )
}

#[tokio::test]
async fn a_key_at_another_host_is_refused_unless_the_route_names_its_hosts() {
    for is_observed in [false, true] {
        let (recorder, port) = Recorder::start(false).await;
        let gateway = gateway::on_memory().config(&config(port, is_observed)).start().await;
        let send = async |path: &str, target: &str, host: &str, more: &str| {
            let request = format!(
                "POST {target}/{path} HTTP/1.1\r\nhost: {host}\r\nauthorization: alice\r\nidempotency-key: k-1\r\n{more}\
                 content-length: 1\r\nconnection: close\r\n\r\nx"
            );
            let answer = exchange(&address(&gateway), &request).await;
            let is_replay = answer.contains("idempotent-replayed: true");
            (if is_replay { "replay".to_owned() } else { code(&answer).to_owned() }, recorder.take().len())
        };
        let forwarded = ("201".to_owned(), 1);
        for path in ["any", "optional", "named"] {
            let what = format!("{path}, observed {is_observed}");
            assert_eq!(send(path, "", "a.example", "").await, forwarded, "{what}");
            let replayed = || if is_observed { forwarded.clone() } else { ("replay".to_owned(), 0) };
            for (target, host) in [("", "A.example:8080"), ("", "a.example."), ("http://a.example", "x.example")] {
                assert_eq!(send(path, target, host, "").await, replayed(), "{what}: {target} {host}");
            }
            // Believed of a trusted peer, and passed on; but it routes nothing, and is no part of an identity.
            assert_eq!(send(path, "", "a.example", "x-forwarded-host: b.example\r\n").await, replayed(), "{what}");
            let other = send(path, "", "b.example", "").await;
            let refused = ("fingerprint_mismatch".to_owned(), 0);
            let expected = if path == "named" {
                replayed()
            } else if is_observed {
                forwarded.clone()
            } else {
                refused
            };
            assert_eq!(other, expected, "{what}");
        }
    }
}

#[tokio::test]
async fn a_request_without_a_host_passes_no_route_that_names_its_hosts_with_a_key() {
    for is_observed in [false, true] {
        let (recorder, port) = Recorder::start(false).await;
        let gateway = gateway::on_memory().config(&config(port, is_observed)).start().await;
        for (path, key, refused) in [
            ("any", "idempotency-key: k-1\r\n", "201"),
            ("named", "idempotency-key: k-1\r\n", "no_route_for_key"),
            ("named", "", "201"),
        ] {
            let request = format!("POST /{path} HTTP/1.0\r\nauthorization: alice\r\n{key}content-length: 1\r\n\r\nx");
            let answer = exchange(&address(&gateway), &request).await;
            let expected = if is_observed { "201" } else { refused };
            assert_eq!(code(&answer), expected, "{path} {key:?}, observed {is_observed}: {answer}");
            assert_eq!(recorder.take().len(), usize::from(expected == "201"), "{path} {key:?}");
        }
    }
}

#[tokio::test]
async fn an_address_is_one_host_in_each_of_its_forms() {
    let (recorder, port) = Recorder::start(false).await;
    let gateway = gateway::on_memory().config(&config(port, false)).start().await;
    for path in ["address", "any"] {
        for (number, host) in
            ["[2001:db8::1]", "[2001:0DB8:0:0:0:0:0:1]:8080", "[2001:db8:0::1]"].into_iter().enumerate()
        {
            let request = format!(
                "POST /{path} HTTP/1.1\r\nhost: {host}\r\nauthorization: alice\r\nidempotency-key: k-1\r\n\
                 content-length: 1\r\nconnection: close\r\n\r\nx"
            );
            let answer = exchange(&address(&gateway), &request).await;
            assert_eq!(code(&answer), "201", "{path} {host}: {answer}");
            assert_eq!(answer.contains("idempotent-replayed: true"), number > 0, "{path} {host}: {answer}");
            assert_eq!(recorder.take().len(), usize::from(number == 0), "{path} {host}");
        }
    }
}
