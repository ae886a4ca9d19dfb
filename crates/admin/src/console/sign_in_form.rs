//! The page with the form of the sign-in. It shows nothing of the gateway.

use maud::{Markup, html};

use super::layout;
use super::texts::{Language, Text, Texts};

/// Returns the page. `kept` is a form that was sent without a session.
pub(super) fn draw(language: Language, to: &str, notice: Option<Text<'_>>, kept: &str) -> Markup {
    let t = Texts(language);
    let main = html! {
        @if let Some(notice) = notice { p.notice role="alert" { (t.of(notice)) } }
        form method="post" action="/console/sign-in" {
            input type="hidden" name="to" value=(to);
            @if !kept.is_empty() { input type="hidden" name="kept" value=(kept); }
            p {
                label for="token" { (t.of(Text::Token)) }
                input #token type="password" name="token" required autofocus autocomplete="current-password" spellcheck="false"
                    aria-describedby="token-hint";
            }
            p.muted #token-hint { (t.of(Text::TokenHint)) }
            p { button.primary type="submit" { (t.of(Text::SignIn)) } }
        }
    };
    layout::bare(language, Text::SignIn, &main)
}
