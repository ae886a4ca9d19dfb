//! `POST /admin/v1/engines/{name}/backup`: a backup of an engine, streamed while the gateway serves.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::StreamExt as _;
use oncegate_gateway::operator::BackupError;
use oncegate_web::body::JsonBytes;
use oncegate_web::problem::{Code, Problem};

use super::Admin;
use super::audit::Change;
use super::auth::Operator;
use super::bodies::WithReason;
use super::health::Stage;

/// A gateway that stops does not wait for a backup.
#[derive(Debug, thiserror::Error)]
#[error("the gateway stops; the backup is incomplete")]
struct Stopped;

/// Answers with the pieces of a backup. If it fails, the connection ends before the response does.
pub(super) async fn backup(
    State(admin): State<Arc<Admin>>,
    Extension(operator): Extension<Operator>,
    Path(engine): Path<String>,
    body: JsonBytes,
) -> Result<Response, Problem> {
    let WithReason { reason } = body.parse()?;
    admin.gateway.check_engine(&engine).map_err(|error| not_backed_up(&error))?;
    let change = Change { detail: Some(format!("engine: {engine}")), ..Change::new("engine.backup", reason) };
    let gateway = admin.gateway.clone();
    let action = async move { Ok((gateway.backup(&engine).await.map_err(|error| not_backed_up(&error))?, "started")) };
    let pieces = admin.audit.execute(&operator, change, action).await?;
    let pieces = pieces.map(move |piece| {
        if admin.lifecycle.stage() == Stage::Draining {
            return Err(axum::BoxError::from(Stopped));
        }
        piece.map(Bytes::from).map_err(Into::into)
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let content_type = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(response)
}

/// Says why there is no backup.
fn not_backed_up(refused: &BackupError) -> Problem {
    let detail = format!("{refused}.");
    match refused {
        BackupError::UnknownEngine(_) => Problem::new(Code::NotFound, detail),
        BackupError::NotSupported(_) => Problem::new(Code::NotSupported, detail),
        BackupError::Failed(_) => Problem::new(Code::StoreUnavailable, detail).retry_soon(),
    }
}
