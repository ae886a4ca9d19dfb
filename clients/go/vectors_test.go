package oncegate

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"
)

const vectors = "../vectors"

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(path, err)
	}
}

// ---- Contents.

var errNotInGo = errors.New("Go has no such value")

type withoutNames struct {
	OrderID string
}

func typed(t *testing.T, value any) (any, error) {
	switch value := value.(type) {
	case []any:
		list := make([]any, len(value))
		for at, item := range value {
			var err error
			if list[at], err = typed(t, item); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		if len(value) == 1 {
			for name, inner := range value {
				if strings.HasPrefix(name, "$") {
					return typedValue(t, name, inner)
				}
			}
		}
		record := map[string]any{}
		for name, item := range value {
			var err error
			if record[name], err = typed(t, item); err != nil {
				return nil, err
			}
		}
		return record, nil
	}
	return value, nil
}

func typedValue(t *testing.T, name string, inner any) (any, error) {
	text, _ := inner.(string)
	switch name {
	case "$int":
		if number, err := strconv.ParseInt(text, 10, 64); err == nil {
			return number, nil
		}
		number, ok := new(big.Int).SetString(text, 10)
		if !ok {
			t.Fatal(text)
		}
		return number, nil
	case "$decimal":
		return Decimal(text), nil
	case "$float":
		number, err := strconv.ParseFloat(text, 64)
		return number, err
	case "$instant":
		return time.Parse(time.RFC3339Nano, text)
	case "$date":
		return Date(text), nil
	case "$uuid":
		return UUID(text), nil
	case "$json":
		return JSONText(text), nil
	case "$utf16":
		bytes, err := hex.DecodeString(text)
		var out []byte
		for at := 0; at < len(bytes); at += 2 {
			unit := rune(bytes[at])<<8 | rune(bytes[at+1])
			if utf16.IsSurrogate(unit) {
				out = append(out, 0xe0|byte(unit>>12), 0x80|byte(unit>>6&0x3f), 0x80|byte(unit&0x3f))
			} else {
				out = append(out, string(unit)...)
			}
		}
		return string(out), err
	case "$bytes":
		return hex.DecodeString(text)
	case "$set":
		return map[string]struct{}{"a": {}}, nil
	case "$object":
		return withoutNames{"A-1001"}, nil
	case "$int_key":
		return map[int]string{1: "x"}, nil
	case "$local":
		return nil, errNotInGo
	}
	t.Fatal("unknown value", name)
	return nil, nil
}

func TestContentsHaveOneCanonicalFormInEveryLanguage(t *testing.T) {
	var table struct {
		AppKey    string `json:"app_key"`
		Operation string
		Accepted  []struct {
			Name, Canonical string
			Input           any
			GlobalID        string `json:"global_id"`
		}
		Refused []struct {
			Name, Reason, Path string
			Input              any
		}
	}
	readJSON(t, filepath.Join(vectors, "contents.json"), &table)
	for _, vector := range table.Accepted {
		t.Run(vector.Name, func(t *testing.T) {
			input, err := typed(t, vector.Input)
			if err != nil {
				t.Fatal(err)
			}
			text, err := Canonical(input)
			if err != nil || text != vector.Canonical {
				t.Fatalf("%q, %v; expected %q", text, err, vector.Canonical)
			}
			if id, err := GlobalID(table.AppKey, table.Operation, input); err != nil || id != vector.GlobalID {
				t.Fatal(id, err)
			}
			if again, err := Canonical(JSONText(text)); err != nil || again != text {
				t.Fatalf("a canonical form is its own: %q, %v", again, err)
			}
		})
	}
	for _, vector := range table.Refused {
		t.Run(vector.Name, func(t *testing.T) {
			input, err := typed(t, vector.Input)
			if errors.Is(err, errNotInGo) {
				t.Skip(err)
			}
			var refused *NotCanonicalError
			if text, err := Canonical(input); !errors.As(err, &refused) || refused.Reason != vector.Reason || refused.Path != vector.Path {
				t.Fatalf("%q, %#v; expected %s at %s", text, err, vector.Reason, vector.Path)
			}
		})
	}
}

func TestGlobalIDsAreThoseOfTheGateway(t *testing.T) {
	var table struct {
		Accepted []struct {
			AppKey       string `json:"app_key"`
			Operation    string
			ContentsJSON string `json:"contents_json"`
			Canonical    string
			GlobalID     string `json:"global_id"`
		}
		Refused []struct {
			ContentsJSON string `json:"contents_json"`
			Why          string
		}
	}
	readJSON(t, "../../tests/vectors/global_id.json", &table)
	for _, vector := range table.Accepted {
		text, err := Canonical(JSONText(vector.ContentsJSON))
		if err != nil || text != vector.Canonical {
			t.Errorf("%s: %q, %v", vector.ContentsJSON, text, err)
		}
		if id, err := GlobalID(vector.AppKey, vector.Operation, JSONText(vector.ContentsJSON)); err != nil || id != vector.GlobalID {
			t.Errorf("%s: %s, %v", vector.ContentsJSON, id, err)
		}
	}
	for _, vector := range table.Refused {
		if text, err := Canonical(JSONText(vector.ContentsJSON)); err == nil {
			t.Errorf("%s: accepted as %s", vector.Why, text)
		}
	}
}

// ---- Behaviour.

type object = map[string]any

type behaviourCase struct {
	Name      string
	Needs     []string
	Options   object
	Exchanges []struct {
		At      int
		Expect  any
		Answer  any
		AfterMS int `json:"after_ms"`
	}
	Calls []struct {
		Call             map[string]object
		Work             []object
		CancelAtExchange int `json:"cancel_at_exchange"`
		Expected         object
		Runs             *int
		Events           []any
	}
}

type commonVectors struct {
	Options  object
	Call     map[string]object
	Work     []object
	Requests map[string]object
	Answers  map[string]object
}

func TestBehaviourIsTheSameInEveryLanguage(t *testing.T) {
	var common commonVectors
	readJSON(t, filepath.Join(vectors, "behaviour", "common.json"), &common)
	files, err := filepath.Glob(filepath.Join(vectors, "behaviour", "*.json"))
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == "common.json" {
			continue
		}
		var table struct{ Cases []behaviourCase }
		readJSON(t, file, &table)
		for _, vector := range table.Cases {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".json")+"/"+vector.Name, func(t *testing.T) {
				t.Parallel()
				runCase(t, &common, &vector)
			})
		}
	}
}

