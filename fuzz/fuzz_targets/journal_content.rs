#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oncegate_outage::journal::fuzzing::content(bytes));
