//! Properties of all bytes that a server can send; see `oncegate_core::fuzzing`.

use bytes::BytesMut;

use crate::resp::{Malformed, take};

/// A reply is what the library reads from the same bytes, and takes as many. Cut off anywhere, it is incomplete.
pub fn reply(bytes: &[u8]) {
    let mut received = BytesMut::from(bytes);
    match take(&mut received) {
        Ok(Some(value)) => {
            assert!(bytes.ends_with(&received));
            let taken = bytes.len() - received.len();
            assert_eq!(redis::parse_redis_value(&bytes[..taken]).as_ref(), Ok(&value));
            for cut in [0, 1, taken / 2, taken - 1] {
                assert_eq!(take(&mut BytesMut::from(&bytes[..cut])), Ok(None), "{cut} bytes");
            }
        }
        Ok(None) => assert_eq!(received, bytes, "nothing is taken"),
        Err(Malformed) => {}
    }
}

#[cfg(test)]
mod tests {
    use oncegate_core::fuzzing::{Edit, edited};
    use proptest::prelude::{any, proptest};

    use super::*;

    const REPLY: &[u8] = include_bytes!("../../../fuzz/seeds/reply/array");

    proptest! {
        #[test]
        fn all_bytes_have_the_property(edits in any::<Vec<Edit>>()) {
            reply(&edited(REPLY, &edits));
        }
    }
}