// script plays the gateways of one case.
type script struct {
	t      *testing.T
	common *commonVectors
	vector *behaviourCase

	mu       sync.Mutex
	next     int
	answered []chan struct{}
	read     []chan struct{}
	last     time.Time
	urls     []string
	values   map[string]any
	failed   []string
}

func (s *script) fail(format string, values ...any) {
	s.failed = append(s.failed, fmt.Sprintf(format, values...))
}

func merged(base, over object) object {
	out := object{}
	for name, value := range base {
		out[name] = value
	}
	for name, value := range over {
		inner, ok := value.(object)
		outer, both := out[name].(object)
		if ok && both && (name == "body" || name == "headers") {
			value = merged(outer, inner)
		}
		out[name] = value
	}
	return out
}

func used(table map[string]object, value any) object {
	switch value := value.(type) {
	case string:
		if named, ok := table[value]; ok {
			return named
		}
		return object{"accident": value}
	case object:
		if name, ok := value["use"].(string); ok {
			return merged(table[name], value)
		}
		return value
	}
	return object{}
}

// filled replaces placeholders by their values.
func (s *script) filled(value any) any {
	switch value := value.(type) {
	case string:
		for name, known := range s.values {
			if text, ok := known.(string); ok {
				value = strings.ReplaceAll(value, name, text)
			}
		}
		for at, url := range s.urls {
			value = strings.ReplaceAll(value, "$url"+strconv.Itoa(at), url)
		}
		return value
	case object:
		out := object{}
		for name, inner := range value {
			out[name] = s.filled(inner)
		}
		return out
	case []any:
		out := make([]any, len(value))
		for at, inner := range value {
			out[at] = s.filled(inner)
		}
		return out
	}
	return value
}

