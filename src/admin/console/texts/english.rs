//! The texts in English.

use std::borrow::Cow;

use super::Text;

/// Returns a text in English.
pub(super) fn text(text: Text<'_>) -> Cow<'static, str> {
    match text {
        Text::SkipToContent => "Skip to the content".into(),
        Text::SignOut => "Sign out".into(),
        Text::Overview => "Overview".into(),
        Text::Attention => "Attention".into(),
        Text::ThisGateway => "this gateway".into(),
        Text::SameAs => "The same as".into(),
        Text::Starting => "This gateway is starting.".into(),
        Text::Draining => "This gateway is stopping. Use another one.".into(),
        Text::Problem => "This did not work".into(),
        Text::Code => "Code".into(),
        Text::Request => "Request".into(),
        Text::NotFound => "Not found".into(),
        Text::NoSuchPage => "The console has no such page.".into(),
        Text::NothingKnownToHaveChanged => "Nothing is known to have changed. Look again before you repeat it.".into(),
        Text::NoTokens => "No operator can sign in".into(),
        Text::NoTokensWhy => "No token is configured, so the admin API and its console are closed.".into(),
        Text::NoTokensMake => "Make a token. The first one may do everything, the second one only sees states:".into(),
        Text::NoTokensThen => {
            "Each command prints a line for [admin.tokens] of the configuration file. It takes effect within seconds; then load \
             this page again.".into()
        }
        Text::FormIsOld => "This form belongs to an earlier session. Nothing was changed: open the page again, then repeat it.".into(),
        Text::NotFromThisSite => {
            "The console takes forms only from its own pages. Nothing was changed: open the page again, then repeat it.".into()
        }
        Text::SignIn => "Sign in".into(),
        Text::Token => "Token".into(),
        Text::TokenHint => "A token of [admin.tokens]. It is sent once and not stored.".into(),
        Text::WrongToken => "This gateway does not know this token.".into(),
        Text::OneMoment => "One moment".into(),
        Text::GoOn => "Continue".into(),
        Text::NothingNeedsYou => "Nothing needs you".into(),
        Text::Store => "Store".into(),
        Text::Chain => "Chain".into(),
        Text::Journal => "Journal".into(),
        Text::Check => "Check".into(),
        Text::JournalRefuses => {
            "The outage journal does not accept entries, so operations with an outage policy are refused while a store is out. \
             Look whether the disk of server.data_dir is full or read-only.".into()
        }
        Text::LookThemUp => "Look them up".into(),
        Text::CheckAdvice => {
            "Each of these operations may have run twice. Look its effect up in the system that it changes, then record what you \
             have found.".into()
        }
        Text::AllKinds => "All".into(),
        Text::Overlaps => "Overlaps".into(),
        Text::Doubles => "Suspected doubles".into(),
        Text::Noticed => "Noticed".into(),
        Text::App => "App".into(),
        Text::Operation => "Operation".into(),
        Text::What => "Claim".into(),
        Text::Why => "Reason".into(),
        Text::SupersededSuccess => "an attempt reported success while another one held the claim".into(),
        Text::SupersededUnknown => "an attempt reported an unknown outcome while another one held the claim".into(),
        Text::Ours => "ours".into(),
        Text::Theirs => "theirs".into(),
        Text::NoneOpen => "Nothing is open here. Overlaps and suspected doubles are listed until an operator has checked them.".into(),
        Text::Older => "Older".into(),
        Text::SeenHere => "seen by this gateway; each gateway lists its own".into(),
        Text::Engines => "Engines".into(),
        Text::Engine => "Engine".into(),
        Text::Since => "Since".into(),
        Text::State => "State".into(),
        Text::Answers => "answers".into(),
        Text::DoesNotAnswer => "does not answer".into(),
        Text::UpFor(age) => format!("up {age}").into(),
        Text::AsOf(time) => format!("{time} UTC").into(),
        Text::SessionEnded(mark) => format!(
            "Gateway {mark} does not know your session: it has ended, or it began at another gateway. Sign in here; behind a \
             balancer, each gateway has sessions of its own."
        ).into(),
        Text::ThingsNeedYou(1) => "1 thing needs a person".into(),
        Text::ThingsNeedYou(count) => format!("{count} things need a person").into(),
        Text::StoreDown { engine, since: "" } => {
            format!("{engine} does not answer. Callers get what their outage policies say, else 503.").into()
        }
        Text::StoreDown { engine, since } => {
            format!("{engine} does not answer, since {since}. Callers get what their outage policies say, else 503.").into()
        }
        Text::ChainFrozen { chain, left } => {
            format!("Chain {chain} grants nothing for another {left}, since its store has lost data.").into()
        }
        Text::ChainSwitching { chain, to } => {
            format!("Chain {chain} is being switched to {to}. Claims and locks are refused until all gateways know it.").into()
        }
        Text::JournalWaits { entries, oldest } => {
            format!("{entries} answers of outage policies wait for their stores, the oldest for {oldest}.").into()
        }
        Text::Suspects { count, more } => {
            let count = if more { format!("{count} or more") } else { count.to_string() };
            format!("Operations that may have run twice: {count}. Look each one up in the system that it changes.").into()
        }
        Text::TwoGrants(policy) => format!("two attempts were granted, one by {policy}").into(),
    }
}
