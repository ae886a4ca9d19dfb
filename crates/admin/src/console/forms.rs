//! The page of an action: the present state, the effect, the reason, the button. The form is bound to the shown state,
//! and runs once.

use std::sync::Arc;

use maud::{Markup, html};
use oncegate_core::hex;
use oncegate_web::problem::Problem;
use serde_json::{Value, json};

use super::context::{Answer, Context, value};
use super::layout;
use super::texts::Text;

/// Returns the form of an action. `bound` is the shown state; the action is refused if it has changed.
pub(super) fn form(
    context: &Context,
    target: &str,
    bound: &[(&str, &str)],
    fields: &Markup,
    button: Text<'_>,
) -> Markup {
    let t = context.texts();
    html! {
        form.action method="post" action=(target) {
            (hidden(context, bound))
            (fields)
            p {
                label for="reason" { (t.of(Text::Reason)) }
                input.wide #reason type="text" name="reason" required maxlength="500" autocomplete="off" aria-describedby="reason-hint"
                    value=[value(&context.draft, "reason")];
                span.muted #reason-hint { (t.of(Text::ReasonHint)) }
            }
            p { button.primary type="submit" { (t.of(button)) } }
        }
    }
}

/// Returns the hidden fields of a form: its origin, its identity, and the state that it is bound to.
pub(super) fn hidden(context: &Context, bound: &[(&str, &str)]) -> Markup {
    let entropy = &context.console.admin.entropy;
    let nonce = hex::encode(&[entropy.bits().to_le_bytes(), entropy.bits().to_le_bytes()].concat());
    html! {
        (layout::form_token(context))
        input type="hidden" name="nonce" value=(nonce);
        @for (name, value) in bound { input type="hidden" name=(name) value=(value); }
    }
}

/// Returns a choice of one of these values.
pub(super) fn choice(context: &Context, name: &str, title: Text<'_>, values: &[(&str, Text<'_>)]) -> Markup {
    let (t, draft) = (context.texts(), value(&context.draft, name));
    html! {
        fieldset {
            legend { (t.of(title)) }
            @for (value, text) in values {
                label.option {
                    input type="radio" name=(name) value=(value) required checked[draft == Some(*value)]; " " (t.of(*text))
                }
            }
        }
    }
}

/// Returns a field for a word that the operator must type.
pub(super) fn typed(context: &Context, title: Text<'_>) -> Markup {
    typed_if(context, title, true)
}

/// Returns a field for a word that the operator must type, in every case or only for some choices.
pub(super) fn typed_if(context: &Context, title: Text<'_>, is_always: bool) -> Markup {
    html! {
        p {
            label for="typed" { (context.texts().of(title)) }
            input #typed type="text" name="typed" required[is_always] autocomplete="off" spellcheck="false"
                value=[value(&context.draft, "typed")];
        }
    }
}

/// Checks the required confirmation text.
pub(super) fn check_typed(context: &Context, word: &str) -> Result<(), Problem> {
    if value(&context.form, "typed") == Some(word) {
        return Ok(());
    }
    Err(Problem::invalid(context.texts().of(Text::TypedDiffers(word))))
}

/// Reports whether this form was sent before, and not refused.
pub(super) fn has_run(context: &Context) -> bool {
    name(context).is_ok_and(|name| context.console.actions.has(&name))
}

/// Returns what distinguishes this form from all others.
pub(super) fn name(context: &Context) -> Result<String, Problem> {
    let nonce = value(&context.form, "nonce").filter(|nonce| nonce.len() == 32);
    let nonce = nonce.ok_or_else(|| Problem::invalid("The form has no `nonce`; open its page again."))?;
    Ok(format!("{} {nonce}", context.session.form_token()))
}

/// Makes the call of an action once, and leads to `done`. Fields of the form with these names are added to the body.
pub(super) async fn act(
    context: Arc<Context>,
    path: String,
    mut body: Value,
    fields: &[&str],
    done: String,
) -> Result<Answer, Problem> {
    for name in fields {
        if let Some(value) = value(&context.form, name) {
            body[*name] = json!(value);
        }
    }
    send(&context, path, body.to_string(), done).await
}

/// Makes the call of an action once, with this body, and leads to `done`.
pub(super) async fn send(context: &Context, path: String, body: String, done: String) -> Result<Answer, Problem> {
    let (console, operator) = (context.console.clone(), context.operator.clone());
    let action = async move {
        console.calls.change::<Value>(&operator, &path, body).await?;
        Ok(done)
    };
    run(context, action).await
}

/// Runs the action of a form once. It returns where it leads to.
pub(super) async fn run(
    context: &Context,
    action: impl Future<Output = Result<String, Problem>> + Send + 'static,
) -> Result<Answer, Problem> {
    context.console.actions.once(name(context)?, action).await.map(Answer::SeeOther)
}
