//! Calls that operators may look for, with what this gateway knows of them.

use oncegate_gateway::tenants::App;
use oncegate_web::recent::Noted;
use oncegate_web::request_id::RequestId;

use super::Api;

/// Records a call for operators, with its operation if this gateway knows it.
pub(super) fn note_call(api: &Api, app: &App, request_id: &RequestId, noted: Noted) {
    let known = noted.global_id.filter(|_| noted.operation.is_none());
    let operation = known.and_then(|global_id| api.gateway.granted_operation(app, global_id));
    api.recent.note(&app.key, request_id, noted.of_call(operation, None));
}
