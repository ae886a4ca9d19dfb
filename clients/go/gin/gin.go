// Package oncegin is gin middleware for the field Idempotency-Key: a request with a key runs once, and its repeats get the stored response.
//
//	idempotent, err := oncegin.New(oncehttp.Config{Client: client, Operation: "parcel.ship"}, accountOf)
//	router.Use(authenticate, idempotent.Handler(), answerErrors)
//
// Put it behind the authentication, and before the middleware that answers errors: an answer that is written further out is not recorded.
package oncegin

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

// Middleware protects requests with an Idempotency-Key.
type Middleware struct {
	*oncehttp.Middleware
}

type contextKey struct{}

// New returns a middleware. The principal is the verified account of the request; nil if the config has one, or SharedKeys. ReleaseOn sees the errors of
// gin.Context.Error.
func New(config oncehttp.Config, principal func(*gin.Context) string) (*Middleware, error) {
	if principal != nil {
		config.Principal = func(r *http.Request) string {
			return principal(r.Context().Value(contextKey{}).(*gin.Context))
		}
	}
	idempotent, err := oncehttp.New(config)
	if err != nil {
		return nil, err
	}
	return &Middleware{idempotent}, nil
}

// Handler returns the handler to Use.
func (m *Middleware) Handler() gin.HandlerFunc {
	return func(c *gin.Context) {
		request, outer, ran := c.Request, c.Writer, false
		defer func() { c.Request, c.Writer = request, outer }()
		_ = m.Serve(outer, request.WithContext(context.WithValue(request.Context(), contextKey{}, c)), func(w http.ResponseWriter, r *http.Request) error {
			ran = true
			c.Request = r
			if w == http.ResponseWriter(outer) {
				c.Next()
				return nil
			}
			// Gin has set 404 or 405 where it has no route.
			inner := &writer{to: w, status: outer.Status(), size: -1}
			c.Writer = inner
			c.Next()
			if !inner.Written() && c.FullPath() == "" && inner.status == outer.Status() {
				inner.sayMissing()
			}
			if !inner.Written() && len(c.Errors) > 0 && inner.status == http.StatusOK {
				// A layer further out may answer it: nothing says what happened.
				oncehttp.Grant(r.Context()).Unanswered()
			} else {
				inner.WriteHeaderNow()
			}
			var errs []error
			for _, err := range c.Errors {
				errs = append(errs, err.Err)
			}
			return errors.Join(errs...)
		})
		if !ran {
			c.Abort()
		}
	}
}

// writer is the gin.ResponseWriter of a handler. It offers no way round the recorder below.
type writer struct {
	to           http.ResponseWriter
	status, size int
}

var _ gin.ResponseWriter = (*writer)(nil)

func (w *writer) Header() http.Header { return w.to.Header() }

func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status = status
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.to.WriteHeader(w.status)
	}
}

func (w *writer) Write(piece []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(piece)
	w.size += n
	return n, err
}

// sayMissing writes what gin writes where it has no route, once its handlers have returned.
func (w *writer) sayMissing() {
	texts := map[int]string{http.StatusNotFound: "404 page not found", http.StatusMethodNotAllowed: "405 method not allowed"}
	if text := texts[w.status]; text != "" {
		w.Header().Set("Content-Type", gin.MIMEPlain)
		_, _ = w.WriteString(text)
	}
}

func (w *writer) WriteString(piece string) (int, error) { return w.Write([]byte(piece)) }

func (w *writer) Status() int { return w.status }

func (w *writer) Size() int { return w.size }

func (w *writer) Written() bool { return w.size >= 0 }

func (w *writer) Flush() {
	w.WriteHeaderNow()
	_ = http.NewResponseController(w.to).Flush()
}

// CloseNotify returns a channel that stays open: gin.Context.Stream would stop. See oncehttp.Granted.CallerGone.
func (w *writer) CloseNotify() <-chan bool { return make(chan bool) }

// Hijack is not supported: the response could not be recorded.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// Pusher returns nil.
func (w *writer) Pusher() http.Pusher { return nil }
