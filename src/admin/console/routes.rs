//! The pages of the console. Each row names the role that it needs, so that no page is without one.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::routing::{MethodFilter, on};

use super::context::{Answer, Console, Context};
use super::entry::{Page, enter};
use super::texts::Text;
use super::{attention, overview};
use crate::admin::role::Role::{self, View};
use crate::web::problem::{Code, Problem};

/// A page: its method and path, and the least role that may open it.
struct Row {
    method: Method,
    path: &'static str,
    role: Role,
    page: Page,
}

/// Returns the routes of the pages.
pub(super) fn router() -> Router<Arc<Console>> {
    rows().into_iter().fold(Router::new(), |router, Row { method, path, role, page }| {
        let filter = if method == Method::POST { MethodFilter::POST } else { MethodFilter::GET };
        let answer = move |State(console): State<Arc<Console>>, request: Request| {
            let page = page.clone();
            async move { enter(console, role, page, request).await }
        };
        router.route(path, on(filter, answer))
    })
}

fn rows() -> Vec<Row> {
    vec![
        get(View, "/console/", overview::show),
        get(View, "/console/attention", attention::show),
        get(View, "/console/{*rest}", nothing_here),
    ]
}

fn get<Shown>(role: Role, path: &'static str, page: fn(Arc<Context>) -> Shown) -> Row
where
    Shown: Future<Output = Result<Answer, Problem>> + Send + 'static,
{
    Row { method: Method::GET, path, role, page: Arc::new(move |context| Box::pin(page(context))) }
}

async fn nothing_here(context: Arc<Context>) -> Result<Answer, Problem> {
    Err(Problem::new(Code::NotFound, context.texts().of(Text::NoSuchPage)))
}
