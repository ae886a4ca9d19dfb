// Package oncehttp is net/http middleware: a request with an Idempotency-Key runs once, and its repeats get the stored response.
package oncehttp

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// OutcomeHeader may be set by the handler to decide itself: success, failure (nothing happened) or unknown. It is not sent on.
const OutcomeHeader = "Oncegate-Outcome"

// storedBytesMax is the longest body that is stored: with its base64 it fits into a result.
const storedBytesMax = 45 << 10

// Config says which requests are the same.
type Config struct {
	Client *oncegate.Client
	// Operation names what the handler does, such as order.submit. A different handler has a different name.
	Operation string
	// Principal distinguishes callers, so that no caller gets the response of another with the same key: the verified account of the request, never an address.
	Principal func(*http.Request) (string, error)
	// Required answers 400 to a request without a key. Otherwise it is passed on unprotected.
	Required bool
	// Options are the terms of the claims.
	Options []oncegate.ClaimOption
	// BodyBytesMax limits the body of a request with a key. Default 1 MiB.
	BodyBytesMax int64
}

// response is what repeats get.
type response struct {
	Status  int         `json:"status"`
	Headers http.Header `json:"headers"`
	Body    []byte      `json:"body"`
}

var errUnknown = errors.New("the response does not say what happened")

// neverStored belongs to one connection or one caller.
var neverStored = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade", "Www-Authenticate",
}

// Middleware protects POST, PATCH and other unsafe methods. The response is sent when its outcome is reported.
//
// 2xx, 301 to 303 and 4xx are final, and repeats get them; 307, 308, 401, 407, 408, 421, 425 and 429 release the key; 5xx leaves the outcome unknown.
// A response of more than 45 KiB is not stored: its repeats get 409.
func Middleware(config Config) func(http.Handler) http.Handler {
	if config.Client == nil || config.Operation == "" || config.Principal == nil {
		panic("oncehttp: Client, Operation and Principal are needed")
	}
	if config.BodyBytesMax <= 0 {
		config.BodyBytesMax = 1 << 20
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { config.serve(next, w, r) })
	}
}

func (config *Config) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		next.ServeHTTP(w, r)
		return
	}
	keys := r.Header.Values("Idempotency-Key")
	if len(keys) == 0 && !config.Required {
		next.ServeHTTP(w, r)
		return
	}
	key, ok := keyOf(keys)
	if !ok {
		problem(w, http.StatusBadRequest, "idempotency_key_invalid", "Send one Idempotency-Key of 1 to 255 visible ASCII characters.", 0)
		return
	}
	principal, err := config.Principal(r)
	if err != nil || principal == "" {
		problem(w, http.StatusBadRequest, "principal_missing", "The caller is not known.", 0)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, config.BodyBytesMax))
	if err != nil {
		problem(w, http.StatusRequestEntityTooLarge, "body_too_large", "The body is too long or was cut off.", 0)
		return
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	recorded := &recorder{to: w, header: http.Header{}}
	options := append([]oncegate.ClaimOption{oncegate.Fingerprint(oncegate.Map{
		"method": r.Method, "path": r.URL.EscapedPath(), "query": r.URL.RawQuery, "body": digest(string(body)),
	})}, config.Options...)
	contents := oncegate.Map{"key": key, "principal": digest(principal)}
	ctx := oncegate.ContextWithTraceparent(r.Context(), r.Header.Get("Traceparent"))
	result, err := config.Client.Once(ctx, config.Operation, contents, func(_ context, grant *oncegate.Grant) (any, error) {
		next.ServeHTTP(recorded, r.WithContext(withGrant(r.Context(), grant)))
		return recorded.end()
	}, options...)
	if recorded.began {
		// The response is sent even if its report failed.
		recorded.send()
		return
	}
	answer(w, result, err)
}

// answer answers a request whose handler did not run.
func answer(w http.ResponseWriter, result oncegate.Result, err error) {
	var rejected *oncegate.RejectedError
	switch {
	case errors.As(err, &rejected) && rejected.Status == http.StatusTooManyRequests:
		after := time.Duration(rejected.RetryAfterMS) * time.Millisecond
		problem(w, http.StatusTooManyRequests, "quota_exceeded", "Too many requests: repeat after Retry-After with the same key.", max(after, time.Second))
		return
	case err != nil:
		problem(w, http.StatusServiceUnavailable, "unavailable", "Nothing was done: repeat later with the same key.", time.Second)
		return
	}
	duplicate, ok := result.(*oncegate.Duplicate)
	if !ok {
		problem(w, http.StatusUnprocessableEntity, "idempotency_key_reused", "The key was used for another request: use a new one.", 0)
		return
	}
	switch duplicate.State {
	case oncegate.InProgress:
		problem(w, http.StatusConflict, "in_progress", "The request is being handled: repeat after Retry-After.", max(duplicate.RetryAfter, time.Second))
	case oncegate.Succeeded:
		replay(w, duplicate)
	default:
		problem(w, http.StatusConflict, "unknown", "The outcome of the request is being checked.", 0)
	}
}

func replay(w http.ResponseWriter, duplicate *oncegate.Duplicate) {
	var stored response
	if len(duplicate.Result) == 0 || duplicate.Decode(&stored) != nil || stored.Status < 200 || stored.Status > 599 {
		problem(w, http.StatusConflict, "response_not_stored", "The request has succeeded, but its response was not stored.", 0)
		return
	}
	for name, values := range stored.Headers {
		w.Header()[name] = values
	}
	w.Header().Set("Idempotent-Replayed", "true")
	w.WriteHeader(stored.Status)
	_, _ = w.Write(stored.Body)
}

// keyOf accepts a structured-field string and the same bare text as the same key.
func keyOf(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	key := strings.TrimSpace(values[0])
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(key[1 : len(key)-1])
	}
	for _, char := range []byte(key) {
		if char < 0x21 || char > 0x7e {
			return "", false
		}
	}
	return key, key != "" && len(key) <= 255
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func problem(w http.ResponseWriter, status int, code, detail string, after time.Duration) {
	text, err := json.Marshal(map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "code": code, "detail": detail})
	if err != nil {
		slog.Error("oncehttp: problem not written", "error", err)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	if after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(status)
	_, _ = w.Write(text)
}
