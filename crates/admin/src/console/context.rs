//! The request of a signed-in operator, and the services that a page needs for the answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use maud::Markup;
use oncegate_core::clock::Timestamp;
use oncegate_core::tenant::AppKey;
use oncegate_web::problem::Problem;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::actions::Actions;
use super::calls::Calls;
use super::options::ConsoleLinks;
use super::parts::address;
use super::session::{SessionId, Sessions};
use super::site::Sites;
use super::streams::Streams;
use super::texts::{Language, Text, Texts};
use crate::Admin;
use crate::auth::Operator;

/// The console of this process.
pub(super) struct Console {
    pub(super) admin: Arc<Admin>,
    pub(super) calls: Calls,
    pub(super) sessions: Sessions,
    pub(super) actions: Actions,
    pub(super) streams: Streams,
    pub(super) sites: Sites,
}

/// The request of a signed-in operator.
pub(super) struct Context {
    pub(super) console: Arc<Console>,
    pub(super) operator: Operator,
    pub(super) session: SessionId,
    pub(super) language: Language,
    /// The path of the page.
    pub(super) path: String,
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) query: Vec<(String, String)>,
    /// The fields of a form.
    pub(super) form: Vec<(String, String)>,
    /// Text that was typed into the form of this page before its session had ended.
    pub(super) draft: Vec<(String, String)>,
    /// A person has asked for the page. Otherwise the script of an open page has, to see what is new.
    pub(super) is_click: bool,
}

/// The answer of a page.
pub(super) enum Answer {
    /// A page with this title.
    Page(Text<'static>, Markup),
    /// Another page.
    SeeOther(String),
    /// An unchanged answer of the admin API.
    Json(Box<RawValue>),
}

impl Console {
    /// Returns the JSON pointers of values in contents and results of an app that no page shows.
    pub(super) fn masks(&self, app: Option<&AppKey>) -> Vec<String> {
        let apps = self.admin.registry.apps();
        apps.iter().find(|known| Some(&known.key) == app).map(|app| app.console_mask.clone()).unwrap_or_default()
    }
}

impl Context {
    /// Returns the texts in the operator's language.
    pub(super) fn texts(&self) -> Texts {
        Texts(self.language)
    }

    /// Returns the links to the logs of the callers.
    pub(super) fn links(&self) -> &ConsoleLinks {
        &self.console.admin.console.options.links
    }

    /// Returns the time of the wall clock.
    pub(super) fn now(&self) -> Timestamp {
        self.console.admin.clock.wall()
    }

    /// Returns the time for which the gateway has been running.
    pub(super) fn uptime(&self) -> Duration {
        self.console.admin.clock.monotonic()
    }

    /// Returns the value of a parameter of the query, if it is not empty.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        value(&self.query, name)
    }

    /// Returns the parameter `done`, if an action of this session has led to this address. A link from elsewhere may have it, too.
    pub(super) fn done(&self) -> Option<&str> {
        let done = self.query("done")?;
        self.console.actions.has_led(&self.session.form_token(), &self.address()).then_some(done)
    }

    /// Returns the address of the page.
    pub(super) fn address(&self) -> String {
        let query: Vec<_> = self.query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        address(&self.path, &query)
    }

    /// Returns the answer of the admin API to a read.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        self.console.calls.get(&self.operator, path).await
    }

    /// Returns the answer of the admin API to a call that looks something up, and has a body.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Problem> {
        self.console.calls.look_up(&self.operator, path, body.to_string()).await
    }
}

/// Returns the value of a field, if it is not empty.
pub(super) fn value<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
}
