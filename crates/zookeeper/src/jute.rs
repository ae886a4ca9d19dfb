//! The encoding of ZooKeeper's messages, jute: integers are big-endian, and texts, bytes and lists begin with their length.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Writes the fields of a message.
#[derive(Default)]
pub(super) struct Writer(BytesMut);

impl Writer {
    pub(super) fn int(&mut self, value: i32) -> &mut Self {
        self.0.put_i32(value);
        self
    }

    pub(super) fn long(&mut self, value: i64) -> &mut Self {
        self.0.put_i64(value);
        self
    }

    pub(super) fn bool(&mut self, value: bool) -> &mut Self {
        self.0.put_u8(value.into());
        self
    }

    pub(super) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        // No message is that long: its parts are bounded.
        self.int(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.0.put_slice(value);
        self
    }

    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    /// Writes fields that were written before.
    pub(super) fn raw(&mut self, fields: &[u8]) -> &mut Self {
        self.0.put_slice(fields);
        self
    }

    pub(super) fn finish(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

/// Reads the fields of a message. `None`: it ends before, or holds something else.
pub(super) struct Reader(Bytes);

impl Reader {
    pub(super) fn new(message: Bytes) -> Self {
        Self(message)
    }

    pub(super) fn int(&mut self) -> Option<i32> {
        self.0.try_get_i32().ok()
    }

    pub(super) fn long(&mut self) -> Option<i64> {
        self.0.try_get_i64().ok()
    }

    pub(super) fn bool(&mut self) -> Option<bool> {
        self.0.try_get_u8().ok().map(|byte| byte != 0)
    }

    /// Reads bytes. Absent bytes, with a length of -1, are empty.
    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.int()?.max(0)).ok()?;
        (length <= self.0.len()).then(|| self.0.split_to(length))
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.into()).ok()
    }

    /// Reads a list of texts.
    pub(super) fn texts(&mut self) -> Option<Vec<String>> {
        let count = self.int()?;
        (0..count.max(0)).map(|_| self.text()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back_as_written_and_what_is_cut_off_is_none() {
        let written = Writer::default().int(-2).long(7).bool(true).text("é").bytes(b"x").finish();
        let mut reader = Reader::new(written.clone());
        assert_eq!((reader.int(), reader.long(), reader.bool()), (Some(-2), Some(7), Some(true)));
        assert_eq!((reader.text(), reader.bytes(), reader.int()), (Some("é".into()), Some("x".into()), None));
        for length in 0..written.len() {
            let mut reader = Reader::new(written.slice(..length));
            let all = (|| Some((reader.int()?, reader.long()?, reader.bool()?, reader.text()?, reader.bytes()?)))();
            assert_eq!(all, None, "{length}");
        }
    }

    #[test]
    fn a_length_that_the_message_has_not_is_no_allocation() {
        let lying = Writer::default().int(i32::MAX).finish();
        assert_eq!(Reader::new(lying.clone()).bytes(), None);
        assert_eq!(Reader::new(lying).texts(), None);
        assert_eq!(Reader::new(Writer::default().int(-1).finish()).bytes(), Some(Bytes::new()));
    }
}