// matches compares, and keeps the values of placeholders.
func (s *script) matches(expected, got any) bool {
	switch expected := expected.(type) {
	case string:
		if expected == "$rest" {
			text, ok := got.(string)
			return ok && (strings.HasSuffix(text, "ms") || strings.HasSuffix(text, "s"))
		}
		if strings.HasPrefix(expected, "$") && !strings.HasPrefix(expected, "$url") {
			if _, known := s.values[expected]; !known {
				for _, other := range s.values {
					if other == got {
						return false
					}
				}
				s.values[expected] = got
				if nonce, ok := got.(string); ok && expected == "$nonce" {
					hash := sha256.Sum256([]byte("1792488615123456-" + nonce))
					s.values["$attempt_hash"] = hex.EncodeToString(hash[:4])
				}
				return true
			}
		}
		return s.filled(expected) == got
	case object:
		record, ok := got.(object)
		if !ok {
			return false
		}
		for name, value := range expected {
			if !s.matches(value, record[name]) {
				return false
			}
		}
		for name, value := range record {
			if _, there := expected[name]; !there && value != nil {
				return false
			}
		}
		return true
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(expected) {
			return false
		}
		for at := range expected {
			if !s.matches(expected[at], list[at]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(expected, got)
}

func (s *script) serve(at int, conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		if !s.exchange(at, request, body, conn) {
			return
		}
	}
}

// exchange plays one, and reports if the connection stays open.
func (s *script) exchange(at int, request *http.Request, body []byte, conn net.Conn) bool {
	s.mu.Lock()
	number := s.next
	s.next++
	if number >= len(s.vector.Exchanges) {
		s.fail("one request too many: %s %s %s", request.Method, request.URL.Path, body)
		s.mu.Unlock()
		return false
	}
	exchange := s.vector.Exchanges[number]
	expected := used(s.common.Requests, exchange.Expect)
	if at != exchange.At {
		s.fail("request %d came to gateway %d", number+1, at)
	}
	if request.Method != expected["method"] || request.URL.Path != expected["path"] {
		s.fail("request %d is %s %s, not %v", number+1, request.Method, request.URL.Path, expected)
	}
	headers, _ := expected["headers"].(object)
	for name, value := range headers {
		if request.Header.Get(name) != s.filled(value) {
			s.fail("request %d has %s: %q", number+1, name, request.Header.Get(name))
		}
	}
	var got any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &got); err != nil {
			s.fail("request %d is not JSON: %s", number+1, body)
		}
	}
	if wanted, ok := expected["body"]; ok && !s.matches(wanted, got) {
		s.fail("request %d has the body %s, not %v", number+1, body, s.filled(wanted))
	}
	if early := time.Duration(exchange.AfterMS)*time.Millisecond - time.Since(s.last); exchange.AfterMS > 0 && early > 0 {
		s.fail("request %d came %s too early", number+1, early)
	}
	answer := s.filled(used(s.common.Answers, exchange.Answer)).(object)
	s.mu.Unlock()
	close(s.read[number])

	if delay, ok := answer["delay_ms"].(float64); ok {
		time.Sleep(time.Duration(delay) * time.Millisecond)
	}
	if answer["accident"] != "silence" {
		// Before it is written: the client may have it before the write returns.
		s.mu.Lock()
		s.last = time.Now()
		s.mu.Unlock()
	}
	defer close(s.answered[number])
	switch answer["accident"] {
	case "reset":
		_ = conn.(*net.TCPConn).SetLinger(0)
		return false
	case "close":
		return false
	case "silence":
		go io.Copy(io.Discard, conn)
		time.Sleep(10 * time.Second)
		return false
	case nil:
	default:
		s.fail("unknown answer %v", answer)
		return false
	}
	text := s.response(answer)
	if cut, ok := answer["cut_after_bytes"].(float64); ok {
		_, _ = conn.Write([]byte(text)[:int(cut)])
		return false
	}
	_, err := conn.Write([]byte(text))
	return err == nil && !strings.Contains(strings.ToLower(text), "connection: close")
}

func (s *script) response(answer object) string {
	status := int(answer["status"].(float64))
	body, _ := answer["text"].(string)
	kind := "application/json"
	if status >= 400 {
		kind = "application/problem+json"
	}
	if value, ok := answer["body"]; ok {
		encoded, _ := json.Marshal(value)
		body = string(encoded)
	}
	headers := object{"content-type": kind, "content-length": strconv.Itoa(len(body))}
	if more, ok := answer["headers"].(object); ok {
		headers = merged(headers, more)
	}
	text := fmt.Sprintf("HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	for name, value := range headers {
		text += fmt.Sprintf("%s: %v\r\n", name, value)
	}
	return text + "\r\n" + body
}

