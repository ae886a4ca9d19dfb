//! Encryption of stored responses: AES-256-GCM, with a key per record that HKDF (RFC 5869) derives from a configured key, the global
//! ID and the attempt. With keys, a record that was not encrypted for its claim is not believed.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oncegate_core::attempt::Attempt;
use oncegate_core::global_id::GlobalId;
use oncegate_core::hex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Version of the stored form of encrypted data. A reader refuses others.
const VERSION: u8 = 1;

/// Permissions of a file that let other users than its owner change it, or every user read it.
const WRITABLE: u32 = 0o022;
const READABLE: u32 = 0o004;

/// Distinguishes these keys from others that are derived from the same secret.
const PURPOSE: &[u8] = b"oncegate stored response";

/// Table `[proxy.encryption]`.
#[derive(Clone, Default, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EncryptionOptions {
    /// Keys. The first encrypts, all decrypt. Empty: responses are stored in clear text.
    pub keys: Vec<KeyOptions>,
}

/// Key of [`EncryptionOptions`].
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KeyOptions {
    /// Name, which is stored with the encrypted data.
    pub id: String,
    /// File of the key: 64 hexadecimal digits.
    pub file: PathBuf,
}

impl EncryptionOptions {
    /// Reads the keys.
    ///
    /// # Errors
    /// The error of one of them, and the correction.
    pub fn read(&self) -> Result<EncryptionKeys, String> {
        let mut keys = EncryptionKeys::default();
        for KeyOptions { id, file } in &self.keys {
            let is_name = (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_name {
                return Err(format!("the key ID {id:?} is not 1 to 64 visible characters; write one like \"2026-11\""));
            }
            if permissions(file).is_some_and(|mode| mode & WRITABLE != 0) {
                return Err(format!(
                    "`{id}`: others than its owner can change {}, and with it what is replayed; `chmod go-w` it",
                    file.display()
                ));
            }
            let text = std::fs::read_to_string(file).map_err(|error| format!("`{id}`: {}: {error}", file.display()))?;
            let secret = hex::decode::<KEY_BYTES>(text.trim()).ok_or_else(|| {
                format!("`{id}`: {} is not 64 hexadecimal digits; `openssl rand -hex 32` writes a key", file.display())
            })?;
            let prk = Salt::new(HKDF_SHA256, PURPOSE).extract(&secret);
            if keys.by_id.insert(id.clone(), prk).is_some() {
                return Err(format!("two keys have the ID `{id}`; give each its own"));
            }
            keys.first.get_or_insert_with(|| id.clone());
        }
        Ok(keys)
    }

    /// Returns warnings about the keys, as sentences.
    pub fn warnings(&self) -> Vec<String> {
        let readable = |key: &&KeyOptions| permissions(&key.file).is_some_and(|mode| mode & READABLE != 0);
        let warning = |KeyOptions { id, file }: &KeyOptions| {
            format!("Every user of this host can read {}, the key `{id}` of stored responses.", file.display())
        };
        self.keys.iter().filter(readable).map(warning).collect()
    }
}

/// Returns the permissions of a file; `None` if there is none.
fn permissions(file: &Path) -> Option<u32> {
    Some(std::fs::metadata(file).ok()?.permissions().mode())
}

/// Keys of stored responses.
#[derive(Default)]
pub struct EncryptionKeys {
    /// The key that encrypts.
    first: Option<String>,
    by_id: BTreeMap<String, Prk>,
}

/// Claim whose response is stored. Data that is encrypted for one claim cannot be decrypted for another.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) global_id: GlobalId,
    pub(super) attempt: &'a Attempt,
}

/// Bytes that only the holder of a key can read or make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Sealed {
    /// Version of this form.
    v: u8,
    /// ID of the key.
    key: String,
    /// Nonce, ciphertext and tag, in Base64.
    #[serde(rename = "sealed")]
    text: String,
}

impl Sealed {
    /// Returns the data that is authenticated and not encrypted.
    fn associated(v: u8, key: &str) -> Aad<String> {
        Aad::from(format!("{v} {key}"))
    }
}

