//! Bodies of the requests of the admin API that look something up or change something, as `openapi-admin.yaml` has them. The
//! handlers read them, and the command line writes them.

#![expect(missing_docs, reason = "openapi-admin.yaml explains the members of the bodies")]

use oncegate_core::name::Name;
use oncegate_core::record::Realm;
use oncegate_core::suspect::Found;
use oncegate_core::tenant::{AppKey, Operation};
use oncegate_core::terms::{Retention, Span};
pub use oncegate_gateway::tenants::stored::RevokeScope;
use oncegate_web::body::present;
pub use oncegate_web::choice::OutcomeName;
use oncegate_web::choice::one_of;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use crate::audit::Reason;

/// `POST /admin/v1/claims/show`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ShowClaim<'a> {
    pub app: AppKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    #[serde(borrow, default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub contents: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realm: Option<Realm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_id: Option<String>,
}

/// `POST /admin/v1/claims/release`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ReleaseClaim<'a> {
    pub app: AppKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    #[serde(borrow, default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub contents: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realm: Option<Realm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub even_succeeded: Option<bool>,
    pub reason: Reason,
}

/// `POST /admin/v1/claims/settle`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct SettleClaim<'a> {
    pub app: AppKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    #[serde(borrow, default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub contents: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realm: Option<Realm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_hash: Option<String>,
    pub outcome: OutcomeName,
    #[serde(borrow, default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    pub reason: Reason,
}

/// `POST /admin/v1/proxy/forget`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ForgetResponse<'a> {
    pub app: AppKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    #[serde(borrow, default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub contents: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_hash: Option<String>,
    pub reason: Reason,
}

/// `POST /admin/v1/proxy/find`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct FindKey {
    pub route: String,
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
}

/// `POST /admin/v1/locks/show`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ShowLock {
    pub app: AppKey,
    pub name: String,
}

/// `POST /admin/v1/locks/release`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct ReleaseLock {
    pub app: AppKey,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    pub reason: Reason,
}

/// `POST /admin/v1/chains/{name}/switch`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct SwitchChain {
    pub to: Name,
    #[serde(default)]
    pub accept_loss: bool,
    pub reason: Reason,
}

/// `POST /admin/v1/chains/{name}/failover`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct SetFailover {
    pub action: FailoverAction,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub time: Option<Span>,
    pub reason: Reason,
}

/// Who switches a chain from now on.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum FailoverAction {
    /// People, for a time. Then the gateways again.
    Hold,
    /// People, until an operator allows automatic switches again.
    Manual,
    /// The gateways.
    Automatic,
}

impl<'de> Deserialize<'de> for FailoverAction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        one_of(deserializer, &[("hold", Self::Hold), ("manual", Self::Manual), ("automatic", Self::Automatic)])
    }
}

/// `POST /admin/v1/suspects/{id}/check`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct CheckSuspect {
    #[serde(deserialize_with = "found")]
    pub found: Found,
    pub reason: Reason,
}

/// `POST /admin/v1/apps`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct CreateApp<'a> {
    pub app: AppKey,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub settings: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain: Option<Name>,
    pub reason: Reason,
}

/// `POST /admin/v1/apps/{app}/rotate`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct RotateSecret {
    #[serde(default, deserialize_with = "revoke_scope", serialize_with = "write_revoke_scope")]
    pub revoke: RevokeScope,
    pub reason: Reason,
}

/// `POST /admin/v1/apps/{app}/revoke`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct RevokeSecret {
    pub secret_id: String,
    pub reason: Reason,
}

/// `POST /admin/v1/apps/{app}/disable` and `…/enable`, `POST /admin/v1/engines/{name}/backup`
#[derive(Deserialize, Serialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct WithReason {
    pub reason: Reason,
}

/// The words for what a rotation revokes.
const REVOKE_SCOPES: [(&str, RevokeScope); 2] = [("older", RevokeScope::Older), ("all", RevokeScope::All)];

fn revoke_scope<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RevokeScope, D::Error> {
    one_of(deserializer, &REVOKE_SCOPES)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn write_revoke_scope<S: Serializer>(scope: &RevokeScope, serializer: S) -> Result<S::Ok, S::Error> {
    let word = REVOKE_SCOPES.iter().find(|(_, known)| known == scope);
    word.map(|(word, _)| word).serialize(serializer)
}

fn found<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Found, D::Error> {
    one_of(deserializer, &Found::ALL.map(|found| (found.name(), found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_not_written_and_is_read_as_nothing() {
        let reason: Reason = "INC-42: paid by hand".parse().unwrap();
        let contents: &RawValue = serde_json::from_str("null").unwrap();
        let body = SettleClaim {
            app: "shop".parse().unwrap(),
            operation: None,
            contents: Some(contents),
            realm: None,
            global_id: None,
            attempt_hash: None,
            outcome: OutcomeName::Failure,
            result: None,
            retention: None,
            reason: reason.clone(),
        };
        let text = serde_json::to_string(&body).unwrap();
        assert_eq!(text, r#"{"app":"shop","contents":null,"outcome":"failure","reason":"INC-42: paid by hand"}"#);
        let read: SettleClaim<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!((read.contents.map(RawValue::get), read.reason), (Some("null"), reason.clone()));
        let rotate = serde_json::to_string(&RotateSecret { revoke: RevokeScope::All, reason }).unwrap();
        assert_eq!(serde_json::from_str::<RotateSecret>(&rotate).unwrap().revoke, RevokeScope::All);
        assert!(serde_json::from_str::<WithReason>(r#"{"reason":"a\nb"}"#).is_err(), "it is one line");
        assert!(
            serde_json::from_str::<WithReason>(r#"{"reason":"a","more":1}"#).is_err(),
            "unknown members are errors"
        );
    }
}
