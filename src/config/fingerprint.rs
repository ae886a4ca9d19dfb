//! Fingerprint of all files of a configuration. It depends on their paths and contents only, not on timestamps or
//! links.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::file::File;
use super::layers::{Layer, Layers};
use super::{Flags, environment, secret_files};

/// More than any configuration needs.
const BYTES_MAX: u64 = 16 << 20;

/// Digest of the paths and contents of all files of a configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint([u8; 32]);

impl Flags {
    /// Returns the fingerprint of the files that these flags and this environment name, and of the files named in them.
    /// A missing file counts too.
    pub fn fingerprint(&self, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Fingerprint {
        let environment: Vec<_> = environment.into_iter().collect();
        let mut digest = Sha256::new();
        for path in self.files(&environment) {
            let content = content(&path).unwrap_or_else(|error| error.kind().to_string().into_bytes());
            for part in [path.as_os_str().as_encoded_bytes(), &content] {
                digest.update(part.len().to_be_bytes());
                digest.update(part);
            }
        }
        Fingerprint(digest.finalize().into())
    }

    /// Returns the configuration file and the files of single values. The files named in a file with syntax errors are
    /// unknown; a change of that file counts.
    fn files(&self, environment: &[(OsString, OsString)]) -> Vec<PathBuf> {
        let mut files = Vec::new();
        if let Some((path, named_by)) = self.named_file(environment) {
            if let Ok(file) = File::read(&path, named_by)
                && let Ok(table) = file.parse()
            {
                files.extend(secret_files::named(&Layer::of_file(file, table)));
            }
            files.push(path);
        }
        let defaults = super::load::defaults().map(Layers::of_defaults);
        let known = defaults.map(|defaults| secret_files::with_file_keys(defaults.known_keys())).unwrap_or_default();
        files.extend(secret_files::named(&environment::read(environment, &known).0));
        files
    }
}

fn content(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(BYTES_MAX).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_files_that_are_read_count() {
        let folder = tempfile::tempdir().unwrap();
        let [config, secret, token, other] =
            ["oncegate.toml", "secret", "token", "other"].map(|name| folder.path().join(name));
        let named = |path: &Path| path.display().to_string();
        let flags = Flags { config: Some(config.clone()), ..Flags::default() };
        let environment = [(OsString::from("ONCEGATE_ADMIN__TOKENS__ALICE_FILE"), token.clone().into_os_string())];
        let mut seen = Vec::new();
        let mut look = |changed: bool, what: &str| {
            let now = flags.fingerprint(environment.clone());
            let before = seen.last().copied();
            assert_eq!(before.is_none_or(|before| before != now), changed, "{what}");
            seen.push(now);
        };
        look(true, "the first look");
        fs::write(&config, format!("[apps.shop]\nsecrets_file = \"{}\"\n", named(&secret))).unwrap();
        look(true, "a file that was missing");
        look(false, "the same again");
        fs::write(&secret, "one").unwrap();
        look(true, "a secret of the file");
        fs::write(&secret, "two").unwrap();
        look(true, "another secret, as long");
        fs::write(&token, "three").unwrap();
        look(true, "a token of the environment");
        fs::write(&other, "four").unwrap();
        look(false, "a file that is not named");
        fs::write(&config, "[apps").unwrap();
        look(true, "a mistake");
    }
}
