//! Several rows of the attention page worked off with one form: unknown outcomes settled, or suspects checked. They are
//! of one operation, each is bound to its shown state, and each has its own line in the audit trail.

use std::ops::ControlFlow;
use std::sync::Arc;

use maud::{Markup, html};
use oncegate_web::problem::{Code, Problem};
use serde_json::{Value, json};

use crate::auth::Operator;
use crate::console::context::{Answer, Console, Context, value};
use crate::console::forms;
use crate::console::parts::address;
use crate::console::texts::Text;
use crate::console::untrusted::Untrusted;
use crate::role::Role;

/// Rows of one form.
const ROWS_MAX: usize = 50;

/// Effect of a form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::console) enum Kind {
    /// Settles unknown outcomes.
    Settle,
    /// Records checks of suspects.
    Check,
}

/// A row that can be chosen.
pub(super) struct Row<'a> {
    pub(super) app: &'a Untrusted,
    pub(super) operation: Option<&'a Untrusted>,
    /// Its name, and its shown state.
    pub(super) id: String,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Settle => "settle",
            Self::Check => "check",
        }
    }

    fn of(name: &str) -> Option<Self> {
        [Self::Settle, Self::Check].into_iter().find(|kind| kind.name() == name)
    }
}

impl Row<'_> {
    fn group(&self) -> String {
        format!("{} {}", self.app.raw(), self.operation.map_or("", Untrusted::raw))
    }

    /// Returns the values that the form sends. App and operation are first: neither has a space.
    fn value(&self) -> String {
        format!("{} {}", self.group(), self.id)
    }
}

/// Returns the titles of a table, with one for the checkboxes if the operator may act.
pub(super) fn columns<'a>(context: &Context, columns: &[Text<'a>]) -> Vec<Text<'a>> {
    let first = (context.operator.role >= Role::Act).then_some(Text::Choose);
    first.into_iter().chain(columns.iter().copied()).collect()
}

/// Returns the cell with the checkbox of a row if the operator may act.
pub(super) fn cell(context: &Context, kind: Kind, row: &Row<'_>) -> Markup {
    if context.operator.role < Role::Act {
        return html! {};
    }
    let sent = row.value();
    let is_group = context.query("choose").is_some_and(|group| group == format!("{} {}", kind.name(), row.group()));
    let is_chosen = is_group || context.draft.iter().any(|(name, value)| name == "row" && *value == sent);
    html! {
        td.box { input type="checkbox" name="row" value=(sent) checked[is_chosen] aria-label={ (context.texts().of(Text::Choose)) " " (row.id) }; }
    }
}

