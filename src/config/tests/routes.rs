//! Paths of routes that no request could have.

fn route(path: &str, more: &str) -> String {
    format!(
        "[proxy.upstreams.orders]\nurls = [\"http://127.0.0.1:9000\"]\n[[proxy.routes]]\nname = \"orders\"\n\
         app = \"default\"\npath = {path:?}\nmethods = [\"POST\"]\nupstream = \"orders\"\nprincipal = [\"authorization\"]\n{more}"
    )
}

#[test]
fn a_path_that_no_request_can_have_is_refused_with_what_to_write() {
    for (path, why) in [
        ("/v1/:id", "takes \":id\" literally; a parameter is {id}"),
        ("/:", "takes \":\" literally; a parameter is {rest}"),
        ("/v1/*", "takes \"*\" literally; a parameter is {*rest}"),
        ("/v1/orders?x=1", "has a query or a fragment"),
        ("/v1/orders#top", "has a query or a fragment"),
        ("/v1/./orders", "has a dot segment"),
        ("/v1/../orders", "has a dot segment"),
        ("/v1//orders", "has an empty segment"),
        ("/v1/a%2Fb", "has an encoded slash"),
        ("/v1/orders;x", "has a path parameter"),
        ("/v1/a%00", "has an encoded control character"),
        ("/v1/%zz", "has a `%` that two hexadecimal digits do not follow"),
        ("/v1/a\\b", "has a backslash"),
        ("/v1/%6frders", "has escapes that requests are compared without; write \"/v1/orders\""),
        ("/v1/caf\u{e9}", "has characters that requests escape; write \"/v1/caf%C3%A9\""),
        ("/v1/a b", "has characters that requests escape; write \"/v1/a%20b\""),
        ("v1/orders", "the path begins with a slash"),
        ("/v1/{id", "is not valid"),
    ] {
        let refused = super::file(&route(path, "")).refused();
        assert!(refused.contains(why) && refused.lines().count() == 1, "{path}: {refused}");
    }
}

#[test]
fn other_paths_are_accepted_and_those_that_a_route_allows() {
    for (path, more) in [
        ("/", ""),
        ("/v1/orders:batch", ""),
        ("/v1/{*rest}", ""),
        ("/v1/caf%C3%A9", ""),
        ("/v1/100%25", ""),
        ("/v1/%7Bid%7D", ""),
        ("/v1//orders", "allow_in_path = [\"empty_segments\"]\n"),
        ("/v1/a%2Fb", "allow_in_path = [\"encoded_slashes\"]\n"),
        ("/v1/orders;x", "allow_in_path = [\"path_parameters\"]\n"),
    ] {
        let loaded = super::file(&route(path, more)).load();
        assert!(loaded.is_ok(), "{path}: {:?}", loaded.err());
    }
}

#[test]
fn hosts_are_addresses_or_names() {
    let with = |host: &str| super::file(&route("/", &format!("hosts = [{host:?}]\n"))).load().is_ok();
    assert!(with("[0:0:0:0:0:0:0:1]"));
    for wrong in ["[::x]", "[::1", "[1.2.3.4]"] {
        assert!(!with(wrong), "{wrong}");
    }
}

#[test]
fn the_memory_for_bodies_has_room_for_the_longest_stored_response() {
    let with = |response: &str| {
        let limits = "[limits]\nbody_bytes = 65536\ncontents_bytes = 1024\nresult_bytes = 1024\n";
        format!("{limits}[proxy]\nrequest_bytes_total = \"1MiB\"\n{}", route("/", response))
    };
    assert!(super::file(&with("response_bytes = \"512KiB\"\n")).load().is_ok());
    let refused = super::file(&with("response_bytes = \"1MiB\"\n")).refused();
    assert!(refused.contains("too little for the longest body, 1048576 by limits.body_bytes or the response_bytes"));
}

#[test]
fn a_route_behind_one_that_takes_its_requests_is_refused_in_any_spelling_of_its_host() {
    let two = |first: &str, second: &str| {
        let second =
            route("/v1/orders", &format!("hosts = [{second:?}]\n")).replace("name = \"orders\"", "name = \"later\"");
        let (_, second) = second.split_once("[[proxy.routes]]").expect("a route");
        route("/v1/orders", &format!("hosts = [{first:?}]\n")) + "[[proxy.routes]]" + second
    };
    for (first, second) in [("a.example", "A.Example."), ("A.EXAMPLE", "a.example"), ("[::1]", "[0:0:0:0:0:0:0:1]")] {
        let refused = super::file(&two(first, second)).refused();
        assert!(refused.contains("the earlier route `orders` takes all its requests"), "{first} {second}: {refused}");
    }
    let loaded = super::file(&two("a.example", "b.example")).load();
    assert!(loaded.is_ok(), "{:?}", loaded.err());
}
