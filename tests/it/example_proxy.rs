//! The example of the proxy, as a reader runs it: it loses answers in every way, and counts the orders in the shop.

use std::process::Command;

#[test]
fn the_example_of_the_proxy_places_each_order_once() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/proxy/run");
    let output = Command::new(script)
        .env("ONCEGATE", env!("CARGO_BIN_EXE_oncegate"))
        .env("PORTS", "free")
        .output()
        .expect("bash runs the example");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}
