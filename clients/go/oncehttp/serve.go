package oncehttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

const keyHeader = "Idempotency-Key"

// preferredMax bounds the wait that a caller asks for, unless the middleware itself waits longer.
const preferredMax = 20 * time.Second

// Serve protects one request, for adapters of frameworks. Next gets the writer and the request of the handler. It must have answered the error that it
// returns: the answer is recorded, ReleaseOn sees the error, and Serve returns it.
func (m *Middleware) Serve(w http.ResponseWriter, r *http.Request, next func(http.ResponseWriter, *http.Request) error) error {
	keys := r.Header[keyHeader]
	outer := Grant(r.Context())
	if m.config.Disabled || outer != nil && slices.Equal(keys, []string{outer.key}) {
		return next(w, r)
	}
	if slices.Contains(safeMethods, r.Method) {
		if len(keys) == 0 || !overridesMethod(r.Header) || m.config.When != nil && !m.config.When(r) {
			return next(w, r)
		}
		e := &exchange{Middleware: m, w: w, r: r, next: next}
		return e.refuse(problem("ambiguous_target", "The request has a key and a safe method that a field overrides. Send it with the method that is meant."))
	}
	if m.methods != nil && !m.methods[r.Method] || m.config.When != nil && !m.config.When(r) {
		if len(keys) > 0 {
			m.count("unprotected")
		}
		return next(w, r)
	}
	if len(keys) == 0 && !m.config.Required {
		m.count("unprotected")
		return next(w, r)
	}
	// Outer layers keep their request.
	ctx := r.Context()
	if traceparent := r.Header.Get("Traceparent"); traceparent != "" {
		ctx = oncegate.ContextWithTraceparent(ctx, traceparent)
	}
	r = r.WithContext(ctx)
	e := &exchange{Middleware: m, w: w, r: r, next: next}
	if p := e.prepare(keys); p != nil {
		return e.refuse(p)
	}
	return e.claimAndRun()
}

// exchange is one request with a key.
type exchange struct {
	*Middleware
	w    http.ResponseWriter
	r    *http.Request
	next func(http.ResponseWriter, *http.Request) error

	contents oncegate.Map
	body     []byte
}

func (m *Middleware) count(result string) { m.client.Handled(m.config.Operation, result) }

func (m *Middleware) emit(ctx context.Context, name string, level slog.Level, fields ...slog.Attr) {
	m.client.Emit(ctx, oncegate.Event{Name: name, Operation: m.config.Operation, Level: level, Fields: fields})
}

// prepare reads the key, the principal and the body. It returns the refusal of a request that cannot be protected.
func (e *exchange) prepare(keys []string) *Problem {
	key, wrong := keyOf(keys)
	if wrong != "" {
		p := problem("idempotency_key_invalid", wrong)
		if len(keys) == 0 {
			p.result = "no_key"
		}
		return p
	}
	if isConversation(e.r) {
		return problem("not_supported", "A request with an Idempotency-Key cannot become a WebSocket or a gRPC call; send it without the key.")
	}
	principal := ""
	if !e.config.SharedKeys {
		if principal = e.config.Principal(e.r); principal == "" {
			return problem("principal_missing", "A request with an Idempotency-Key needs a caller that is known: authenticate it.")
		}
	}
	body, p := e.readBody(e.r)
	if p != nil {
		if p.Code == "body_not_seen" {
			e.emit(e.r.Context(), p.Code, slog.LevelError, slog.String("path", e.r.URL.Path))
		}
		return p
	}
	e.body = body
	e.contents = oncegate.Map{"key": key, "principal": digest([]byte(principal))}
	return nil
}

// isConversation reports whether the response to a request cannot be recorded: WebSocket and gRPC.
func isConversation(r *http.Request) bool {
	const grpc = "application/grpc"
	mediaType := r.Header.Get("Content-Type")
	return has(r.Header["Upgrade"], "websocket") || len(mediaType) >= len(grpc) && strings.EqualFold(mediaType[:len(grpc)], grpc)
}

