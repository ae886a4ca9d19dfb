package oncehttp_test

import (
	"bytes"
	"errors"
	"io"
	"log"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

var quiet = log.New(io.Discard, "", 0)

func created(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

func TestAKeyIsBareOrAString(t *testing.T) {
	for _, test := range []struct{ sent, same string }{
		{"abc", `"abc"`}, {" abc ", "abc"}, {`"a\"b\\c"`, `a"b\c`}, {`a"b`, `a"b`}, {strings.Repeat("k", 255), strings.Repeat("k", 255)}, {"a,b", `"a,b"`},
	} {
		s := serve(t, created, nil)
		if got := s.post(test.sent, "one"); got.StatusCode != 201 {
			t.Errorf("%s: %d %s", test.sent, got.StatusCode, got.text)
		}
		if got := s.post(test.same, "one"); got.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("%s: %d %s", test.same, got.StatusCode, got.text)
		}
	}
	s := serve(t, created, nil)
	for _, wrong := range []string{`""`, `"`, `"a`, `"a"b`, `"a\b"`, `"a";x=1`, "a b", `"a b"`, "ä", strings.Repeat("k", 256)} {
		if got := s.post(wrong, "one"); got.StatusCode != 400 || got.code() != "idempotency_key_invalid" {
			t.Errorf("%s: %d %s", wrong, got.StatusCode, got.text)
		}
	}
	if got := s.post("a", "one", "Idempotency-Key", "a"); got.code() != "idempotency_key_invalid" || !strings.Contains(got.text, "twice") {
		t.Error(got.text)
	}
	if s.state() != "none" {
		t.Error(s.state())
	}
}

func TestWrongOptionsAreErrorsThatSayWhatToWrite(t *testing.T) {
	for name, change := range map[string]func(*oncehttp.Config){
		"Client is missing":            func(c *oncehttp.Config) { c.Client = nil },
		"Operation is missing":         func(c *oncehttp.Config) { c.Operation = "" },
		"Principal is missing":         func(c *oncehttp.Config) { c.Principal = nil },
		"exclude each other":           func(c *oncehttp.Config) { c.SharedKeys = true },
		"Methods is empty":             func(c *oncehttp.Config) { c.Methods = []string{} },
		"Fingerprint is empty":         func(c *oncehttp.Config) { c.Fingerprint = []string{} },
		"GET, which is safe":           func(c *oncehttp.Config) { c.Methods = []string{"POST", "GET"} },
		"QUERY, which is safe":         func(c *oncehttp.Config) { c.Methods = []string{"QUERY"} },
		`"post": write`:                func(c *oncehttp.Config) { c.Methods = []string{"post"} },
		`"host": write`:                func(c *oncehttp.Config) { c.Fingerprint = []string{"host"} },
		"body and body:json":           func(c *oncehttp.Config) { c.Fingerprint = []string{"body", "body:json"} },
		`Store has "2x"`:               func(c *oncehttp.Config) { c.Store = []string{"2x"} },
		`Release has "600"`:            func(c *oncehttp.Config) { c.Release = []string{"600"} },
		"Store and Release have 409":   func(c *oncehttp.Config) { c.Store, c.Release = []string{"409"}, []string{"409"} },
		`On5xx is "retry"`:             func(c *oncehttp.Config) { c.On5xx = "retry" },
		`StoreWith has "a b"`:          func(c *oncehttp.Config) { c.StoreWith = []string{"a b"} },
		`StoreWith has "Connection"`:   func(c *oncehttp.Config) { c.StoreWith = []string{"Connection"} },
		`StoreWithout has ""`:          func(c *oncehttp.Config) { c.StoreWithout = []string{""} },
		"BodyBytes and ResponseBytes":  func(c *oncehttp.Config) { c.BodyBytes = -1 },
		"Lease is 1.5ms":               func(c *oncehttp.Config) { c.Lease = 1500 * time.Microsecond },
		"Wait is 2h0m0s":               func(c *oncehttp.Config) { c.Wait = 2 * time.Hour },
		"on_unavailable is \"closed\"": func(c *oncehttp.Config) { c.OnUnavailable = "closed" },
	} {
		s := serve(t, created, nil)
		config := oncehttp.Config{Client: s.gateway.Client(), Operation: "parcel.ship", Principal: func(*http.Request) string { return "a" }}
		change(&config)
		var wrong *oncegate.ArgumentError
		if _, err := oncehttp.New(config); !errors.As(err, &wrong) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOptionsThatAreChangedLaterChangeNothing(t *testing.T) {
	store, release, methods := []string{"201"}, []string{"409"}, []string{"POST"}
	s := serve(t, created, func(c *oncehttp.Config) { c.Store, c.Release, c.Methods = store, release, methods })
	store[0], release[0], methods[0] = "500", "201", "PUT"
	for _, replayed := range []string{"", "true"} {
		if got := s.post("k", "x"); got.StatusCode != 201 || got.Header.Get("Idempotent-Replayed") != replayed {
			t.Error(got.StatusCode, got.Header)
		}
	}
}

func TestWhatARequestIsComparedBy(t *testing.T) {
	form := func(boundary string, file string) (string, string) {
		var out bytes.Buffer
		writer := multipart.NewWriter(&out)
		_ = writer.SetBoundary(boundary)
		_ = writer.WriteField("note", "hi")
		part, _ := writer.CreateFormFile("file", "a.csv")
		_, _ = io.WriteString(part, file)
		_ = writer.Close()
		return out.String(), writer.FormDataContentType()
	}
	one, oneType := form("b1", "FILE-A")
	same, sameType := form("b2", "FILE-A")
	other, otherType := form("b3", "FILE-B")
	for _, test := range []struct {
		name          string
		first, second []string
		isSame        bool
	}{
		{"the same form", []string{one, "Content-Type", oneType}, []string{same, "Content-Type", sameType}, true},
		{"another file", []string{one, "Content-Type", oneType}, []string{other, "Content-Type", otherType}, false},
		{"what is no form is compared by its bytes", []string{"--b1\r\nx", "Content-Type", oneType}, []string{"--b2\r\nx", "Content-Type", sameType}, false},
		{"If-Match", []string{"x", "If-Match", `"1"`}, []string{"x", "If-Match", `"2"`}, false},
		{"an overridden method", []string{"x"}, []string{"x", "X-HTTP-Method-Override", "DELETE"}, false},
		{"other fields", []string{"x", "Accept", "text/html", "User-Agent", "a"}, []string{"x", "Accept", "*/*", "User-Agent", "b"}, true},
	} {
		s := serve(t, created, nil)
		s.post("k", test.first[0], test.first[1:]...)
		got := s.post("k", test.second[0], test.second[1:]...)
		if isSame := got.Header.Get("Idempotent-Replayed") == "true"; isSame != test.isSame || !isSame && got.code() != "fingerprint_mismatch" {
			t.Errorf("%s: %d %s", test.name, got.StatusCode, got.text)
		}
	}
}

func TestThePathIsThatWhichWasSent(t *testing.T) {
	s := serve(t, created, nil, func(next http.Handler) http.Handler { return http.StripPrefix("/parcels", next) })
	for _, target := range []string{"/parcels/a%2Fb", "/parcels/a/b", "http://shop/parcels/a%2Fb", "/parcels/a%2Fb?", "//parcels"} {
		conn, reader := s.dial("POST " + target + " HTTP/1.1\nHost: shop\nIdempotency-Key: k\nContent-Length: 1\n\nx")
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		wanted := map[string]int{"/parcels/a%2Fb": 201, "http://shop/parcels/a%2Fb": 201, "//parcels": 404}[target]
		if wanted == 0 {
			wanted = 422
		}
		if response.StatusCode != wanted {
			t.Errorf("%s: %d", target, response.StatusCode)
		}
		_ = conn.Close()
	}
}

func TestABodyThatCannotBeSeenIsRefused(t *testing.T) {
	partly := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, 2))
			next.ServeHTTP(w, r)
		})
	}
	parsed := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			next.ServeHTTP(w, r)
		})
	}
	limited := func(next http.Handler) http.Handler { return http.MaxBytesHandler(next, 2) }
	for _, test := range []struct {
		name, framing, code string
		status              int
		layer               func(http.Handler) http.Handler
	}{
		{"read in part", "Content-Length: 4\n\na=10", "body_not_seen", 500, partly},
		{"a form that was parsed", "Content-Length: 4\n\na=10", "body_not_seen", 500, parsed},
		{"a chunked form that was parsed", "Transfer-Encoding: chunked\n\n4\na=10\n0\n\n", "body_not_seen", 500, parsed},
		{"longer than an outer layer takes", "Content-Length: 4\n\na=10", "body_too_large", 413, limited},
	} {
		s := serve(t, func(http.ResponseWriter, *http.Request) { t.Error(test.name + ": it ran") }, nil, test.layer)
		_, reader := s.dial("POST / HTTP/1.1\nHost: shop\nIdempotency-Key: k\nContent-Type: application/x-www-form-urlencoded\n" + test.framing)
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatal(test.name, err)
		}
		text, _ := io.ReadAll(response.Body)
		if got := (&reply{response, string(text)}); got.StatusCode != test.status || got.code() != test.code || s.state() != "none" {
			t.Errorf("%s: %d %s", test.name, got.StatusCode, text)
		}
	}
}

