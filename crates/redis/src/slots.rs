//! Hash slots of a cluster: which one a key is in, and a hash tag for each.

use oncegate_core::hex;
use oncegate_core::record::Key;

/// Number of slots.
pub(super) const SLOTS: u16 = 16384;

/// Returns the slot of a key: that of its hash tag, if it has one.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0).map(|close| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// Returns the slot of a claim: its hash tag is the global ID.
pub(super) fn slot_of_claim(key: &Key) -> u16 {
    crc16(hex::write(key.global_id.as_bytes(), &mut [0; 32]).as_bytes()) % SLOTS
}

/// Returns the hash tag that every gateway uses for a slot: the smallest number whose digits are in it.
pub(super) fn tag_of(slot: u16) -> u32 {
    let mut digits = itoa::Buffer::new();
    (0..u32::MAX).find(|number| crc16(digits.format(*number).as_bytes()) % SLOTS == slot).unwrap_or_default()
}

/// CRC-16/XMODEM, as clusters use it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| (crc << 8) ^ TABLE[usize::from(crc.to_be_bytes()[0] ^ byte)])
}

static TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let (mut index, mut byte) = (0, 0_u16);
    while index < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"a{foo}b{bar}"), 12182);
        assert_eq!(slot_of(b"{}foo"), slot_of(b"{}foo"));
        assert_ne!(slot_of(b"{}foo"), slot_of(b""), "an empty tag is no tag");
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in [0, 1, 5460, 5461, 16383] {
            assert_eq!(slot_of(format!("og:{{{}}}:marker", tag_of(slot)).as_bytes()), slot);
        }
    }
}
