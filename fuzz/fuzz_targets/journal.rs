#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oncegate_gateway::resilience::journal::fuzzing::journal(bytes));