func TestTheHandlerGetsTheRequestAsItCame(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for name, wanted := range map[string]string{
			"Idempotency-Key": "k", "Accept-Encoding": "", "Range": "", "If-Range": "", "X-More": "m",
		} {
			if got := r.Header.Get(name); got != wanted {
				t.Errorf("%s: %q", name, got)
			}
		}
		if err := r.ParseForm(); err != nil || r.PostForm.Get("a") != "10" || r.ContentLength != 4 {
			t.Error(err, r.PostForm, r.ContentLength)
		}
	}, nil)
	s.post("k", "a=10", "Content-Type", "application/x-www-form-urlencoded", "Accept-Encoding", "gzip", "Range", "bytes=0-1", "If-Range", `"e"`, "X-More", "m")
}

func TestAnUpgradeOrAGRPCCallWithAKeyIsRefused(t *testing.T) {
	s := serve(t, created, nil)
	for _, fields := range [][]string{{"Connection", "Upgrade", "Upgrade", "websocket"}, {"Content-Type", "application/grpc+proto"}} {
		if got := s.post("k", "x", fields...); got.StatusCode != 501 || got.code() != "not_supported" {
			t.Error(fields, got.StatusCode, got.text)
		}
	}
	// The JDK's client offers this to every server.
	if got := s.post("k", "x", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c"); got.StatusCode != 201 {
		t.Error(got.StatusCode, got.text)
	}
}

func TestWhatIsLeftOutIsPassedAndCounted(t *testing.T) {
	metrics := &counts{}
	s := serve(t, created, func(c *oncehttp.Config) {
		c.When = func(r *http.Request) bool { return r.Header.Get("X-Test") == "" }
		c.Client, _ = c.Client.With(oncegate.WithMetrics(metrics))
	})
	for range 2 {
		if got := s.post("k", "x", "X-Test", "1"); got.StatusCode != 201 || got.Header.Get("Idempotent-Replayed") != "" {
			t.Error(got.StatusCode, got.text)
		}
	}
	if got := s.post("", "x"); got.StatusCode != 201 {
		t.Error(got.StatusCode, got.text)
	}
	s.post("k", "x")
	s.post("k", "x")
	s.post("k", "y")
	if got := metrics.of("parcel.ship"); got != "forwarded:1 mismatch:1 replayed:1 unprotected:3" || s.state() != "succeeded" {
		t.Error(got, s.state())
	}
}
