//! The texts in English.

use std::borrow::Cow;

use super::Text;

/// Returns a text in English.
#[expect(clippy::too_many_lines, clippy::match_same_arms, reason = "a table: one line for each text")]
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
        Text::Why => "Reason".into(),
        Text::SupersededSuccess => "an attempt reported success while another one held the claim".into(),
        Text::SupersededUnknown => "an attempt reported an unknown outcome while another one held the claim".into(),
        Text::Ours => "ours".into(),
        Text::Theirs => "theirs".into(),
        Text::NoneOpen => "Nothing is open here. Overlaps and suspected doubles are listed until an operator has checked them.".into(),
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
            format!("Answers of outage policies that wait for their stores: {entries}, the oldest since {oldest}.").into()
        }
        Text::Suspects { count, more } => {
            let count = if more { format!("{count} or more") } else { count.to_string() };
            format!("Operations that may have run twice: {count}. Look each one up in the system that it changes.").into()
        }
        Text::TwoGrants(policy) => format!("two attempts were granted, one by {policy}").into(),
        Text::Find => "Find".into(),
        Text::Locks => "Locks".into(),
        Text::Lock => "Lock".into(),
        Text::Apps => "Apps".into(),
        Text::Audit => "Audit trail".into(),
        Text::Spool => "Spool".into(),
        Text::Open => "Open".into(),
        Text::NotCheckedYet => "not checked yet".into(),
        Text::NextPage => "Next page".into(),
        Text::ScopeStore => "what the store has".into(),
        Text::ScopeApps => "the registry, or the configuration file".into(),
        Text::Reason => "Reason".into(),
        Text::ReasonHint => "One line for the audit trail, such as INC-42: order found in the ledger. No contents and no secrets.".into(),
        Text::NoLiveClaim => "No live claim.".into(),
        Text::IdOrContents => "Global ID, or contents as JSON".into(),
        Text::IdOrContentsHint => "The ID has 32 hex digits. Contents are as callers send them, such as {\"order_id\": \"A-1001\"}.".into(),
        Text::OperationHint => "For contents only; without it the operation is `default`.".into(),
        Text::OfProxy => "The ID is of a record of the Idempotency-Key proxy".into(),
        Text::Claim => "Claim".into(),
        Text::Timeline => "Timeline".into(),
        Text::Terms => "Terms".into(),
        Text::WhatMayBeDone => "What may be done".into(),
        Text::Contents => "Contents".into(),
        Text::ResultTitle => "Result".into(),
        Text::ContentsUnknown => "The store does not have them: the outcome came after the claim had ended.".into(),
        Text::RoleSeesNoContents => "Your role does not see contents and results.".into(),
        Text::RoleChangesNothing => "Your role changes nothing. A token with the role act may settle or release this claim.".into(),
        Text::SettledAsDone => "Settled: it was done. Repeats get 409 with the result.".into(),
        Text::SettledAsNotDone => "Settled: nothing happened. The operation can be claimed again.".into(),
        Text::ReleasedNow => "Released. The operation can be claimed again.".into(),
        Text::DoneForEver => "Done. Repeats always get 409 with the result.".into(),
        Text::UnknownForEver => "The outcome is unknown. Repeats get 409 until it is settled.".into(),
        Text::BecomesUnknown => "the lease ends; without an outcome its state becomes unknown".into(),
        Text::CanBeClaimed => "it ends; the operation can be claimed again".into(),
        Text::RecordedLate => "outcome recorded late".into(),
        Text::Claimed => "claimed".into(),
        Text::Attempt => "attempt".into(),
        Text::Lease => "Lease".into(),
        Text::Retention => "Retention".into(),
        Text::UnknownRetention => "Retention if unknown".into(),
        Text::OnLeaseEnd => "At the end of the lease".into(),
        Text::Fence => "Fence".into(),
        Text::SettleIt => "Settle".into(),
        Text::SettleWhen => "in place of the holder, once you know whether it took effect.".into(),
        Text::ReleaseIt => "Release".into(),
        Text::ReleaseDoneWhen => "It runs a second time. Only if its effect was undone.".into(),
        Text::ReleaseInProgressWhen => "Only if its holder is certainly dead. The release does not stop it: the next caller starts while it still runs.".into(),
        Text::ReleaseUnknownWhen => "The operation can run again. Only if you know that nothing happened.".into(),
        Text::ItWasDone => "It was done. Repeats are stopped, and get the result.".into(),
        Text::NothingHappened => "Nothing happened. The operation can be claimed again.".into(),
        Text::WhatYouFound => "What you found".into(),
        Text::ResultForRepeats => "Result for repeats, if it was done".into(),
        Text::ResultHint => "JSON, such as {\"order_number\": 90017}. Empty for none.".into(),
        Text::LookFirst => "Look the effect up first, in the system that the operation would have changed.".into(),
        Text::TypeAgain => "Type again, since it will run again".into(),
        Text::Chains => "Chains".into(),
        Text::Active => "Active".into(),
        Text::Epoch => "Epoch".into(),
        Text::Breaker => "Breaker".into(),
        Text::SwitchingTo => "being switched to".into(),
        Text::Grants => "grants".into(),
        Text::ClosedNow => "closed for a moment".into(),
        Text::NoSuchChain => "There is no chain of this name. The page of engines lists them.".into(),
        Text::SwitchedNow => "Switched. This gateway uses the new engine; others follow within seconds.".into(),
        Text::SwitchIt => "Switch".into(),
        Text::SwitchChain => "Switch chain".into(),
        Text::NewEngine => "New engine".into(),
        Text::LossAccepted => "What is said above is accepted".into(),
        Text::ActiveNow => "Active now:".into(),
        Text::WhatIsLost => "What is lost".into(),
        Text::WorseThanWaiting => "Is that worse than waiting? Ask the business. Claims and locks get 503 for about two seconds, and fences may go back. Take gateways that reach neither engine out of service first.".into(),
        Text::NoLocks => "No lock of this app is held or waited for. This command holds one while it runs another:".into(),
        Text::LockName => "Name of a lock".into(),
        Text::Mode => "Mode".into(),
        Text::Free => "free".into(),
        Text::Holders => "Holders".into(),
        Text::Waiting => "Waiting".into(),
        Text::LimitOf => "Limit".into(),
        Text::Hold => "Hold".into(),
        Text::LeaseLeft => "Lease left".into(),
        Text::Action => "Action".into(),
        Text::EndHold => "End this hold".into(),
        Text::EndHoldWhen => "Only if its holder is certainly dead. This does not stop it: the next owner starts while it still runs.".into(),
        Text::HoldIsGone => "This hold has ended already. Nothing was changed.".into(),
        Text::HoldEnded => "The hold has ended.".into(),
        Text::OpenGateway => "No app is configured: this gateway is open, and all callers are the app `default`. This command makes an app:".into(),
        Text::Disabled => "disabled".into(),
        Text::Enabled => "enabled".into(),
        Text::Secrets => "Secrets".into(),
        Text::NotUsedYet => "no use is known".into(),
        Text::SpoolAbout => "Answers that outage policies gave in place of a store. They are delivered in their order when it answers. Contents are not shown.".into(),
        Text::SpoolEmpty => "Nothing waits for a store.".into(),
        Text::Answered => "Answered".into(),
        Text::AnswerOf => "Answer".into(),
        Text::LastFailure => "Last failure".into(),
        Text::NotTriedYet => "not tried yet".into(),
        Text::AuditAbout => "What operators have changed here, and their sign-ins. Each gateway has its own trail.".into(),
        Text::Search => "Search".into(),
        Text::NoEntries => "No entry is in the newest 16 MiB of the trail.".into(),
        Text::Who => "Operator".into(),
        Text::GlobalId => "Global ID".into(),
        Text::When => "When".into(),
        Text::ResultNotKnown => "not known".into(),
        Text::RanOnce => "It ran once. No action is needed.".into(),
        Text::RanTwice => "It ran twice. The second effect must be undone.".into(),
        Text::RanNever => "It did not run.".into(),
        Text::CheckIt => "Record the check".into(),
        Text::CheckedNow => "Recorded. It is no longer listed.".into(),
        Text::NoSuchSuspect => "This gateway has nothing of this number. Each gateway lists its own.".into(),
        Text::InProgress(until) => format!("In progress. Its attempt holds it until {until} UTC; repeats get 409 until then.").into(),
        Text::InProgressThenUnknown(until) => format!("In progress. Its attempt holds it until {until} UTC; without an outcome it becomes unknown then. Repeats get 409.").into(),
        Text::DoneUntil(until) => format!("Done. Repeats get 409 with the result until {until} UTC.").into(),
        Text::UnknownUntil(until) => format!("The outcome is unknown. Repeats get 409 until it is settled, or until {until} UTC.").into(),
        Text::Masked(pointers) => format!("Masked: {pointers}").into(),
        Text::FrozenFor(left) => format!("grants nothing for {left}").into(),
        Text::EpochIs(epoch) => format!("epoch {epoch}").into(),
        Text::TypeChain(chain) => format!("Type the name of the chain: {chain}").into(),
        Text::TypedDiffers(word) => format!("Nothing was changed. Type exactly `{word}`, then repeat it.").into(),
        Text::ChainHasChanged(active, epoch) => format!("Nothing was changed: the chain has changed since the page was opened. Its active engine is `{active}` now, in epoch {epoch}.").into(),
        Text::LastUsed(at) => format!("last used {at}").into(),
    }
}
