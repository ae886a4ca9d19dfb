//! Unknown claims for operators: of all apps, on every engine, the oldest first. An engine that can list claims is
//! searched; any other engine has an index.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use oncegate_core::clock::Timestamp;
use oncegate_core::engine::EngineError;
use oncegate_core::operator::{UnknownClaim, UnknownsPage, UnknownsRequest};
use oncegate_core::record::{ClaimState, LiveClaim, Realm};
use oncegate_core::tenant::AppKey;

use super::operator::{Filter, filtered};
use super::{ClaimView, Failure, Gateway, late, read_failure, within};
use crate::tenants::App;

/// Time limit for one app, and for all.
const APP_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(15);

/// Apps that are looked at at a time.
const APPS_AT_ONCE: usize = 8;

/// Claims of an app and realm that are sorted, where the engine lists by global ID.
const LISTED_MAX: usize = 1000;

/// Unknown claims of several apps.
#[derive(Debug)]
pub struct Unknowns {
    /// The claims, the oldest first.
    pub found: Vec<UnknownView>,
    /// There may be more.
    pub more: bool,
    /// The apps whose store did not answer, and why.
    pub failed: Vec<(AppKey, Failure)>,
}

/// An unknown claim, and the app that it is of.
#[derive(Debug)]
pub struct UnknownView {
    /// The app.
    pub app: AppKey,
    /// The realm.
    pub realm: Realm,
    /// Time at which the claim became unknown, as far as is known.
    pub since: Timestamp,
    /// The claim, without a result.
    pub claim: ClaimView,
}

impl Gateway {
    /// Returns up to `limit` unknown claims of these apps, the oldest first.
    pub async fn unknowns(&self, apps: Vec<Arc<App>>, limit: usize) -> Unknowns {
        let started = self.clock.monotonic();
        let page = |app: Arc<App>| async move {
            let left = TIMEOUT.saturating_sub(self.since(started)).min(APP_TIMEOUT);
            let page = if left.is_zero() { late() } else { within(left, self.unknowns_of(&app, limit)).await };
            (app.key.clone(), page)
        };
        let pages: Vec<_> = stream::iter(apps).map(page).buffer_unordered(APPS_AT_ONCE).collect().await;
        let mut unknowns = Unknowns { found: Vec::new(), more: false, failed: Vec::new() };
        for (app, page) in pages {
            match page {
                Ok(page) => {
                    unknowns.more |= page.more;
                    unknowns.found.extend(page.found.into_iter().map(|found| self.unknown_view(&app, found)));
                }
                Err(failure) => unknowns.failed.push((app, read_failure(failure))),
            }
        }
        unknowns.found.sort_by_key(|unknown| (unknown.since, unknown.claim.global_id));
        unknowns.more |= unknowns.found.len() > limit;
        unknowns.found.truncate(limit);
        unknowns.failed.sort_by(|(one, _), (other, _)| one.cmp(other));
        unknowns
    }

    async fn unknowns_of(&self, app: &App, limit: usize) -> Result<UnknownsPage, EngineError> {
        let engine = self.policies(app)?.engine();
        if !engine.capabilities().lists {
            return engine.unknowns(&UnknownsRequest { app: app.key.clone(), limit }).await;
        }
        let mut page = UnknownsPage { found: Vec::new(), more: false };
        for realm in [Realm::Api, Realm::Proxy] {
            let filter = Filter { state: Some(ClaimState::Unknown), ..Filter::all(realm) };
            let (listed, next) = filtered(engine, &app.key, filter, LISTED_MAX).await?;
            page.more |= next.is_some();
            page.found.extend(listed.into_iter().map(|listed| {
                let since = self.unknown_since(&listed.claim);
                UnknownClaim { realm, global_id: listed.global_id, claim: listed.claim, since }
            }));
        }
        page.found.sort_by_key(|found| found.since);
        page.more |= page.found.len() > limit;
        page.found.truncate(limit);
        Ok(page)
    }

    /// Returns when a claim became unknown: before its retention began, or not before the end of the lease that it was claimed with.
    pub(super) fn unknown_since(&self, claim: &LiveClaim) -> Timestamp {
        let (record, terms) = (&claim.record, &claim.record.terms);
        match (claim.left, terms.unknown_retention.duration()) {
            (Some(left), Some(retention)) => self.clock.wall().plus(left).minus(retention),
            _ => record.attempt.timestamp().plus(terms.lease),
        }
    }

    fn unknown_view(&self, app: &AppKey, found: UnknownClaim) -> UnknownView {
        let UnknownClaim { realm, global_id, mut claim, since } = found;
        claim.record.result = None;
        UnknownView { app: app.clone(), realm, since, claim: self.view(global_id, claim) }
    }
}
