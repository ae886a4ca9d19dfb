package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

var (
	errStock = errors.New("out of stock")
	errOther = errors.New("who knows")
)

func isStock(err error) bool { return errors.Is(err, errStock) }

// run is one run of a handler, as the vectors read it.
type run struct {
	Run            int               `json:"run"`
	Ended          string            `json:"ended,omitempty"`
	Length         int               `json:"length"`
	SHA256         string            `json:"sha256"`
	Gone           *bool             `json:"gone,omitempty"`
	After          string            `json:"after,omitempty"`
	AcceptEncoding string            `json:"accept_encoding,omitempty"`
	Value          any               `json:"value,omitempty"`
	Fields         map[string]string `json:"fields,omitempty"`
	Files          map[string]int64  `json:"files,omitempty"`
}

type runs struct {
	mu    sync.Mutex
	cases map[string][]*run
}

func (r *runs) begin(name string) *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	begun := &run{Run: len(r.cases[name]) + 1}
	r.cases[name] = append(r.cases[name], begun)
	return begun
}

func (r *runs) change(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *runs) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	text, err := json.Marshal(append([]*run{}, r.cases[req.URL.Query().Get("case")]...))
	r.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}

type step struct {
	Sleep, Poll, After, Fails *int
	Mark, Raise               string
	Respond                   *respond
	Stream                    *stream
	Encode, Form              bool
}

type respond struct {
	Status  int
	Headers [][2]text
	Style   string
	Body    *text
}

type stream struct {
	Rows, Every, Status, Pad int
	Headers                  [][2]text
	Row                      *string
	Length                   bool
	BreakAfter               *int `json:"break_after"`
	Trailers                 map[string]text
}

// text is a text, or one that is repeated.
type text string

func (t *text) UnmarshalJSON(given []byte) error {
	var repeated struct{ Repeat [2]json.RawMessage }
	if json.Unmarshal(given, &repeated) != nil {
		return json.Unmarshal(given, (*string)(t))
	}
	var piece string
	var times int
	if err := errors.Join(json.Unmarshal(repeated.Repeat[0], &piece), json.Unmarshal(repeated.Repeat[1], &times)); err != nil {
		return err
	}
	*t = text(strings.Repeat(piece, times))
	return nil
}

// framework is what a handler does by the framework's own means.
type framework struct {
	// Send answers with fields that are set, a status and a body.
	send func(status int, body []byte) error
	// HTTPError raises, or answers, the framework's own HTTP error.
	httpError func(status int, text string) error
}

// handle reads the body and takes the steps. An error of it is raised as the framework does.
func (s *service) handle(w http.ResponseWriter, r *http.Request, f framework) (err error) {
	ran := s.runs.begin(r.Header.Get("Vector-Case"))
	ended := "raised"
	defer func() { s.runs.change(func() { ran.Ended = ended }) }()
	var steps []step
	if text := r.Header.Get("Vector-Do"); text != "" {
		if err := json.Unmarshal([]byte(text), &steps); err != nil {
			return err
		}
	}
	if err := s.read(ran, r, steps); err != nil {
		return err
	}
	encode, answered := false, false
	for _, step := range steps {
		switch {
		case step.Sleep != nil:
			time.Sleep(time.Duration(*step.Sleep) * time.Millisecond)
		case step.Poll != nil:
			gone := poll(r, time.Duration(*step.Poll)*time.Millisecond)
			s.runs.change(func() { ran.Gone = &gone })
		case step.Mark != "":
			oncehttp.Grant(r.Context()).Mark(step.Mark)
		case step.Raise == "stock":
			return errStock
		case step.Raise == "other":
			return errOther
		case step.Raise == "http":
			return f.httpError(http.StatusConflict, "sold out")
		case step.Encode:
			encode = true
		case step.After != nil:
			go func() {
				time.Sleep(time.Duration(*step.After) * time.Millisecond)
				s.runs.change(func() { ran.After = "done" })
			}()
		case step.Fails != nil:
			go func() {
				defer func() {
					_ = recover()
					s.runs.change(func() { ran.After = "failed" })
				}()
				time.Sleep(time.Duration(*step.Fails) * time.Millisecond)
				panic("the background work fails")
			}()
		case step.Respond != nil:
			answered = true
			err = step.Respond.send(w, f)
		case step.Stream != nil:
			answered = true
			err = step.Stream.send(w)
		}
		if err != nil {
			return err
		}
	}
	if !answered {
		err = s.answer(w, r, f, ran, encode)
	}
	if err == nil {
		ended = "returned"
	}
	return err
}

