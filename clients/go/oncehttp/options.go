package oncehttp

import (
	"fmt"
	"slices"
	"strings"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// safeMethods are passed on: a repeat of them does no harm.
var safeMethods = []string{"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "QUERY"}

var fingerprintParts = []string{"method", "path", "query", "content-type", "if-match", "body"}

func newMiddleware(config Config) (*Middleware, error) {
	m := &Middleware{config: config, runs: newRuns()}
	for _, check := range []func() error{m.setIdentity, m.setMethods, m.setFingerprint, m.setResponses, m.setTimes, m.setClient} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func wrong(format string, values ...any) error {
	return &oncegate.ArgumentError{Detail: "oncehttp: " + fmt.Sprintf(format, values...)}
}

func (m *Middleware) setIdentity() error {
	config := m.config
	switch {
	case config.Client == nil:
		return wrong("Client is missing: pass the one of oncegate.New")
	case config.Operation == "":
		return wrong("Operation is missing: name what the handlers do, such as parcel.ship")
	case config.Principal == nil && !config.SharedKeys:
		return wrong("Principal is missing: return the verified account of the request, or set SharedKeys if all callers share their keys")
	case config.Principal != nil && config.SharedKeys:
		return wrong("Principal and SharedKeys exclude each other: leave one out")
	}
	return nil
}

func (m *Middleware) setMethods() error {
	if m.config.Methods == nil {
		return nil
	}
	if len(m.config.Methods) == 0 {
		return wrong("Methods is empty, so nothing would be protected: leave it out, or name some")
	}
	m.methods = map[string]bool{}
	for _, method := range m.config.Methods {
		if method == "" || method != strings.ToUpper(method) {
			return wrong("Methods has %q: write methods in capitals, such as POST", method)
		}
		if slices.Contains(safeMethods, method) {
			return wrong("Methods has %s, which is safe and never protected: leave it out", method)
		}
		m.methods[method] = true
	}
	return nil
}

func (m *Middleware) setFingerprint() error {
	parts := m.config.Fingerprint
	if parts == nil {
		parts = fingerprintParts
	}
	if len(parts) == 0 {
		return wrong("Fingerprint is empty, so any request would repeat any other: leave it out, or name some parts")
	}
	m.fingerprint = map[string]bool{}
	for _, part := range parts {
		if part != "body:json" && !slices.Contains(fingerprintParts, part) {
			return wrong("Fingerprint has %q: write some of %s, body:json", part, strings.Join(fingerprintParts, ", "))
		}
		m.fingerprint[part] = true
	}
	if m.fingerprint["body"] && m.fingerprint["body:json"] {
		return wrong("Fingerprint has body and body:json: leave one out")
	}
	return nil
}

func (m *Middleware) setResponses() (err error) {
	if m.config.BodyBytes < 0 || m.config.ResponseBytes < 0 {
		return wrong("BodyBytes and ResponseBytes must not be negative")
	}
	if m.config.BodyBytes == 0 {
		m.config.BodyBytes = 1 << 20
	}
	if m.config.ResponseBytes == 0 {
		m.config.ResponseBytes = 45 << 10
	}
	if m.rules, err = newStatusRules(m.config.Store, m.config.Release, m.config.On5xx); err != nil {
		return err
	}
	m.fields, err = newStoredFields(m.config.StoreWith, m.config.StoreWithout)
	return err
}

func (m *Middleware) setTimes() error {
	for name, length := range map[string]time.Duration{
		"Lease": m.config.Lease, "Retention": m.config.Retention, "Wait": m.config.Wait, "ExchangeMax": m.config.ExchangeMax,
		"ClaimWithin": m.config.ClaimWithin, "SettleWithin": m.config.SettleWithin,
	} {
		if length < 0 || length != oncegate.Forever && length%time.Millisecond != 0 {
			return wrong("%s is %s: a duration is whole milliseconds", name, length)
		}
	}
	if m.config.Wait > time.Hour {
		return wrong("Wait is %s: at most an hour", m.config.Wait)
	}
	if m.config.ExchangeMax == 0 {
		m.config.ExchangeMax = 5 * time.Minute
	}
	// A run that is killed, or whose outcome no gateway takes in time, may have had its effect.
	m.claim = append(m.claim, oncegate.UnknownOnLeaseEnd())
	if m.config.Lease != 0 {
		m.claim = append(m.claim, oncegate.Lease(m.config.Lease))
	}
	if m.config.Retention != 0 {
		m.claim = append(m.claim, oncegate.Retention(m.config.Retention))
	}
	return nil
}

func (m *Middleware) setClient() (err error) {
	var opts []oncegate.Option
	if m.config.ClaimWithin != 0 {
		opts = append(opts, oncegate.WithClaimWithin(m.config.ClaimWithin))
	}
	if m.config.SettleWithin != 0 {
		opts = append(opts, oncegate.WithSettleWithin(m.config.SettleWithin))
	}
	if m.config.OnUnavailable != "" {
		opts = append(opts, oncegate.WithOnUnavailable(m.config.OnUnavailable))
	}
	m.client, err = m.config.Client.With(opts...)
	if err == nil && !m.client.Enabled() {
		m.config.Disabled = true
	}
	return err
}