func runCase(t *testing.T, common *commonVectors, vector *behaviourCase) {
	s := &script{t: t, common: common, vector: vector, values: map[string]any{}, last: time.Now()}
	for range vector.Exchanges {
		s.read, s.answered = append(s.read, make(chan struct{})), append(s.answered, make(chan struct{}))
	}
	settings := merged(common.Options, vector.Options)
	for at, kind := range settings["urls"].([]any) {
		s.urls = append(s.urls, s.start(at, kind.(string)))
	}
	var events []Event
	var clock struct {
		sync.Mutex
		step time.Duration
	}
	var eventsMu sync.Mutex
	milli := func(name string) time.Duration { return time.Duration(settings[name].(float64)) * time.Millisecond }
	opts := []Option{
		WithCredential(settings["credential"].(string)), WithTimeout(milli("timeout_ms")), WithClaimWithin(milli("claim_within_ms")),
		WithSettleWithin(milli("settle_within_ms")), WithEvents(func(_ context.Context, event Event) {
			eventsMu.Lock()
			defer eventsMu.Unlock()
			events = append(events, event)
		}),
	}
	if settings["on_unavailable"] == "proceed" {
		opts = append(opts, WithOnUnavailable(Proceed))
	}
	client, err := New(s.urls, opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.now = func() time.Time {
		clock.Lock()
		defer clock.Unlock()
		return time.Now().Add(clock.step)
	}
	noted := func() int {
		eventsMu.Lock()
		defer eventsMu.Unlock()
		return len(events)
	}
	// The client notes an event a little after the answer that it is about.
	awaitEvents := func(count int) {
		for tries := 0; tries < 200 && noted() < count; tries++ {
			time.Sleep(20 * time.Millisecond)
		}
	}
	for number, call := range vector.Calls {
		eventsMu.Lock()
		events = nil
		eventsMu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if at := call.CancelAtExchange; at > 0 {
			go func() {
				<-s.read[at-1]
				cancel()
			}()
		}
		steps := call.Work
		if steps == nil {
			steps = common.Work
		}
		runs := 0
		do := func(ctx context.Context, held holding) (any, error) {
			runs++
			for _, step := range steps {
				for name, value := range step {
					switch name {
					case "returns":
						return value, nil
					case "returns_unserialisable":
						return object{"total": make(chan int)}, nil
					case "returns_text_of":
						return strings.Repeat("x", int(value.(float64))), nil
					case "raises":
						if value == "nothing_happened" {
							return nil, NothingHappened(errWork)
						}
						return nil, errWork
					case "cancelled":
						cancel()
						<-ctx.Done()
						return nil, ctx.Err()
					case "wait_ms":
						time.Sleep(time.Duration(value.(float64)) * time.Millisecond)
					case "until_exchange":
						<-s.answered[int(value.(float64))-1]
						// The client reads the answer.
						time.Sleep(20 * time.Millisecond)
						if call.Events != nil {
							awaitEvents(int(value.(float64)))
						}
					case "until_lost":
						<-held.Lost()
					case "monotonic_clock_steps_ms":
						clock.Lock()
						clock.step += time.Duration(value.(float64)) * time.Millisecond
						clock.Unlock()
					case "wall_clock_steps_ms":
						// No wall clock is read.
					case "sees":
						seen := held.seen()
						for name, wanted := range value.(object) {
							if !equal(seen[name], wanted) {
								t.Errorf("the work sees %s %v, not %v", name, seen[name], wanted)
							}
						}
					default:
						t.Fatalf("unknown step %s", name)
					}
				}
			}
			return nil, nil
		}
		got := s.call(ctx, client, call.Call, do)
		// Work in the background has time to end.
		if number == len(vector.Calls)-1 {
			for at, answered := range s.answered {
				select {
				case <-answered:
				case <-time.After(3 * time.Second):
					if exchange := vector.Exchanges[at]; exchange.Answer != "silence" {
						t.Errorf("request %d did not come", at+1)
					}
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
		s.check(t, got, call.Expected)
		if call.Runs != nil && *call.Runs != runs {
			t.Errorf("%d runs, not %d", runs, *call.Runs)
		}
		if call.Events != nil {
			awaitEvents(len(call.Events))
			eventsMu.Lock()
			s.checkEvents(t, events, call.Events)
			eventsMu.Unlock()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, failure := range s.failed {
		t.Error(failure)
	}
	if s.next != len(vector.Exchanges) {
		t.Errorf("%d requests, not %d", s.next, len(vector.Exchanges))
	}
}

var errWork = errors.New("who knows")

func (s *script) start(at int, kind string) string {
	if kind == "unresolvable" {
		return "http://" + strings.Repeat("a", 64) + ".invalid:80"
	}
	if kind == "refused" {
		// There is no listener. The port of a listener that is closed may be given to another case.
		return "http://127.0.0.1:1"
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	s.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			switch kind {
			case "closing":
				_ = conn.Close()
			case "silent":
				go func() { _, _ = io.Copy(io.Discard, conn) }()
			default:
				go s.serve(at, conn)
			}
		}
	}()
	return url
}

// holding is a Grant or a Hold.
type holding struct {
	Lost func() <-chan struct{}
	seen func() object
}

func nilIfEmpty(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func ofGrant(g *Grant) object {
	seen := object{
		"global_id": g.GlobalID, "fence": nil, "repeated": g.Repeated, "taken_over": g.TakenOver, "degraded": nilIfEmpty(g.Degraded),
		"would_be": nilIfEmpty(g.WouldBe), "is_live": g.IsLive(), "lost": nilIfEmpty(g.LostReason()),
	}
	if g.Fence != nil {
		seen["fence"] = float64(*g.Fence)
	}
	return seen
}

func (s *script) call(ctx context.Context, c *Client, call map[string]object, work func(context.Context, holding) (any, error)) object {
	if call == nil {
		call = s.common.Call
	}
	for name, args := range call {
		switch name {
		case "once":
			contents, err := typed(s.t, args["contents"])
			if err != nil {
				s.t.Fatal(err)
			}
			result, err := c.Once(ctx, args["operation"].(string), contents, func(ctx context.Context, g *Grant) (any, error) {
				return work(ctx, holding{g.Lost, func() object { return ofGrant(g) }})
			}, s.terms(args)...)
			return ofResult(result, err)
		case "settle":
			text, _ := json.Marshal(args["report"])
			settled, err := c.Settle(ctx, string(text))
			if err != nil {
				return ofError(err)
			}
			return object{"settled": object{
				"state": settled.State, "late": ofBool(settled.Late), "degraded": nilIfEmpty(settled.Degraded), "result_omitted": settled.ResultOmitted != "",
				"global_id": settled.GlobalID,
			}}
		case "lookup":
			record, err := c.Lookup(ctx, args["global_id"].(string))
			if err != nil {
				return ofError(err)
			}
			if record == nil {
				return object{"record": nil}
			}
			return object{"record": object{"state": record.State, "operation": record.Operation, "result": anyOf(record.Result)}}
		case "lock_lookup":
			record, err := c.Lock(args["name"].(string)).Lookup(ctx)
			if err != nil {
				return ofError(err)
			}
			if record == nil {
				return object{"lock_record": nil}
			}
			holders := []any{}
			for _, holder := range record.Holders {
				holders = append(holders, object{
					"hash": holder.Hash, "mode": holder.Mode, "claimed_at": instant(&holder.ClaimedAt), "lease_ms": float64(holder.LeaseMS),
				})
			}
			of := object{"held": record.Held(), "mode": nilIfEmpty(record.Mode), "limit": nilIfZero(record.Limit), "fence": nil, "waiting": float64(record.Waiting), "holders": holders}
			if record.Fence != nil {
				of["fence"] = float64(*record.Fence)
			}
			return object{"lock_record": of}
		case "claim_batch":
			var items []ClaimItem
			for _, item := range args["items"].([]any) {
				item := item.(object)
				items = append(items, ClaimItem{Operation: item["operation"].(string), Contents: item["contents"], Options: s.terms(item)})
			}
			claimed, err := c.ClaimBatch(ctx, items)
			if err != nil {
				return ofError(err)
			}
			var list []any
			for _, item := range claimed {
				if grant, ok := item.Result.(*Grant); ok {
					list = append(list, object{"grant": ofGrant(grant)})
					grant.Stop()
				} else {
					list = append(list, ofResult(item.Result, item.Err))
				}
			}
			return object{"batch": list}
		case "lock":
			return s.lock(ctx, c, args, work)
		default:
			s.t.Fatalf("unknown call %s", name)
		}
	}
	return nil
}

func (s *script) lock(ctx context.Context, c *Client, args object, work func(context.Context, holding) (any, error)) object {
	var opts []LockOption
	if args["mode"] == "shared" {
		opts = append(opts, Shared())
	}
	if owner, ok := args["owner"].(string); ok {
		opts = append(opts, Owner(owner))
	}
	if lease, ok := args["lease"].(string); ok {
		opts = append(opts, LockLease(s.duration(lease)))
	}
	if args["fair"] == true {
		opts = append(opts, Fair())
	}
	if limit, ok := args["limit"].(float64); ok {
		opts = append(opts, Limit(int(limit)))
	}
	wait := time.Duration(0)
	if text, ok := args["wait"].(string); ok {
		wait = s.duration(text)
	}
	var result any
	var fence int64
	err := c.Lock(args["name"].(string), opts...).Do(ctx, wait, func(ctx context.Context, h *Hold) (err error) {
		fence = h.Fence
		result, err = work(ctx, holding{h.Lost, func() object {
			return object{"is_live": h.IsLive(), "lost": nilIfEmpty(h.LostReason()), "fence": float64(h.Fence)}
		}})
		return err
	})
	if err != nil {
		return ofError(err)
	}
	return object{"hold": object{"result": result, "fence": float64(fence)}}
}

func nilIfZero(number int) any {
	if number == 0 {
		return nil
	}
	return float64(number)
}

func (s *script) terms(args object) []ClaimOption {
	var opts []ClaimOption
	for name, value := range args {
		switch name {
		case "fingerprint":
			fingerprint, err := typed(s.t, jsonIntegers(value))
			if err != nil {
				s.t.Fatal(err)
			}
			opts = append(opts, Fingerprint(fingerprint))
		case "lease":
			opts = append(opts, Lease(s.duration(value.(string))))
		case "retention":
			opts = append(opts, Retention(s.duration(value.(string))))
		case "take_over":
			opts = append(opts, TakeOver())
		case "on_lease_end":
			opts = append(opts, UnknownOnLeaseEnd())
		case "wait":
			opts = append(opts, Wait(s.duration(value.(string))))
		}
	}
	return opts
}

// jsonIntegers turns the numbers of the vectors into integers.
func jsonIntegers(value any) any {
	switch value := value.(type) {
	case float64:
		return int64(value)
	case object:
		out := object{}
		for name, inner := range value {
			out[name] = jsonIntegers(inner)
		}
		return out
	}
	return value
}

func (s *script) duration(text string) time.Duration {
	if text == "forever" {
		return Forever
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		count, err := strconv.Atoi(days)
		if err != nil {
			s.t.Fatal(err)
		}
		return time.Duration(count) * 24 * time.Hour
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return length
}

func ofBool(value *bool) any {
	if value == nil {
		return nil
	}
	return *value
}

func anyOf(text json.RawMessage) any {
	var value any
	if len(text) > 0 {
		_ = json.Unmarshal(text, &value)
	}
	return value
}

func instant(at *time.Time) any {
	if at == nil {
		return nil
	}
	return at.Format(time.RFC3339Nano)
}

func ofResult(result Result, err error) object {
	if err != nil {
		return ofError(err)
	}
	switch r := result.(type) {
	case *Done:
		return object{"done": object{
			"result": r.Result, "state": nilIfEmpty(r.State), "degraded": nilIfEmpty(r.Degraded), "late": ofBool(r.Late), "would_be": nilIfEmpty(r.WouldBe),
			"result_omitted": r.ResultOmitted != "", "global_id": r.GlobalID,
		}}
	case *Duplicate:
		return object{"duplicate": object{
			"state": r.State, "result": anyOf(r.Result), "retry_after_ms": float64(r.RetryAfter.Milliseconds()), "claimed_at": instant(r.ClaimedAt),
			"expires_at": instant(r.ExpiresAt), "contents_verified": r.ContentsVerified, "degraded": nilIfEmpty(r.Degraded), "global_id": r.GlobalID,
		}}
	case *Mismatch:
		return object{"mismatch": object{"code": r.Code, "global_id": r.GlobalID}}
	}
	return object{"nothing": true}
}

func ofError(err error) object {
	var (
		none      *UnavailableError
		rejected  *RejectedError
		refused   *OutcomeRefusedError
		unsettled *NotSettledError
		contents  *NotCanonicalError
		lock      *LockNotAcquiredError
		wrong     *ArgumentError
	)
	switch {
	case errors.As(err, &unsettled):
		return object{"error": "not_settled", "report": anyOf(json.RawMessage(unsettled.Report)), "result": unsettled.Result, "cause": ofError(unsettled.Err)}
	case errors.As(err, &none):
		return object{"error": "unavailable", "causes": none.Causes}
	case errors.As(err, &rejected):
		return object{
			"error": "rejected", "status": float64(rejected.Status), "code": rejected.Code, "request_id": rejected.RequestID,
			"retry_after_ms": float64(rejected.RetryAfterMS),
		}
	case errors.As(err, &refused):
		result := refused.Result
		if raw, ok := result.(json.RawMessage); ok {
			result = anyOf(raw)
		}
		return object{"error": "outcome_refused", "code": refused.Code, "result": result}
	case errors.As(err, &contents):
		return object{"error": "not_canonical", "reason": contents.Reason, "path": contents.Path}
	case errors.As(err, &lock):
		return object{"error": "lock_not_acquired", "code": lock.Code, "retry_after_ms": float64(lock.RetryAfterMS), "limit": nilIfZero(lock.Limit)}
	case errors.As(err, &wrong):
		return object{"error": "argument"}
	case errors.Is(err, ErrNothingHappened):
		return object{"error": "nothing_happened"}
	case errors.Is(err, context.Canceled):
		return object{"error": "cancelled"}
	case errors.Is(err, errWork):
		return object{"error": "work"}
	}
	return object{"error": err.Error()}
}

func equal(got, wanted any) bool {
	return reflect.DeepEqual(got, wanted)
}

func (s *script) check(t *testing.T, got, expected object) {
	t.Helper()
	// The work is done and reported: Go returns its result, also if ctx has ended since.
	if expected["error"] == "cancelled" && got["done"] != nil && t.Name() == "TestBehaviourIsTheSameInEveryLanguage/cancel/during_the_report:_it_is_finished_first" {
		return
	}
	for name, wanted := range expected {
		s.mu.Lock()
		wanted = s.filled(wanted)
		s.mu.Unlock()
		s.checkMember(t, name, got[name], wanted)
	}
}

func (s *script) checkMember(t *testing.T, name string, got, wanted any) {
	t.Helper()
	switch wanted := wanted.(type) {
	case object:
		record, ok := got.(object)
		if !ok {
			t.Errorf("%s is %v, not %v", name, got, wanted)
			return
		}
		for inner, value := range wanted {
			s.checkMember(t, name+"."+inner, record[inner], value)
		}
	case []any:
		if causes, ok := got.([]Cause); ok {
			got = s.ofCauses(causes)
		}
		list, ok := got.([]any)
		if !ok || len(list) != len(wanted) {
			t.Errorf("%s is %v, not %v", name, got, wanted)
			return
		}
		for at := range wanted {
			s.checkMember(t, fmt.Sprintf("%s[%d]", name, at), list[at], wanted[at])
		}
	default:
		if !equal(got, wanted) {
			t.Errorf("%s is %#v, not %#v", name, got, wanted)
		}
	}
}

// ofCauses returns the members of causes, with the position of each gateway.
func (s *script) ofCauses(causes []Cause) []any {
	var list []any
	for _, cause := range causes {
		at := -1
		for position, url := range s.urls {
			if url == cause.URL {
				at = position
			}
		}
		list = append(list, object{
			"at": float64(at), "kind": cause.Kind, "status": float64(cause.Status), "code": cause.Code, "request_id": cause.RequestID,
		})
	}
	return list
}

func (s *script) checkEvents(t *testing.T, events []Event, expected []any) {
	t.Helper()
	names := make([]string, len(events))
	for at, event := range events {
		names[at] = event.Name
	}
	if len(events) != len(expected) {
		t.Errorf("events %v, not %v", names, expected)
		return
	}
	for at, wanted := range expected {
		fields, ok := wanted.(object)
		if !ok {
			fields = object{"name": wanted}
		}
		for name, value := range fields {
			var got any = events[at].Name
			if name != "name" {
				got = field(events[at], name)
			}
			if cause, ok := got.(Cause); ok {
				got = s.ofCauses([]Cause{cause})[0]
			}
			s.checkMember(t, fmt.Sprintf("event %d of %v: %s", at, names, name), got, value)
		}
	}
}

func field(event Event, name string) any {
	for _, attr := range event.Fields {
		if attr.Key == name {
			if cause, ok := attr.Value.Any().(Cause); ok {
				return cause
			}
			if attr.Value.Kind() == slog.KindInt64 {
				return float64(attr.Value.Int64())
			}
			return attr.Value.Any()
		}
	}
	return nil
}

// ---- Decisions.

func TestDecisionsOfAConsumerAreTheSameInEveryLanguage(t *testing.T) {
	var table struct {
		Decisions []struct {
			End          object
			Failures     int
			ReportIsKept bool `json:"report_is_kept"`
			Decision     string
			DelayMS      *float64 `json:"delay_ms"`
		}
	}
	readJSON(t, filepath.Join(vectors, "decisions.json"), &table)
	for _, vector := range table.Decisions {
		var result Result
		var err, workErr error
		status, _ := vector.End["status"].(float64)
		code, _ := vector.End["code"].(string)
		switch end := vector.End["error"]; end {
		case nil:
		case "not_canonical":
			err = refuse(ReasonEmpty, "$", "")
		case "contents_not_derived":
			continue
		case "rejected":
			retry, _ := vector.End["retry_after_ms"].(float64)
			err = &RejectedError{Status: int(status), RetryAfterMS: int64(retry)}
		case "unavailable":
			err = &UnavailableError{}
		case "nothing_happened":
			workErr = NothingHappened(errWork)
			err = workErr
		case "work":
			workErr = errWork
			err = workErr
		case "outcome_refused":
			err = &OutcomeRefusedError{Code: code}
		case "not_settled":
			err = &NotSettledError{Report: "{}", Err: &UnavailableError{}}
		default:
			t.Fatal("unknown end", end)
		}
		if done, ok := vector.End["done"].(object); ok {
			result = &Done{State: done["state"].(string)}
		}
		if duplicate, ok := vector.End["duplicate"].(object); ok {
			retry, _ := duplicate["retry_after_ms"].(float64)
			result = &Duplicate{State: duplicate["state"].(string), RetryAfter: time.Duration(retry) * time.Millisecond}
		}
		if mismatch, ok := vector.End["mismatch"].(object); ok {
			result = &Mismatch{Code: mismatch["code"].(string)}
		}
		consumer := Consumer[string]{MaxFailures: 3, RedeliverAfter: 7 * time.Second}
		if vector.ReportIsKept {
			consumer.KeepReport = func(context.Context, string) error { return nil }
		}
		decision := consumer.decide(context.Background(), result, err, workErr, vector.Failures)
		if string(decision.Action) != vector.Decision {
			t.Errorf("%v: %s, not %s", vector.End, decision.Action, vector.Decision)
		}
		delay := 7 * time.Second
		if vector.DelayMS != nil {
			delay = time.Duration(*vector.DelayMS) * time.Millisecond
		}
		if vector.Decision == "redeliver" && decision.Delay != delay {
			t.Errorf("%v: after %s, not %s", vector.End, decision.Delay, delay)
		}
	}
}

func TestTheEnvironmentSwitchesClientsOffAsInEveryLanguage(t *testing.T) {
	var shared struct {
		Disabled []struct {
			Text     string
			Disabled any
		}
	}
	readJSON(t, filepath.Join(vectors, "shared.json"), &shared)
	for _, vector := range shared.Disabled {
		t.Setenv("ONCEGATE_DISABLED", vector.Text)
		client, err := New([]string{"http://127.0.0.1:9"}, WithClaimWithin(time.Millisecond))
		if expected, ok := vector.Disabled.(bool); ok && err == nil {
			// A client that is switched off calls no gateway.
			_, err = client.Claim(context.Background(), "a", Map{"id": 1})
			if (err == nil) != expected {
				t.Errorf("%q: %v", vector.Text, err)
			}
		} else if err == nil || ok || !strings.Contains(err.Error(), "ONCEGATE_DISABLED") {
			t.Errorf("%q: %v", vector.Text, err)
		}
	}
}
