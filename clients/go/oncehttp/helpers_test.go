package oncehttp_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

// site is a protected handler behind a real server.
type site struct {
	t          *testing.T
	gateway    *oncegatetest.Gateway
	idempotent *oncehttp.Middleware
	server     *httptest.Server
}

// serve starts a site. The configuration has a client, an operation and a principal unless `change` says otherwise; `outer` are layers outside.
func serve(t *testing.T, handler http.HandlerFunc, change func(*oncehttp.Config), outer ...func(http.Handler) http.Handler) *site {
	t.Helper()
	s := &site{t: t, gateway: oncegatetest.New(t)}
	config := oncehttp.Config{
		Client: s.gateway.Client(), Operation: "parcel.ship", Principal: func(r *http.Request) string { return "customer-1" },
	}
	if change != nil {
		change(&config)
	}
	var err error
	if s.idempotent, err = oncehttp.New(config); err != nil {
		t.Fatal(err)
	}
	protected := s.idempotent.Handler(handler)
	for _, layer := range outer {
		protected = layer(protected)
	}
	s.server = httptest.NewUnstartedServer(protected)
	s.server.Config.ErrorLog = quiet
	s.server.Start()
	t.Cleanup(s.server.Close)
	return s
}

// reply is a response that was read.
type reply struct {
	*http.Response
	text string
}

func (r *reply) code() string {
	var problem oncehttp.Problem
	_ = json.Unmarshal([]byte(r.text), &problem)
	return strings.Trim(problem.Code+" "+problem.State, " ")
}

func (s *site) post(key, body string, fields ...string) *reply {
	s.t.Helper()
	got, err := s.try(key, body, fields...)
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func (s *site) try(key, body string, fields ...string) (*reply, error) {
	request, err := http.NewRequest("POST", s.server.URL+"/parcels?a=1", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	for at := 0; at < len(fields); at += 2 {
		request.Header.Add(fields[at], fields[at+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return &reply{response, string(text)}, err
}

// state is that of the only claim, or none.
func (s *site) state() string {
	claims := s.gateway.Claims()
	switch len(claims) {
	case 0:
		return "none"
	case 1:
		return claims[0].State
	}
	return fmt.Sprintf("%d claims", len(claims))
}

// dial sends a request as text, and returns the connection.
func (s *site) dial(request string) (net.Conn, *bufio.Reader) {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
		s.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for ends := time.Now().Add(20 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(ends) {
			t.Fatal("never: " + what)
		}
	}
}

// slowOutcome is a transport whose outcomes wait for a signal.
type slowOutcome struct {
	http.RoundTripper
	came, goOn chan struct{}
}

func (s *slowOutcome) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/outcome") {
		s.came <- struct{}{}
		<-s.goOn
	}
	return s.RoundTripper.RoundTrip(r)
}

// through makes the client of a configuration call by way of another transport.
func through(t *testing.T, config *oncehttp.Config, transport http.RoundTripper, opts ...oncegate.Option) {
	t.Helper()
	client, err := config.Client.With(append(opts, oncegate.WithTransport(transport))...)
	if err != nil {
		t.Fatal(err)
	}
	config.Client = client
}
