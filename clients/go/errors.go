package oncegate

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// Error is implemented by all errors of this package, for errors.As.
type Error interface {
	error
	isOncegate()
}

// ErrNothingHappened is returned, alone or wrapped, by work that had no effect: the operation is released at once.
var ErrNothingHappened = errors.New("nothing happened")

// NothingHappened wraps an error of work that had no effect. errors.Is finds both it and ErrNothingHappened.
func NothingHappened(cause error) error {
	return fmt.Errorf("%w: %w", ErrNothingHappened, cause)
}

// Kinds of a Cause.
const (
	KindDNS         = "dns"
	KindRefused     = "refused"
	KindTimeout     = "timeout"
	KindTLS         = "tls"
	KindConnection  = "connection"
	KindNotAGateway = "not_a_gateway"
	KindAnswer      = "answer"
	KindTooLate     = "too_late"
)

// Cause is the last failure of one gateway.
type Cause struct {
	URL string
	// Kind is dns, refused, timeout, tls, connection (closed or broken), not_a_gateway (something else answered: check the URL),
	// answer (the gateway answered 429 or 5xx) or too_late (the grant or hold arrived after its lease had ended).
	Kind   string
	Detail string
	// Status, Code and RequestID are those of the answer, if the gateway gave one.
	Status    int
	Code      string
	RequestID string
	// Err is the error of the network, if that was it.
	Err error
}

func (c Cause) String() string {
	return c.URL + ": " + c.Kind + ": " + c.Detail
}

// LogValue returns the cause as text.
func (c Cause) LogValue() slog.Value { return slog.StringValue(c.String()) }

// UnavailableError says that no gateway answered in time. The work was not started.
type UnavailableError struct {
	// Causes holds the last failure of each gateway that was tried.
	Causes []Cause
	// MayHaveActed says that a gateway may have done what was asked, and that its answer was lost: a claim may hold until it ends.
	MayHaveActed bool
}

func (e *UnavailableError) Error() string {
	causes := make([]string, len(e.Causes))
	for at, cause := range e.Causes {
		causes[at] = cause.String()
	}
	return "oncegate: no gateway answered: " + strings.Join(causes, "; ")
}

// Unwrap returns the errors of the network.
func (e *UnavailableError) Unwrap() []error {
	var errs []error
	for _, cause := range e.Causes {
		if cause.Err != nil {
			errs = append(errs, cause.Err)
		}
	}
	return errs
}

// RejectedError is a 4xx: a mistake of the caller, or a quota (429) that was still used up when time was over. The code identity_differs is
// that of a grant of another identity than the client's own, or of another lock: it was released or withdrawn, and the work was not run.
type RejectedError struct {
	Status    int
	Code      string
	Detail    string
	RequestID string
	// RetryAfterMS is set on a 429.
	RetryAfterMS int64
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("oncegate: rejected: %d %s: %s", e.Status, e.Code, e.Detail)
}

// OutcomeRefusedError is a 409 on the outcome. After a success, superseded means perhaps done twice: raise an alarm.
type OutcomeRefusedError struct {
	Code string
	// Result is what the work returned.
	Result any
}

func (e *OutcomeRefusedError) Error() string {
	return "oncegate: the outcome was refused: " + e.Code
}

// NotSettledError says that the work is done, and no gateway has accepted its outcome.
type NotSettledError struct {
	// Report is JSON text: keep it, and pass it to Client.Settle later.
	Report string
	// Result is what the work returned.
	Result any
	// Err is an *UnavailableError or a *RejectedError.
	Err error
}

func (e *NotSettledError) Error() string {
	return "oncegate: no gateway has accepted the outcome: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *NotSettledError) Unwrap() error { return e.Err }

// NotCanonicalError says that others could read the contents as something else, or that they hold no value. Nothing was sent.
type NotCanonicalError struct {
	Reason string
	// Path is $, then .name or [0] for each step.
	Path   string
	Detail string
}

func (e *NotCanonicalError) Error() string {
	return fmt.Sprintf("oncegate: contents are not canonical at %s: %s", e.Path, e.Detail)
}

// LockNotAcquiredError says that the lock was held until the wait was over (lock_held), or that it was refused (upgrade_refused,
// limit_differs, withdrawn).
type LockNotAcquiredError struct {
	Name         string
	Code         string
	RetryAfterMS int64
	// Limit is the one in use, with limit_differs; else 0.
	Limit int
}

func (e *LockNotAcquiredError) Error() string {
	if e.Limit != 0 {
		return fmt.Sprintf("oncegate: lock %s was not acquired: %s; its holders have a limit of %d", e.Name, e.Code, e.Limit)
	}
	return fmt.Sprintf("oncegate: lock %s was not acquired: %s", e.Name, e.Code)
}

// ResultNotStoredError says that an operation has succeeded before, and that its result was not stored.
type ResultNotStoredError struct {
	GlobalID string
	// Omitted says why: too_large, not_serialisable or refused.
	Omitted string
}

func (e *ResultNotStoredError) Error() string {
	return "oncegate: the operation has succeeded before, and its result was not stored: " + e.Omitted
}

// DuplicateError is a Duplicate as an error: another attempt is running, or its outcome is unknown.
type DuplicateError struct{ Duplicate *Duplicate }

func (e *DuplicateError) Error() string {
	return "oncegate: the operation is a duplicate: " + e.Duplicate.State
}

// MismatchError is a Mismatch as an error.
type MismatchError struct{ Mismatch *Mismatch }

func (e *MismatchError) Error() string {
	return "oncegate: the operation was claimed with something else: " + e.Mismatch.Code
}

func (*ResultNotStoredError) isOncegate() {}
func (*DuplicateError) isOncegate()       {}
func (*MismatchError) isOncegate()        {}
func (*UnavailableError) isOncegate()     {}
func (*RejectedError) isOncegate()        {}
func (*OutcomeRefusedError) isOncegate()  {}
func (*NotSettledError) isOncegate()      {}
func (*NotCanonicalError) isOncegate()    {}
func (*LockNotAcquiredError) isOncegate() {}

// ArgumentError is a wrong URL, option or report. Nothing was sent.
type ArgumentError struct {
	Detail string
}

func (e *ArgumentError) Error() string { return "oncegate: " + e.Detail }

func (*ArgumentError) isOncegate() {}

func argument(format string, values ...any) *ArgumentError {
	return &ArgumentError{fmt.Sprintf(format, values...)}
}
