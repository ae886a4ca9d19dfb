package onceecho_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	onceecho "github.com/oncegate/oncegate/clients/go/echo"
	"github.com/oncegate/oncegate/clients/go/oncegatetest"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

var errStock = errors.New("out of stock")

type site struct {
	*httptest.Server
	t       *testing.T
	gateway *oncegatetest.Gateway
	echo    *echo.Echo
	// Statuses are those that a layer outside sees.
	statuses []int
}

func serve(t *testing.T, handler echo.HandlerFunc) *site {
	t.Helper()
	s := &site{t: t, gateway: oncegatetest.New(t), echo: echo.New()}
	idempotent, err := onceecho.New(oncehttp.Config{
		Client: s.gateway.Client(), Operation: "parcel.ship", ReleaseOn: func(err error) bool { return errors.Is(err, errStock) },
	}, func(c echo.Context) string { return c.Get("account").(string) })
	if err != nil {
		t.Fatal(err)
	}
	s.echo.Use(middleware.Recover(), s.observe, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("account", "alice")
			return next(c)
		}
	}, idempotent.Handler)
	// As many do, it does not look if an answer was sent.
	s.echo.HTTPErrorHandler = func(err error, c echo.Context) {
		status := http.StatusInternalServerError
		var answer *echo.HTTPError
		if errors.As(err, &answer) {
			status = answer.Code
		} else if errors.Is(err, errStock) {
			status = http.StatusConflict
		}
		_ = c.JSON(status, map[string]string{"error": http.StatusText(status)})
	}
	s.echo.POST("/parcels/:id", handler)
	s.Server = httptest.NewServer(s.echo)
	t.Cleanup(s.Close)
	return s
}

func (s *site) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		s.statuses = append(s.statuses, statusOf(c))
		return err
	}
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

func TestARepeatGetsTheResponse(t *testing.T) {
	runs := 0
	s := serve(t, func(c echo.Context) error {
		runs++
		if oncehttp.Grant(c.Request().Context()) == nil || c.Param("id") != "7" {
			t.Error("the handler lacks its grant or its context")
		}
		return c.JSON(http.StatusCreated, map[string]int{"run": runs})
	})
	_, first := s.post("k")
	response, second := s.post("k")
	if first != second || response.StatusCode != 201 || response.Header.Get("Content-Type") != "application/json" || runs != 1 {
		t.Error(first, second, response.StatusCode, response.Header, runs)
	}
	if len(s.statuses) != 2 || s.statuses[0] != 201 || s.statuses[1] != 201 {
		t.Error("layers outside see", s.statuses)
	}
}

func TestTheAnswerToAnErrorIsRecordedAndSentOnce(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		status int
		state  string
	}{
		"declared":            {errStock, 409, "none"},
		"an error of echo":    {echo.NewHTTPError(http.StatusPaymentRequired, "no money"), 402, "succeeded"},
		"echo's unauthorised": {echo.NewHTTPError(http.StatusUnauthorized, "who"), 401, "none"},
		"any other":           {io.EOF, 500, "unknown"},
	} {
		s := serve(t, func(echo.Context) error { return test.err })
		response, text := s.post("k")
		if response.StatusCode != test.status || strings.TrimSpace(text) != `{"error":"`+http.StatusText(test.status)+`"}` || s.state() != test.state {
			t.Error(name, response.StatusCode, text, s.state())
		}
	}
}

func TestAPanicIsUnknownAndAnsweredOutside(t *testing.T) {
	s := serve(t, func(echo.Context) error { panic("a value") })
	if response, _ := s.post("k"); response.StatusCode != 500 || s.state() != "unknown" {
		t.Error(response.StatusCode, s.state())
	}
}

func TestAStreamPassesAndIsRecorded(t *testing.T) {
	s := serve(t, func(c echo.Context) error {
		c.Response().WriteHeader(http.StatusOK)
		for range 3 {
			_, _ = io.WriteString(c.Response(), "row\n")
			if err := http.NewResponseController(c.Response()).Flush(); err != nil {
				t.Error(err)
			}
		}
		if _, _, err := http.NewResponseController(c.Response()).Hijack(); err == nil {
			t.Error("it was hijacked")
		}
		return nil
	})
	_, first := s.post("k")
	_, second := s.post("k")
	if first != second || first != "row\nrow\nrow\n" || s.state() != "succeeded" {
		t.Errorf("%q, %q, %s", first, second, s.state())
	}
}

func statusOf(c echo.Context) int { return c.Response().Status }
