//! Roles of operators, and the form of a token in the configuration.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The calls that an operator may make. Each role may do what those before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sees states, but no contents, results or configuration.
    View,
    /// Sees everything.
    Read,
    /// Changes things too.
    Act,
}

impl Role {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Read => "read",
            Self::Act => "act",
        }
    }
}

/// A token in `[admin.tokens]`: its digest, which has the role `act`, or a table with both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenOptions {
    /// Digest of the token, as `sha256:` and 64 hex digits.
    pub digest: String,
    /// Role of the operator.
    pub role: Role,
}

/// The form with a role.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct WithRole {
    digest: String,
    role: Role,
}

impl<'de> Deserialize<'de> for TokenOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = TokenOptions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a digest, or a table such as { digest = \"sha256:…\", role = \"view\" }")
            }

            fn visit_str<E: Error>(self, digest: &str) -> Result<TokenOptions, E> {
                Ok(TokenOptions { digest: digest.to_owned(), role: Role::Act })
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<TokenOptions, A::Error> {
                let WithRole { digest, role } = WithRole::deserialize(MapAccessDeserializer::new(table))?;
                Ok(TokenOptions { digest, role })
            }
        }

        deserializer.deserialize_any(Forms)
    }
}

impl Serialize for TokenOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.role {
            Role::Act => serializer.serialize_str(&self.digest),
            role => WithRole { digest: self.digest.clone(), role }.serialize(serializer),
        }
    }
}
