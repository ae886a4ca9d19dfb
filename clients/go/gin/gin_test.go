package oncegin_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	oncegin "github.com/oncegate/oncegate/clients/go/gin"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

var errStock = errors.New("out of stock")

type site struct {
	*httptest.Server
	t       *testing.T
	gateway *oncegatetest.Gateway
	engine  *gin.Engine
	// Outer and inner stand before and behind the middleware.
	outer, inner []gin.HandlerFunc
}

func (s *site) serve(handler gin.HandlerFunc) {
	s.t.Helper()
	gin.SetMode(gin.TestMode)
	s.gateway, s.engine = oncegatetest.New(s.t), gin.New()
	idempotent, err := oncegin.New(oncehttp.Config{
		Client: s.gateway.Client(), Operation: "parcel.ship", ReleaseOn: func(err error) bool { return errors.Is(err, errStock) },
	}, func(c *gin.Context) string { return c.GetString("account") })
	if err != nil {
		s.t.Fatal(err)
	}
	s.engine.Use(func(c *gin.Context) { c.Set("account", "alice") })
	s.engine.Use(s.outer...)
	s.engine.Use(idempotent.Handler())
	s.engine.Use(s.inner...)
	s.engine.POST("/parcels/:id", handler)
	s.Server = httptest.NewServer(s.engine)
	s.t.Cleanup(s.Close)
}

func (s *site) post(key string) (*http.Response, string) {
	s.t.Helper()
	request, _ := http.NewRequest("POST", s.URL+"/parcels/7", strings.NewReader("x"))
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response, string(text)
}

func (s *site) state() string {
	if claims := s.gateway.Claims(); len(claims) == 1 {
		return claims[0].State
	}
	return "none"
}

func TestARepeatGetsTheResponseAndTheRestOfTheChainDoesNotRun(t *testing.T) {
	runs := 0
	s := &site{t: t}
	s.serve(func(c *gin.Context) {
		runs++
		if oncehttp.Grant(c.Request.Context()) == nil || c.GetString("account") != "alice" || c.Param("id") != "7" {
			t.Error("the handler lacks its grant or its context")
		}
		c.JSON(http.StatusCreated, gin.H{"run": runs})
	})
	_, first := s.post("k")
	response, second := s.post("k")
	if first != second || response.StatusCode != 201 || response.Header.Get("Content-Type") != "application/json; charset=utf-8" || runs != 1 {
		t.Error(first, second, response.StatusCode, response.Header, runs)
	}
	// Without a write gin sends its status after the chain.
	s = &site{t: t}
	s.serve(func(c *gin.Context) { c.Status(http.StatusAccepted) })
	for range 2 {
		if response, _ := s.post("k"); response.StatusCode != 202 || s.state() != "succeeded" {
			t.Error(response.StatusCode, s.state())
		}
	}
}

func TestErrorsOfTheContextAreSeen(t *testing.T) {
	answer := func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 {
			c.String(http.StatusConflict, c.Errors.Last().Error())
		}
	}
	for name, test := range map[string]struct {
		outer, inner []gin.HandlerFunc
		err          error
		state        string
	}{
		"declared, answered behind":        {nil, []gin.HandlerFunc{answer}, errStock, "none"},
		"declared, answered further out":   {[]gin.HandlerFunc{answer}, nil, errStock, "none"},
		"undeclared, answered behind":      {nil, []gin.HandlerFunc{answer}, io.EOF, "succeeded"},
		"undeclared, answered further out": {[]gin.HandlerFunc{answer}, nil, io.EOF, "unknown"},
	} {
		s := &site{t: t, outer: test.outer, inner: test.inner}
		s.serve(func(c *gin.Context) { _ = c.Error(test.err) })
		if response, text := s.post("k"); response.StatusCode != 409 || text != test.err.Error() || s.state() != test.state {
			t.Error(name, response.StatusCode, text, s.state())
		}
	}
}

func TestRecoveryOutsideAnswersAPanic(t *testing.T) {
	s := &site{t: t, outer: []gin.HandlerFunc{gin.RecoveryWithWriter(io.Discard)}}
	s.serve(func(*gin.Context) { panic("a value") })
	if response, _ := s.post("k"); response.StatusCode != 500 || s.state() != "unknown" {
		t.Error(response.StatusCode, s.state())
	}
}

func TestAStreamOfGinPassesAndIsRecorded(t *testing.T) {
	s := &site{t: t}
	s.serve(func(c *gin.Context) {
		rows := 0
		c.Stream(func(io.Writer) bool {
			rows++
			c.SSEvent("row", rows)
			time.Sleep(5 * time.Millisecond)
			return rows < 3
		})
		if _, _, err := c.Writer.Hijack(); err == nil || c.Writer.Pusher() != nil {
			t.Error("it offers a way round the recorder")
		}
	})
	_, first := s.post("k")
	response, second := s.post("k")
	if first != second || strings.Count(first, "event:row") != 3 || response.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%q, %q", first, second)
	}
}

func TestAPathThatNoRouteHasIsNotFound(t *testing.T) {
	for _, each := range []struct {
		name, method, body string
		status             int
		own                gin.HandlerFunc
	}{
		{"no route", "POST", "404 page not found", 404, nil},
		{"no method", "PUT", "405 method not allowed", 405, nil},
		{"its own answer", "POST", "nothing here", 404, func(c *gin.Context) { c.String(http.StatusNotFound, "nothing here") }},
	} {
		t.Run(each.name, func(t *testing.T) {
			s := &site{t: t}
			s.serve(func(c *gin.Context) { c.String(http.StatusOK, "done") })
			s.engine.HandleMethodNotAllowed = true
			if each.own != nil {
				s.engine.NoRoute(each.own)
			}
			path := "/parcel"
			if each.status == http.StatusMethodNotAllowed {
				path = "/parcels/7"
			}
			for range 2 {
				request, _ := http.NewRequest(each.method, s.URL+path, strings.NewReader("x"))
				request.Header.Set("Idempotency-Key", "k-1")
				response, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if err != nil || response.StatusCode != each.status || string(text) != each.body {
					t.Fatal(response.StatusCode, string(text), err)
				}
			}
		})
	}
}