impl EncryptionKeys {
    /// Reports whether responses are encrypted.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Encrypts bytes. `None` if there is no key, or no randomness.
    pub(super) fn seal(&self, owner: Owner<'_>, mut bytes: Vec<u8>) -> Option<Sealed> {
        let id = self.first.as_ref()?;
        let key = self.record_key(id, owner)?;
        // An attempt may report twice, after a timeout with what came late: so the nonce is not constant.
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok()?;
        let associated = Sealed::associated(VERSION, id);
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), associated, &mut bytes).ok()?;
        let text = STANDARD.encode([&nonce[..], &bytes].concat());
        Some(Sealed { v: VERSION, key: id.clone(), text })
    }

    /// Decrypts bytes. `None` if the key is not known, or the bytes were not encrypted for this claim.
    pub(super) fn open(&self, owner: Owner<'_>, sealed: &Sealed) -> Option<Vec<u8>> {
        if sealed.v != VERSION {
            return None;
        }
        let key = self.record_key(&sealed.key, owner)?;
        let mut data = STANDARD.decode(&sealed.text).ok()?;
        let (nonce, bytes) = data.split_first_chunk_mut::<NONCE_LEN>()?;
        let bytes = key
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Sealed::associated(sealed.v, &sealed.key), bytes)
            .ok()?;
        Some(bytes.to_vec())
    }

    fn record_key(&self, id: &str, owner: Owner<'_>) -> Option<LessSafeKey> {
        let (global_id, attempt) = (owner.global_id.to_string(), owner.attempt.to_string());
        let info = [global_id.as_bytes(), b" ", attempt.as_bytes()];
        let derived = self.by_id.get(id)?.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

/// Keys are secret.
impl fmt::Debug for EncryptionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_id.keys()).finish()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    const ID: &str = "c72034d8c477e40bda98523df450ed90";
    const OTHER: &str = "d72034d8c477e40bda98523df450ed90";

    pub(crate) fn keys(of: &[(&str, &str)]) -> EncryptionKeys {
        let dir = tempfile::tempdir().unwrap();
        let key = |(id, text): &(&str, &str)| {
            let file = dir.path().join(id);
            fs::write(&file, text).unwrap();
            KeyOptions { id: (*id).to_owned(), file }
        };
        EncryptionOptions { keys: of.iter().map(key).collect() }.read().unwrap()
    }

    pub(crate) fn attempt() -> Attempt {
        "1792488615123456-5f0c9a7be2d14836".parse().unwrap()
    }

    #[test]
    fn only_the_same_key_claim_and_attempt_decrypt() {
        let (old, new) = ("0f".repeat(32), format!("{}\n", "aB".repeat(32)));
        let both = keys(&[("new", &new), ("old", &old)]);
        let attempt = attempt();
        let owner = Owner { global_id: ID.parse().unwrap(), attempt: &attempt };
        let sealed = both.seal(owner, b"bytes".to_vec()).unwrap();
        assert_eq!(sealed.key, "new");
        assert_eq!(both.open(owner, &sealed).unwrap(), b"bytes");
        assert_eq!(keys(&[("old", &old), ("new", &new)]).open(owner, &sealed).unwrap(), b"bytes");
        assert_eq!(keys(&[("old", &old)]).open(owner, &sealed), None, "the key is gone");
        assert_eq!(keys(&[("new", &old)]).open(owner, &sealed), None, "another key has its name");
        let other = Owner { global_id: OTHER.parse().unwrap(), attempt: &attempt };
        assert_eq!(both.open(other, &sealed), None, "moved to another claim");
        let later = "1792488615123457-5f0c9a7be2d14836".parse().unwrap();
        assert_eq!(both.open(Owner { attempt: &later, ..owner }, &sealed), None, "moved to another attempt");
        let again = both.seal(owner, b"bytes".to_vec()).unwrap();
        assert_ne!(again.text, sealed.text, "no nonce is used twice");
    }

    #[test]
    fn damaged_bytes_are_not_decrypted() {
        let keys = keys(&[("k", &"0f".repeat(32))]);
        let attempt = attempt();
        let owner = Owner { global_id: ID.parse().unwrap(), attempt: &attempt };
        let sealed = keys.seal(owner, b"bytes".to_vec()).unwrap();
        let mut bytes = STANDARD.decode(&sealed.text).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        for damaged in [STANDARD.encode(&bytes), String::new(), "=".to_owned(), STANDARD.encode([0; 5])] {
            assert_eq!(keys.open(owner, &Sealed { text: damaged, ..sealed.clone() }), None);
        }
        assert_eq!(keys.open(owner, &Sealed { v: 2, ..sealed.clone() }), None);
        let twice = self::keys(&[("k", &"0f".repeat(32)), ("l", &"0f".repeat(32))]);
        assert!(twice.open(owner, &sealed).is_some());
        assert_eq!(twice.open(owner, &Sealed { key: "l".to_owned(), ..sealed }), None, "its name is authenticated");
    }

    #[test]
    fn a_key_file_that_is_no_key_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        let read = |keys: &[&str]| {
            let key = |id: &&str| KeyOptions { id: (*id).to_owned(), file: file.clone() };
            EncryptionOptions { keys: keys.iter().map(key).collect() }.read().unwrap_err()
        };
        assert!(read(&["k"]).contains("No such file"));
        for wrong in ["", "abc", &"0g".repeat(32), &"0".repeat(63), &"é".repeat(32)] {
            fs::write(&file, wrong).unwrap();
            assert!(read(&["k"]).contains("openssl rand -hex 32"), "{wrong}");
        }
        fs::write(&file, "0f".repeat(32)).unwrap();
        let set = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o666, 0o620, 0o602] {
            set(mode);
            assert!(read(&["k"]).contains("chmod go-w"), "{mode:o}");
        }
        for (mode, warnings) in [(0o644, 1), (0o444, 1), (0o640, 0), (0o600, 0)] {
            set(mode);
            let options = EncryptionOptions { keys: vec![KeyOptions { id: "k".to_owned(), file: file.clone() }] };
            assert_eq!((options.read().is_ok(), options.warnings().len()), (true, warnings), "{mode:o}");
        }
        assert!(read(&["k", "k"]).contains("two keys"));
        assert!(read(&[""]).contains("1 to 64"));
    }
}
