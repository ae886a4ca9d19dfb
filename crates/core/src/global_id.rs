//! The global ID: the name of an operation of an app, the same wherever it is computed. MD5 is not collision resistant, so equal
//! IDs are no proof of equal contents.

use std::fmt;
use std::str::FromStr;

use md5::{Digest, Md5};
use serde::{Serialize, Serializer};

use super::canonical::Canonical;
use super::hex;
use super::tenant::{AppKey, Operation};

/// The MD5 of app key, operation and canonical contents, separated by newlines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GlobalId([u8; 16]);

/// Error: the text is not a global ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a global ID is 32 lowercase hex digits, such as 2ca8a31a53ad078ffd0c7c8c80158af7")]
pub struct InvalidGlobalId;

impl GlobalId {
    /// Returns the ID of an operation: `MD5( app "\n" operation "\n" contents )`.
    pub fn of(app: &AppKey, operation: &Operation, contents: &Canonical) -> Self {
        Self(digest([app.as_ref(), "\n", operation.as_ref(), "\n", contents.as_str()]))
    }

    /// Creates an ID from the bytes of [`GlobalId::as_bytes`].
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the 16 bytes, half the size of the text.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Returns the MD5 of concatenated texts.
fn digest<'a>(parts: impl IntoIterator<Item = &'a str>) -> [u8; 16] {
    let mut md5 = Md5::new();
    parts.into_iter().for_each(|part| md5.update(part));
    md5.finalize().into()
}

impl fmt::Display for GlobalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(hex::write(&self.0, &mut [0; 32]))
    }
}

impl fmt::Debug for GlobalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for GlobalId {
    type Err = InvalidGlobalId;

    /// Accepts only lowercase digits: an ID has one spelling.
    fn from_str(text: &str) -> Result<Self, InvalidGlobalId> {
        let lower_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(lower_hex) {
            return Err(InvalidGlobalId);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| InvalidGlobalId)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl Serialize for GlobalId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(hex::write(&self.0, &mut [0; 32]))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::attempt::{Attempt, Nonce};
    use super::super::claim::{ClaimRequest, ClaimResponse, Effect, Mismatch, claim};
    use super::super::clock::Timestamp;
    use super::super::record::{Contents, Key, LiveClaim, Realm};
    use super::super::terms::{LeaseEnd, Retention, Terms};
    use super::*;
    use crate::canonical::{NotCanonical, canonicalize};

    /// Test vectors that every client library must pass as well.
    const VECTORS: &str = include_str!("../../../tests/vectors/global_id.json");

    #[derive(Deserialize)]
    struct Vectors {
        accepted: Vec<Accepted>,
        refused: Vec<Rejected>,
    }

    #[derive(Deserialize)]
    struct Accepted {
        app_key: AppKey,
        operation: Operation,
        contents_json: String,
        canonical: String,
        global_id: String,
    }

    #[derive(Deserialize)]
    struct Rejected {
        contents_json: String,
        why: String,
    }

    #[test]
    fn every_vector_passes() -> Result<(), Box<dyn std::error::Error>> {
        let vectors: Vectors = serde_json::from_str(VECTORS)?;
        assert!(!vectors.accepted.is_empty() && !vectors.refused.is_empty());

        for vector in vectors.accepted {
            let contents = canonicalize(vector.contents_json.as_bytes())?;
            assert_eq!(contents.as_str(), vector.canonical);
            let id = GlobalId::of(&vector.app_key, &vector.operation, &contents);
            assert_eq!(id.to_string(), vector.global_id, "{}", vector.contents_json);
        }
        for Rejected { contents_json, why } in vectors.refused {
            let refused = canonicalize(contents_json.as_bytes());
            let on_purpose = match &refused {
                Ok(_) | Err(NotCanonical::Syntax { .. }) => false,
                Err(_) => true,
            };
            assert!(on_purpose, "{contents_json}, {why}: {refused:?}");
        }
        Ok(())
    }

    #[test]
    fn an_id_reads_back_from_its_text_and_its_bytes() {
        let text = "00a8a31a53ad078ffd0c7c8c80158af7";
        let id: GlobalId = text.parse().expect("32 lowercase hex digits");
        assert_eq!(id.to_string(), text);
        assert_eq!(format!("{id:?}"), text);
        assert_eq!(serde_json::json!(id), text);
        assert_eq!(GlobalId::from_bytes(*id.as_bytes()), id);
        assert_eq!(id.as_bytes()[..2], [0, 0xa8]);
    }

    #[test]
    fn an_id_has_one_spelling() {
        let bad = [
            "",
            "2CA8A31A53AD078FFD0C7C8C80158AF7",
            "2ca8a31a53ad078ffd0c7c8c80158af",
            "2ca8a31a53ad078ffd0c7c8c80158af70",
            "+ca8a31a53ad078ffd0c7c8c80158af7",
            " ca8a31a53ad078ffd0c7c8c80158af7",
            "ga8a31a53ad078ffd0c7c8c80158af7a",
            "éca8a31a53ad078ffd0c7c8c80158af",
        ];
        for bad in bad {
            assert_eq!(bad.parse::<GlobalId>(), Err(InvalidGlobalId), "{bad:?}");
        }
    }

    /// Two texts with the same MD5, found by Marc Stevens in 2024.
    const COLLIDING: [&str; 2] = [
        "TEXTCOLLBYfGiJUETHQ4hAcKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak",
        "TEXTCOLLBYfGiJUETHQ4hEcKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak",
    ];

    #[test]
    fn contents_with_the_same_md5_are_distinguished() {
        let ids = COLLIDING.map(|text| GlobalId(digest([text])));
        assert_ne!(COLLIDING[0], COLLIDING[1]);
        assert_eq!(ids[0], ids[1], "our digest does collide");

        let contents = COLLIDING.map(|text| canonicalize(format!("\"{text}\"").as_bytes()).unwrap());
        // Stored as text, and as their digest.
        for contents_stored_bytes in [1024, 0] {
            assert!(Contents::keep(&contents[0], contents_stored_bytes).matches(&contents[0]));
            assert!(!Contents::keep(&contents[0], contents_stored_bytes).matches(&contents[1]));

            let hour = std::time::Duration::from_hours(1);
            let requests = [0, 1].map(|index: usize| ClaimRequest {
                key: Key { app: "shop".parse().unwrap(), realm: Realm::Api, global_id: ids[index] },
                attempt: Attempt::new(Timestamp::from_micros(1), Nonce::from_bits(index as u64)),
                operation: Operation::default(),
                contents: contents[index].clone(),
                contents_stored_bytes,
                fingerprint: None,
                terms: Terms {
                    lease: hour,
                    retention: Retention::For(hour),
                    unknown_retention: Retention::For(hour),
                    on_lease_end: LeaseEnd::Release,
                },
                caller: None,
                take_over: true,
                waits: false,
            });
            let live = LiveClaim { record: requests[0].record(), left: Some(hour), ends_at: None, fence: None };
            let (effect, answer) = claim(Some(&live), &requests[1], None);
            assert_eq!((effect, answer), (Effect::Keep, ClaimResponse::Mismatch(Mismatch::Contents)));
        }
    }
}