// refuse answers a request that is not run; in observe mode it only counts it.
func (e *exchange) refuse(p *Problem) error {
	e.count(p.result)
	if e.config.Observe {
		return e.next(e.w, e.r)
	}
	p.writeHeader(e.w)
	if e.config.Render != nil {
		e.config.Render(e.w, e.r, *p)
	} else {
		p.write(e.w)
	}
	return nil
}

func (e *exchange) claimAndRun() error {
	result, waited, err := e.claimed()
	switch result := result.(type) {
	case *oncegate.Grant:
		e.count("forwarded")
		return e.run(result)
	case *oncegate.Duplicate:
		if waited > 0 {
			e.w.Header().Add("Preference-Applied", "wait="+strconv.FormatInt(int64((waited+time.Second-1)/time.Second), 10))
		}
		if result.Degraded != "" {
			e.w.Header().Set(degradedHeader, result.Degraded)
		}
		return e.repeat(result)
	case *oncegate.Mismatch:
		return e.refuse(problemOf(&oncegate.MismatchError{Mismatch: result}))
	}
	var rejected *oncegate.RejectedError
	if errors.As(err, &rejected) && rejected.Status != http.StatusTooManyRequests {
		e.emit(e.r.Context(), "rejected", slog.LevelError, slog.Int("status", rejected.Status), slog.String("code", rejected.Code),
			slog.String("detail", rejected.Detail))
	}
	p := problemOf(err)
	if p == nil {
		e.emit(e.r.Context(), "claim_failed", slog.LevelError, slog.Any("error", err))
		p = unavailable()
	}
	return e.refuse(p)
}

// claimed claims, whether the caller stays or not; only its wait for another request ends with it. It returns the wait that the caller asked for and got.
func (e *exchange) claimed() (oncegate.Result, time.Duration, error) {
	ctx := context.WithoutCancel(e.r.Context())
	options := append([]oncegate.ClaimOption{oncegate.Fingerprint(e.fingerprintOf(e.r, e.body))}, e.claim...)
	result, err := e.client.Claim(ctx, e.config.Operation, e.contents, options...)
	duplicate, ok := result.(*oncegate.Duplicate)
	wait, preferred := e.wait()
	if !ok || duplicate.State != oncegate.InProgress || wait <= 0 || e.config.Observe {
		return result, 0, err
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.r.Context(), cancel)()
	go func() {
		select {
		case <-e.runs.closing:
			cancel()
		case <-waiting.Done():
		}
	}()
	later, err := e.client.Claim(waiting, e.config.Operation, e.contents, append(options, oncegate.Wait(wait))...)
	if err != nil && errors.Is(err, context.Canceled) {
		// The server shuts down, or the request has ended: without an answer it would be a 200.
		return result, 0, nil
	}
	if !preferred {
		wait = 0
	}
	return later, wait, err
}

// wait returns the time that a repeat waits for the first request, and reports if the caller prefers it (RFC 7240).
func (e *exchange) wait() (time.Duration, bool) {
	for _, line := range e.r.Header["Prefer"] {
		for _, preference := range strings.Split(line, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			name, value, _ := strings.Cut(preference, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			seconds, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 32)
			if err != nil {
				return e.config.Wait, false
			}
			return min(time.Duration(seconds)*time.Second, max(e.config.Wait, preferredMax)), true
		}
	}
	return e.config.Wait, false
}

// repeat answers a repeat.
func (e *exchange) repeat(duplicate *oncegate.Duplicate) error {
	if duplicate.State != oncegate.Succeeded {
		return e.refuse(ofDuplicate(duplicate))
	}
	stored := readStored(duplicate.Result)
	if e.config.Observe && stored != nil {
		e.count("replayed")
		return e.next(e.w, e.r)
	}
	if stored == nil || !stored.replay(e.w, e.r, e.fields) {
		return e.refuse(ofNotStored(stored, e.fields))
	}
	e.count("replayed")
	return nil
}
