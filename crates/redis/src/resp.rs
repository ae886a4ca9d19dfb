//! Replies of RESP2, read from the bytes of a connection. The library's reader knows every form of RESP3, and costs ten
//! times as much; error replies, which are rare, are left to it.

use bytes::{Buf as _, BytesMut};
use redis::Value;

/// Depth of arrays in arrays. No command of ours is answered with more than four.
const DEPTH_MAX: usize = 16;

/// Length of the longest line: of a length, a number, a status or an error.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Longest text of a reply, and most items of an array: the server's own bound.
const LENGTH_MAX: usize = 512 << 20;

/// Error: the bytes are no reply of RESP2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it sent bytes that are no reply")]
pub(super) struct Malformed;

/// What is not a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoReply {
    /// It is not there whole.
    Incomplete,
    Malformed,
}

/// Takes the first reply out of `received`; nothing until all its bytes are there.
pub(super) fn take(received: &mut BytesMut) -> Result<Option<Value>, Malformed> {
    let mut rest = &received[..];
    match reply(&mut rest, DEPTH_MAX) {
        Ok(value) => {
            let taken = received.len() - rest.len();
            received.advance(taken);
            Ok(Some(value))
        }
        Err(NoReply::Incomplete) => Ok(None),
        Err(NoReply::Malformed) => Err(Malformed),
    }
}

fn reply(bytes: &mut &[u8], depth: usize) -> Result<Value, NoReply> {
    let whole = *bytes;
    let line = line(bytes)?;
    let (kind, line) = line.split_first().ok_or(NoReply::Malformed)?;
    match kind {
        b'$' => bulk(bytes, line),
        b':' => number(line).map(Value::Int),
        b'+' if line == b"OK" => Ok(Value::Okay),
        b'+' => text(line).map(|text| Value::SimpleString(text.to_owned())),
        b'*' => array(bytes, line, depth),
        b'-' => redis::parse_redis_value(&whole[..whole.len() - bytes.len()]).map_err(|_| NoReply::Malformed),
        _ => Err(NoReply::Malformed),
    }
}

fn bulk(bytes: &mut &[u8], line: &[u8]) -> Result<Value, NoReply> {
    let Some(length) = length(line)? else { return Ok(Value::Nil) };
    let Some((text, rest)) = bytes.split_at_checked(length) else { return Err(NoReply::Incomplete) };
    match rest {
        [b'\r', b'\n', rest @ ..] => *bytes = rest,
        [] | [b'\r'] => return Err(NoReply::Incomplete),
        _ => return Err(NoReply::Malformed),
    }
    Ok(Value::BulkString(text.to_vec()))
}

fn array(bytes: &mut &[u8], line: &[u8], depth: usize) -> Result<Value, NoReply> {
    let Some(length) = length(line)? else { return Ok(Value::Nil) };
    let depth = depth.checked_sub(1).ok_or(NoReply::Malformed)?;
    // An item takes three bytes at least, so a false length takes no memory.
    let mut items = Vec::with_capacity(length.min(bytes.len() / 3));
    for _ in 0..length {
        items.push(reply(bytes, depth)?);
    }
    Ok(Value::Array(items))
}

/// Takes a line, and returns it without its end.
fn line<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], NoReply> {
    let end = bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\r');
    let Some((line, rest)) = end.and_then(|end| bytes.split_at_checked(end)) else {
        return Err(if bytes.len() < LINE_BYTES_MAX { NoReply::Incomplete } else { NoReply::Malformed });
    };
    match rest {
        [_, b'\n', rest @ ..] => *bytes = rest,
        [_] => return Err(NoReply::Incomplete),
        _ => return Err(NoReply::Malformed),
    }
    Ok(line)
}

/// Reads a length; nothing if it is -1.
fn length(line: &[u8]) -> Result<Option<usize>, NoReply> {
    match number(line)? {
        -1 => Ok(None),
        length => {
            usize::try_from(length).ok().filter(|length| *length <= LENGTH_MAX).map(Some).ok_or(NoReply::Malformed)
        }
    }
}

fn number(line: &[u8]) -> Result<i64, NoReply> {
    // `parse` would take a plus sign too.
    if line.first() == Some(&b'+') {
        return Err(NoReply::Malformed);
    }
    text(line)?.parse().map_err(|_| NoReply::Malformed)
}

fn text(line: &[u8]) -> Result<&str, NoReply> {
    std::str::from_utf8(line).map_err(|_| NoReply::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing;

    const REPLIES: &[&[u8]] = &[
        b"+OK\r\n",
        b"+PONG\r\n",
        b":-42\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$12\r\nwith\r\n$3\r\nab\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*3\r\n$5\r\nvalue\r\n:1700000000000\r\n$-1\r\n",
        b"*2\r\n*1\r\n:1\r\n*1\r\n-LOADING Redis is loading\r\n",
        b"-MOVED 3999 127.0.0.1:6381\r\n",
        b"-ERR\r\n",
    ];

    #[test]
    fn every_form_of_reply_is_read() {
        let joined = REPLIES.concat();
        let mut received = BytesMut::from(&joined[..]);
        for reply in REPLIES {
            fuzzing::reply(reply);
            let expected = redis::parse_redis_value(reply).unwrap();
            assert_eq!(take(&mut received), Ok(Some(expected)), "{}", reply.escape_ascii());
        }
        assert_eq!(take(&mut received), Ok(None));
    }

    #[test]
    fn what_redis_does_not_send_is_malformed() {
        let nested = "*1\r\n".repeat(DEPTH_MAX + 2);
        let wrong: &[&[u8]] = &[
            b"\r\n",
            b"?1\r\n",
            b"_\r\n",
            b":\r\n",
            b":+1\r\n",
            b":1.5\r\n",
            b":99999999999999999999\r\n",
            b"$-2\r\n",
            b"$1\r\nab\r\n",
            b"*1\r\n?\r\n",
            b"$999999999999\r\n",
            b"+a\rb\r\n",
            b"+\xff\r\n",
            b"-\xff\r\n",
            nested.as_bytes(),
            &vec![b'+'; LINE_BYTES_MAX],
        ];
        for bytes in wrong {
            assert_eq!(take(&mut BytesMut::from(*bytes)), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_length_without_items_takes_no_memory() {
        let mut received = BytesMut::from(&b"*536870912\r\n:1\r\n"[..]);
        assert_eq!(take(&mut received), Ok(None));
    }
}
