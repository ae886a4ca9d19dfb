//! The texts of the console. One enum has them all, and each language must have every text, so a missing text does not
//! compile.

mod chinese;
mod english;

use std::borrow::Cow;

use axum::http::{HeaderMap, header};

/// A language of the console.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Language {
    /// English.
    English,
    /// Simplified Chinese.
    Chinese,
}

/// The texts in one language.
#[derive(Clone, Copy)]
pub(super) struct Texts(pub(super) Language);

impl Language {
    /// Returns the language that a browser prefers: the first one of `Accept-Language` that the console has, else English.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let accepted = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let known = |tag: &str| {
            let tag = tag.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            // Traditional Chinese is another language for readers.
            let is_traditional = ["zh-tw", "zh-hk", "zh-mo"].contains(&tag.as_str()) || tag.contains("hant");
            match tag.split('-').next() {
                Some("en") => Some(Self::English),
                Some("zh") if !is_traditional => Some(Self::Chinese),
                _ => None,
            }
        };
        accepted.split(',').find_map(known).unwrap_or(Self::English)
    }

    /// Returns its tag for the `lang` of a page.
    pub(super) fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh-Hans",
        }
    }
}

impl Texts {
    /// Returns a text.
    pub(super) fn of(self, text: Text<'_>) -> Cow<'static, str> {
        match self.0 {
            Language::English => english::text(text),
            Language::Chinese => chinese::text(text),
        }
    }
}

/// A text, with the values that it names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Text<'a> {
    // Every page.
    SkipToContent,
    UpFor(&'a str),
    SignOut,
    Overview,
    Attention,
    ThisGateway,
    AsOf(&'a str),
    SameAs,
    Starting,
    Draining,
    // Errors.
    Problem,
    Code,
    Request,
    NotFound,
    NoSuchPage,
    NothingKnownToHaveChanged,
    NoTokens,
    NoTokensWhy,
    NoTokensMake,
    NoTokensThen,
    FormIsOld,
    NotFromThisSite,
    // Sign-in.
    SignIn,
    Token,
    TokenHint,
    WrongToken,
    SessionEnded(&'a str),
    OneMoment,
    GoOn,
    // Attention.
    NothingNeedsYou,
    ThingsNeedYou(usize),
    Store,
    Chain,
    Journal,
    Check,
    CheckAdvice,
    AllKinds,
    Overlaps,
    Doubles,
    Noticed,
    App,
    Operation,
    Why,
    TwoGrants(&'a str),
    SupersededSuccess,
    SupersededUnknown,
    Ours,
    Theirs,
    NoneOpen,
    SeenHere,
    // Engines.
    Engines,
    Engine,
    Since,
    State,
    Answers,
    DoesNotAnswer,
    // Pages of claims, chains, locks, apps, the spool and the audit trail.
    Find,
    Locks,
    Lock,
    Apps,
    Audit,
    Spool,
    Open,
    NotCheckedYet,
    NextPage,
    ScopeStore,
    ScopeApps,
    Reason,
    ReasonHint,
    NoLiveClaim,
    IdOrContents,
    IdOrContentsHint,
    OperationHint,
    OfProxy,
    Claim,
    Timeline,
    Terms,
    WhatMayBeDone,
    Contents,
    ResultTitle,
    ContentsUnknown,
    RoleSeesNoContents,
    RoleChangesNothing,
    SettledAsDone,
    SettledAsNotDone,
    ReleasedNow,
    DoneForEver,
    UnknownForEver,
    BecomesUnknown,
    CanBeClaimed,
    RecordedLate,
    Claimed,
    Attempt,
    Lease,
    Retention,
    UnknownRetention,
    OnLeaseEnd,
    Fence,
    SettleIt,
    SettleWhen,
    ReleaseIt,
    ReleaseDoneWhen,
    ReleaseInProgressWhen,
    ReleaseUnknownWhen,
    ItWasDone,
    NothingHappened,
    WhatYouFound,
    ResultForRepeats,
    ResultHint,
    LookFirst,
    TypeAgain,
    Chains,
    Active,
    Epoch,
    Breaker,
    SwitchingTo,
    Grants,
    ClosedNow,
    NoSuchChain,
    SwitchedNow,
    SwitchIt,
    SwitchChain,
    NewEngine,
    LossAccepted,
    ActiveNow,
    WhatIsLost,
    WorseThanWaiting,
    NoLocks,
    LockName,
    Mode,
    Free,
    Holders,
    Waiting,
    LimitOf,
    Hold,
    LeaseLeft,
    Action,
    EndHold,
    EndHoldWhen,
    HoldIsGone,
    HoldEnded,
    OpenGateway,
    Disabled,
    Enabled,
    Secrets,
    NotUsedYet,
    SpoolAbout,
    SpoolEmpty,
    Answered,
    AnswerOf,
    LastFailure,
    NotTriedYet,
    AuditAbout,
    Search,
    NoEntries,
    Who,
    GlobalId,
    When,
    ResultNotKnown,
    RanOnce,
    RanTwice,
    RanNever,
    CheckIt,
    CheckedNow,
    NoSuchSuspect,
    InProgress(&'a str),
    InProgressThenUnknown(&'a str),
    DoneUntil(&'a str),
    UnknownUntil(&'a str),
    Masked(&'a str),
    FrozenFor(&'a str),
    EpochIs(u64),
    TypeChain(&'a str),
    TypedDiffers(&'a str),
    ChainHasChanged(&'a str, u64),
    LastUsed(&'a str),
    // Items that need a person, waiting callers, and several items at once.
    Unknowns,
    MayHaveRunTwice,
    NoUnknowns,
    SettleAdvice,
    OldestOnly,
    SinceTime(&'a str),
    SpoolHas { entries: usize, bytes: u64 },
    ActiveInEpoch(u64),
    WaitingCalls,
    NobodyWaits,
    CallersWait(usize),
    LongestOnly,
    Callers,
    WaitFor,
    Gateway,
    Configuration,
    WhatToDo,
    DoStoreDown,
    DoGrantsFrozen,
    DoRequirementsUnmet,
    DoJournalFailing,
    DoSpoolWaiting,
    DoAuditFailing,
    DoReloadFailed,
    Choose,
    ChooseAll(usize),
    ChooseSome,
    ChooseOneOperation,
    SettleChosen,
    CheckChosen,
    TypeNumber,
    CheckedSeveral(usize),
    SettledSeveral(usize),
    LeftSeveral(usize),
    SignInAgain,
    // An app, and the configuration.
    LongestRetention,
    Quotas,
    AppNotInForce,
    SecretId,
    Created,
    LastUse,
    OtherOperations,
    OutagePolicies,
    RequestsPerSecond,
    ClaimBytesPerSecond,
    RequestsInFlight,
    ResponseBytes,
    LeftNow(u64),
    UsedNow(u64),
    Unlimited,
    Use,
    AppInFile,
    RotateIt,
    RotateWhen,
    RotateAbout,
    OtherSecrets,
    RevokeOlder,
    RevokeAll,
    NewSecret,
    NewSecretAbout,
    RotatedBefore,
    RevokeIt,
    RevokeAbout,
    RevokedNow,
    DisableIt,
    DisableWhen,
    DisabledNow,
    EnableIt,
    EnableWhen,
    EnabledNow,
    TypeApp(&'a str),
    AppHasChanged,
    SettingsSet,
    NotReloaded,
    ReloadedAt(&'a str),
    ReloadFailed(&'a str),
    RestartNeeded,
    AtRestart,
    AtReload,
    Setting,
    Value,
    Origin,
    ChangesAt,
    // Recent calls.
    Recent,
    RecentAbout,
    EventsLost(u64),
    NoEvents,
    Repeats,
    Mismatches,
    Refusals,
    LateOutcomes,
    SupersededCalls,
    PolicyAnswers,
    ObservedCalls,
    What,
    RepeatGot(&'a str),
    MismatchGot(&'a str),
    CameLate(&'a str),
    SupersededGot(&'a str),
    PolicyAnswered(&'a str),
    WouldGet(&'a str),
    RefusedWith(&'a str),
    StoreAndHere,
    SucceededAt,
    NotHereAnyMore,
    // What callers see.
    Traffic,
    NoCallsYet,
    Now,
    Highest,
    LastHour,
    GrantedCalls,
    RefusedCalls,
    MedianLatency,
    HighLatency,
    PerSecond,
    // Live regions.
    NotLive,
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_first_known_language_of_the_browser_is_taken() {
        for (accepted, language) in [
            ("", Language::English),
            ("de-DE,de;q=0.9", Language::English),
            ("en-GB,zh-CN;q=0.5", Language::English),
            ("zh-CN,zh;q=0.9,en;q=0.8", Language::Chinese),
            ("zh", Language::Chinese),
            ("ZH-Hans-SG", Language::Chinese),
            ("zh-TW,zh-Hant;q=0.9,en;q=0.8", Language::English),
            ("fr,zh-CN;q=0.1", Language::Chinese),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_LANGUAGE, HeaderValue::from_static(accepted));
            assert_eq!(Language::of(&headers), language, "{accepted}");
        }
        assert_eq!(Language::of(&HeaderMap::new()), Language::English);
    }
}
