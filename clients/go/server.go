package oncegate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	// Less than the gateway's own limit, 75 seconds by default.
	idleTimeout    = 50 * time.Second
	idlePerGateway = 64
	// More than any answer of a gateway has by its default limits.
	answerBytesMax = 16 << 20
)

// server is one gateway.
type server struct {
	url       string
	transport http.RoundTripper
}

func newServer(text string) (*server, error) {
	parsed, err := url.Parse(text)
	if err != nil || (parsed.Scheme != "http" && parsed.Scheme != "https") || parsed.Hostname() == "" {
		return nil, argument("not the URL of a gateway: %q; expected http://HOST:PORT or https://HOST:PORT", text)
	}
	if parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		return nil, argument("the URL of a gateway has no user, query or fragment: %q; use WithCredential", parsed.Redacted())
	}
	return &server{url: text, transport: &http.Transport{
		DialContext:           (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost:   idlePerGateway,
		IdleConnTimeout:       idleTimeout,
		DisableCompression:    true,
		ExpectContinueTimeout: time.Second,
	}}, nil
}

func (s *server) closeIdle() {
	if transport, ok := s.transport.(interface{ CloseIdleConnections() }); ok {
		transport.CloseIdleConnections()
	}
}

// answer has the members of all answers of a gateway; those that are not known are ignored.
type answer struct {
	status int
	text   []byte
	sent   time.Time
	at     int

	GlobalID         string            `json:"global_id"`
	Attempt          string            `json:"attempt"`
	Timestamp        int64             `json:"timestamp"`
	Fence            *int64            `json:"fence"`
	State            string            `json:"state"`
	Repeated         bool              `json:"repeated"`
	TakenOver        bool              `json:"taken_over"`
	WouldBe          string            `json:"would_be"`
	ClaimedAt        *time.Time        `json:"claimed_at"`
	ExpiresAt        *time.Time        `json:"expires_at"`
	LeaseMS          int64             `json:"lease_ms"`
	Degraded         string            `json:"degraded"`
	Late             *bool             `json:"late"`
	Result           json.RawMessage   `json:"result"`
	ContentsVerified *bool             `json:"contents_verified"`
	Code             string            `json:"code"`
	Detail           string            `json:"detail"`
	RequestID        string            `json:"request_id"`
	RetryAfterMS     *int64            `json:"retry_after_ms"`
	WaitedMS         int64             `json:"waited_ms"`
	Items            []json.RawMessage `json:"items"`
	Name             string            `json:"name"`
	Mode             string            `json:"mode"`
	Holds            *int64            `json:"holds"`
	Waiting          *int64            `json:"waiting"`
	Limit            int               `json:"limit"`
}

// leaseEnds counts from when the request was sent: the answer may take long. The gateway counts from the end of its wait.
func (a *answer) leaseEnds() time.Time {
	return a.sent.Add(milliseconds(a.WaitedMS)).Add(milliseconds(a.LeaseMS))
}

func (a *answer) retryAfter() time.Duration {
	if a.RetryAfterMS == nil {
		return time.Second
	}
	return time.Duration(*a.RetryAfterMS) * time.Millisecond
}

func (a *answer) rejected() *RejectedError {
	err := &RejectedError{Status: a.status, Code: a.Code, Detail: a.Detail, RequestID: a.RequestID}
	if a.RetryAfterMS != nil {
		err.RetryAfterMS = *a.RetryAfterMS
	}
	return err
}

// send makes one HTTP call. It returns a cause if no gateway answered; it is not known then if one has acted on the call.
func (s *server) send(ctx context.Context, timeout time.Duration, method, path string, headers http.Header, body []byte, genuine func(*answer) bool) (*answer, *Cause) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(limited, method, strings.TrimRight(s.url, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, &Cause{URL: s.url, Kind: KindConnection, Detail: err.Error(), Err: err}
	}
	request.Header = headers
	// Without http.Client there are no redirects.
	response, err := s.transport.RoundTrip(request)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
		_ = response.Body.Close()
	}
	if err != nil {
		kind, detail := kindOf(err), err.Error()
		if kind == KindTimeout {
			detail = fmt.Sprintf("no answer within %s", timeout)
		}
		if kind == KindConnection {
			// The others are of the same age.
			s.closeIdle()
		}
		return nil, &Cause{URL: s.url, Kind: kind, Detail: detail, Err: err}
	}
	read := &answer{status: response.StatusCode, text: text}
	if json.Unmarshal(text, read) == nil && (read.status >= 300 && read.Code != "" || read.status < 300 && genuine(read)) {
		return read, nil
	}
	kind := response.Header.Get("Content-Type")
	if kind == "" {
		kind = "without a content type"
	}
	return nil, &Cause{URL: s.url, Kind: KindNotAGateway, Detail: fmt.Sprintf("answered %d, %.100s", read.status, kind)}
}

func kindOf(err error) string {
	var (
		dns         *net.DNSError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		alert       tls.AlertError
		host        x509.HostnameError
		network     net.Error
	)
	switch {
	case errors.As(err, &dns):
		return KindDNS
	case errors.Is(err, syscall.ECONNREFUSED):
		return KindRefused
	case errors.As(err, &certificate), errors.As(err, &record), errors.As(err, &alert), errors.As(err, &host), errors.Is(err, http.ErrSchemeMismatch):
		return KindTLS
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return KindTimeout
	}
	return KindConnection
}
