// Package onceecho is echo middleware for the field Idempotency-Key: a request with a key runs once, and its repeats get the stored response.
//
//	idempotent, err := onceecho.New(oncehttp.Config{Client: client, Operation: "parcel.ship"}, accountOf)
//	parcels := e.Group("/parcels", authenticate, idempotent.Handler)
//
// Put it behind the authentication. Errors of handlers are answered by the HTTPErrorHandler, and the answer is recorded.
package onceecho

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

// Middleware protects requests with an Idempotency-Key.
type Middleware struct {
	*oncehttp.Middleware
}

type contextKey struct{}

// New returns a middleware. The principal is the verified account of the request; nil if the config has one, or SharedKeys. ReleaseOn sees the errors that
// handlers return.
func New(config oncehttp.Config, principal func(*echo.Context) string) (*Middleware, error) {
	if principal != nil {
		config.Principal = func(r *http.Request) string {
			return principal(r.Context().Value(contextKey{}).(*echo.Context))
		}
	}
	idempotent, err := oncehttp.New(config)
	if err != nil {
		return nil, err
	}
	return &Middleware{idempotent}, nil
}

// Handler is the echo.MiddlewareFunc to Use.
func (m *Middleware) Handler(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		request, outer := c.Request(), c.Response()
		defer func() {
			c.SetRequest(request)
			c.SetResponse(outer)
		}()
		passed := false
		err := m.Serve(outer, request.WithContext(context.WithValue(request.Context(), contextKey{}, c)), func(w http.ResponseWriter, r *http.Request) error {
			c.SetRequest(r)
			if w == outer {
				passed = true
				return next(c)
			}
			response := echo.NewResponse(w, c.Logger())
			c.SetResponse(response)
			err := next(c)
			if err != nil && !response.Committed {
				c.Echo().HTTPErrorHandler(c, err)
			}
			return err
		})
		if passed {
			return err
		}
		// Already answered: a second answer would follow the first.
		return nil
	}
}