/// Returns a table in a form that works off its chosen rows. Operators who may not act get the table alone.
pub(super) fn form(context: &Context, kind: Kind, rows: &[Row<'_>], table: &Markup) -> Markup {
    if context.operator.role < Role::Act {
        return table.clone();
    }
    let t = context.texts();
    let (title, found, values): (_, _, &[(&str, Text<'_>)]) = match kind {
        Kind::Settle => {
            (Text::SettleChosen, "outcome", &[("success", Text::ItWasDone), ("failure", Text::NothingHappened)])
        }
        Kind::Check => (
            Text::CheckChosen,
            "found",
            &[("once", Text::RanOnce), ("twice", Text::RanTwice), ("never", Text::RanNever)],
        ),
    };
    let (reason, typed) = (format!("{}-reason", kind.name()), format!("{}-typed", kind.name()));
    html! {
        (groups(context, kind, rows))
        form.several method="post" action=(list(context, &[])) {
            (forms::hidden(context, &[("what", kind.name())]))
            (table)
            (forms::choice(context, found, Text::WhatYouFound, values))
            p {
                label for=(reason) { (t.of(Text::Reason)) }
                input.wide id=(reason) type="text" name="reason" required maxlength="500" autocomplete="off"
                    value=[value(&context.draft, "reason")];
            }
            p {
                label for=(typed) { (t.of(Text::TypeNumber)) }
                input id=(typed) type="text" inputmode="numeric" name="typed" required autocomplete="off" size="4"
                    value=[value(&context.draft, "typed")];
            }
            p { button.primary type="submit" { (t.of(title)) } }
        }
    }
}

/// Returns links that choose all rows of an operation on this page.
fn groups(context: &Context, kind: Kind, rows: &[Row<'_>]) -> Markup {
    let mut groups: Vec<(String, usize)> = Vec::new();
    for group in rows.iter().map(Row::group) {
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, count)) => *count += 1,
            None => groups.push((group, 1)),
        }
    }
    let link = |group: &str| {
        let choice = format!("{} {group}", kind.name());
        let after = context.query("after").unwrap_or_default();
        list(context, &[("after", after), ("choose", &choice)])
    };
    html! {
        p.filters {
            @for (group, count) in groups.iter().filter(|(_, count)| *count > 1) {
                @let name = group.trim_end().replace(' ', " / ");
                a href=(link(group)) { (context.texts().of(Text::ChooseAll(*count))) " " (Untrusted::from(name)) } " "
            }
        }
    }
}

/// Returns the address of the list with the filters of this page.
fn list(context: &Context, more: &[(&str, &str)]) -> String {
    let filters = ["kind", "app"].map(|name| (name, context.query(name).unwrap_or_default()));
    address("/console/attention", &[&filters[..], more].concat())
}

/// Works off the chosen rows.
pub(in crate::console) async fn act(context: Arc<Context>) -> Result<Answer, Problem> {
    let kind = value(&context.form, "what").and_then(Kind::of);
    let kind = kind.ok_or_else(|| Problem::invalid("The form does not say what it does; open its page again."))?;
    let calls = calls(&context, kind)?;
    forms::check_typed(&context, &calls.len().to_string())?;
    let (console, operator, all) = (context.console.clone(), context.operator.clone(), calls.len());
    let shown = context.clone();
    let action = async move {
        let Tally { changed, unknown, .. } = work_off(&console, &operator, calls).await?;
        let done = if kind == Kind::Settle { "settled" } else { "checked" };
        let [count, left] = [changed, all - changed - unknown].map(|number| number.to_string());
        let unknown = if unknown == 0 { String::new() } else { unknown.to_string() };
        Ok(list(&shown, &[("done", done), ("count", &count), ("left", &left), ("unknown", &unknown)]))
    };
    forms::run(&context, action).await
}

/// Returns a call of the admin API for each chosen row: its path and body.
fn calls(context: &Context, kind: Kind) -> Result<Vec<(String, Value)>, Problem> {
    let t = context.texts();
    let rows: Vec<Vec<&str>> =
        context.form.iter().filter(|(name, _)| name == "row").map(|(_, row)| row.splitn(5, ' ').collect()).collect();
    let Some(first) = rows.first() else { return Err(Problem::invalid(t.of(Text::ChooseSome))) };
    if rows.len() > ROWS_MAX || rows.iter().any(|row| row.get(..2) != first.get(..2)) {
        return Err(Problem::invalid(t.of(Text::ChooseOneOperation)));
    }
    let field = |name| value(&context.form, name);
    let call = |row: &Vec<&str>| match (kind, row.as_slice()) {
        (Kind::Settle, [app, _, realm, id, hash]) => {
            let body = json!({
                "app": app, "realm": realm, "global_id": id, "attempt_hash": hash,
                "outcome": field("outcome"), "reason": field("reason"),
            });
            Ok(("/admin/v1/claims/settle".to_owned(), body))
        }
        (Kind::Check, [_, _, id]) if id.bytes().all(|byte| byte.is_ascii_digit()) => {
            let body = json!({ "found": field("found"), "reason": field("reason") });
            Ok((format!("/admin/v1/suspects/{id}/check"), body))
        }
        _ => Err(Problem::invalid("A row of the form has another form than the page gives it; open the page again.")),
    };
    rows.iter().map(call).collect()
}

/// Makes the calls one after the other. Returns their number by their effect, or the first problem if none may have changed anything.
async fn work_off(console: &Console, operator: &Operator, calls: Vec<(String, Value)>) -> Result<Tally, Problem> {
    let mut tally = Tally::default();
    for (path, body) in calls {
        if tally.add(console.calls.change::<Value>(operator, &path, body.to_string()).await).is_break() {
            break;
        }
    }
    match tally.problem {
        Some(problem) if tally.changed + tally.unknown == 0 => Err(problem),
        _ => Ok(tally),
    }
}

/// The effects of calls.
#[derive(Default)]
struct Tally {
    /// Calls that have changed something.
    changed: usize,
    /// Calls that may have.
    unknown: usize,
    /// The first problem.
    problem: Option<Problem>,
}

impl Tally {
    /// Adds a call. Breaks if the next ones would fail for the same reason.
    fn add(&mut self, answer: Result<Value, Problem>) -> ControlFlow<()> {
        let Err(problem) = answer else {
            self.changed += 1;
            return ControlFlow::Continue(());
        };
        let is_unknown = matches!(problem.code, Code::OutcomeUnknown | Code::Internal);
        let is_over = is_unknown || problem.code == Code::StoreUnavailable;
        self.unknown += usize::from(is_unknown);
        self.problem.get_or_insert(problem);
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_may_have_changed_something_is_counted_apart() {
        let refused = |code| Err(Problem::new(code, "why"));
        let mut tally = Tally::default();
        for answer in [Ok(Value::Null), refused(Code::Superseded), Ok(Value::Null)] {
            assert!(tally.add(answer).is_continue());
        }
        assert_eq!((tally.changed, tally.unknown), (2, 0));
        for code in [Code::OutcomeUnknown, Code::Internal, Code::StoreUnavailable] {
            assert!(tally.add(refused(code)).is_break(), "{code:?}");
        }
        assert_eq!((tally.changed, tally.unknown), (2, 2), "a store that is unavailable has changed nothing");
        assert_eq!(tally.problem.map(|problem| problem.code), Some(Code::Superseded), "the first");
    }
}