// read reads the body, or the form.
func (s *service) read(ran *run, r *http.Request, steps []step) error {
	for _, step := range steps {
		if !step.Form {
			continue
		}
		if err := r.ParseMultipartForm(1 << 20); err != nil && !errors.Is(err, http.ErrNotMultipart) {
			return err
		}
		fields, files := map[string]string{}, map[string]int64{}
		for name := range r.PostForm {
			fields[name] = r.PostForm.Get(name)
		}
		if r.MultipartForm != nil {
			for name, file := range r.MultipartForm.File {
				files[name] = file[0].Size
			}
		}
		s.runs.change(func() { ran.Fields, ran.Files = fields, files })
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	s.runs.change(func() {
		ran.Length, ran.SHA256, ran.AcceptEncoding = len(body), hex.EncodeToString(sum[:]), r.Header.Get("Accept-Encoding")
	})
	return nil
}

// poll asks until the caller hangs up, or the time is over.
func poll(r *http.Request, limit time.Duration) bool {
	for ends := time.Now().Add(limit); time.Now().Before(ends); time.Sleep(20 * time.Millisecond) {
		if r.Context().Err() != nil {
			return true
		}
	}
	return r.Context().Err() != nil
}

func (s *service) answer(w http.ResponseWriter, r *http.Request, f framework, ran *run, encode bool) error {
	var text []byte
	var err error
	s.runs.change(func() { text, err = json.Marshal(ran) })
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	if encode && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		_, _ = zip.Write(text)
		_ = zip.Close()
		w.Header().Set("Content-Encoding", "gzip")
		text = out.Bytes()
	}
	return f.send(http.StatusCreated, text)
}

func (a *respond) send(w http.ResponseWriter, f framework) error {
	for _, field := range a.Headers {
		w.Header().Add(string(field[0]), string(field[1]))
	}
	status := a.Status
	if status == 0 {
		status = http.StatusCreated
	}
	var body []byte
	if a.Body != nil {
		body = []byte(*a.Body)
	}
	if a.Style == "head" {
		w.WriteHeader(status)
		if body == nil {
			return nil
		}
		_, err := w.Write(body)
		return allowed(err)
	}
	return allowed(f.send(status, body))
}

// allowed drops the error of a body that its status does not allow: few handlers look at it.
func allowed(err error) error {
	if errors.Is(err, http.ErrBodyNotAllowed) {
		return nil
	}
	return err
}

func (s *stream) send(w http.ResponseWriter) error {
	row := "row {}\n"
	if s.Row != nil {
		row = *s.Row
	}
	var rows []string
	length := 0
	for at := range s.Rows {
		rows = append(rows, strings.ReplaceAll(row, "{}", strconv.Itoa(at))+strings.Repeat("x", s.Pad))
		length += len(rows[at])
	}
	w.Header().Set("Content-Type", "text/plain")
	for at, field := range s.Headers {
		name := string(field[0])
		if at == 0 || !strings.EqualFold(name, string(s.Headers[at-1][0])) {
			w.Header().Del(name)
		}
		w.Header().Add(name, string(field[1]))
	}
	if s.Length {
		w.Header().Set("Content-Length", strconv.Itoa(length))
	}
	for name := range s.Trailers {
		w.Header().Add("Trailer", name)
	}
	status := s.Status
	if status == 0 {
		status = http.StatusCreated
	}
	w.WriteHeader(status)
	for at, row := range rows {
		if s.BreakAfter != nil && at == *s.BreakAfter {
			return errBroken
		}
		if at > 0 {
			time.Sleep(time.Duration(s.Every) * time.Millisecond)
		}
		if _, err := io.WriteString(w, row); allowed(err) != nil {
			return fmt.Errorf("row %d: %w", at, err)
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err
		}
	}
	for name, value := range s.Trailers {
		w.Header().Set(name, string(value))
	}
	return nil
}

// errBroken breaks a response off.
var errBroken = errors.New("the response breaks off")
