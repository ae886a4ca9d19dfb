//! The example of the proxy, as a reader runs it: it loses answers in every way, and counts the orders in the shop.

use std::process::Command;

#[test]
fn the_example_of_the_proxy_places_each_order_once() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/proxy/run");
    let output =
        Command::new(script).env("ONCEGATE", env!("CARGO_BIN_EXE_oncegate")).output().expect("bash runs the example");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_example_ends_at_once_if_its_gateway_does() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/proxy/run");
    let output = Command::new(script).env("ONCEGATE", "false").output().expect("bash runs the example");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).ends_with("the gateway or the shop did not start\n"));
}
