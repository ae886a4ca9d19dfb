package main

import (
	"cmp"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"

	"github.com/gin-contrib/gzip"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/klauspost/compress/gzhttp"
	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"
	echofive "github.com/labstack/echo/v5"
	echofivemiddleware "github.com/labstack/echo/v5/middleware"
	onceecho "github.com/oncegate/oncegate/clients/go/echo"
	onceecho5 "github.com/oncegate/oncegate/clients/go/echo5"
	oncegin "github.com/oncegate/oncegate/clients/go/gin"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

func user(r *http.Request) string { return r.Header.Get("Vector-User") }

// handler is that of net/http and chi: it answers errors itself, and panics with those that it does not know.
func (s *service) handler(at string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := s.handle(w, r, framework{
			send: func(status int, body []byte) error {
				w.WriteHeader(status)
				if len(body) == 0 {
					return nil
				}
				_, err := w.Write(body)
				return err
			},
			httpError: func(status int, text string) error {
				answer(w, status, text)
				return errAnswered
			},
		})
		switch {
		case err == nil, errors.Is(err, errAnswered):
		case isStock(err):
			if at == "harmless" {
				oncehttp.Grant(r.Context()).Mark("failure")
			}
			answer(w, http.StatusConflict, "out of stock")
		case errors.Is(err, errBroken):
			panic(http.ErrAbortHandler)
		default:
			panic(err)
		}
	})
}

// answer is http.Error without its line feed.
func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

var errAnswered = errors.New("the error was answered")

func (s *service) protected(at string) *oncehttp.Middleware {
	config := s.config(at)
	config.Principal = user
	return must(oncehttp.New(config))
}

func netHTTP(s *service) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/runs", &s.runs)
	for _, at := range ats {
		handler := s.protected(at).Handler(s.handler(at))
		switch at {
		case "zip":
			wrap := must(gzhttp.NewWrapper(gzhttp.MinSize(1)))
			handler = wrap(handler)
		case "behind":
			handler = parseForm(handler)
		}
		mux.Handle("/"+at+"/", handler)
	}
	return mux
}

func chiRouter(s *service) http.Handler {
	for _, method := range methods {
		chi.RegisterMethod(method)
	}
	router := chi.NewRouter()
	router.Handle("/runs", &s.runs)
	for _, at := range ats {
		router.Route("/"+at, func(router chi.Router) {
			if at == "zip" {
				router.Use(middleware.Compress(5))
			}
			if at == "behind" {
				router.Use(parseForm)
			}
			router.Use(s.protected(at).Handler)
			router.Handle("/*", s.handler(at))
		})
	}
	return router
}

func ginEngine(s *service) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.GET("/runs", gin.WrapH(&s.runs))
	for _, at := range ats {
		idempotent := must(oncegin.New(s.config(at), func(c *gin.Context) string { return c.GetHeader("Vector-User") }))
		group := engine.Group("/" + at)
		if at == "zip" {
			group.Use(gzip.Gzip(gzip.DefaultCompression))
		}
		if at == "behind" {
			group.Use(func(c *gin.Context) { _, _ = c.MultipartForm() })
		}
		group.Use(idempotent.Handler(), answerErrors)
		group.Match(methods, "/*path", func(c *gin.Context) {
			err := s.handle(c.Writer, c.Request, framework{
				send: func(status int, body []byte) error {
					c.Data(status, typeOf(c.Writer.Header()), body)
					return nil
				},
				httpError: func(status int, text string) error {
					c.String(status, text)
					c.Abort()
					return errAnswered
				},
			})
			if errors.Is(err, errBroken) {
				panic(http.ErrAbortHandler)
			}
			if err != nil && !errors.Is(err, errAnswered) {
				_ = c.Error(err)
			}
		})
	}
	return engine
}

// typeOf returns the type that the steps have set, or one for frameworks that need it.
func typeOf(header http.Header) string {
	return cmp.Or(header.Get("Content-Type"), "text/plain; charset=utf-8")
}

// answerErrors answers the errors of handlers, as gin's documentation shows it.
func answerErrors(c *gin.Context) {
	c.Next()
	if err := c.Errors.Last(); err != nil && isStock(err.Err) {
		c.String(http.StatusConflict, "out of stock")
	} else if err != nil {
		c.String(http.StatusInternalServerError, "internal error")
	}
}

func echo4(s *service) http.Handler {
	e := echo.New()
	e.HTTPErrorHandler = func(err error, c echo.Context) {
		if isStock(err) {
			err = echo.NewHTTPError(http.StatusConflict, "out of stock")
		}
		var answer *echo.HTTPError
		if errors.As(err, &answer) {
			_ = c.String(answer.Code, answer.Message.(string))
			return
		}
		e.DefaultHTTPErrorHandler(err, c)
	}
	e.GET("/runs", echo.WrapHandler(&s.runs))
	for _, at := range ats {
		idempotent := must(onceecho.New(s.config(at), func(c echo.Context) string { return c.Request().Header.Get("Vector-User") }))
		group := e.Group("/" + at)
		if at == "zip" {
			group.Use(echomiddleware.Gzip())
		}
		if at == "behind" {
			group.Use(echo.WrapMiddleware(parseForm))
		}
		group.Use(idempotent.Handler)
		group.Match(methods, "/*", func(c echo.Context) error {
			err := s.handle(c.Response(), c.Request(), framework{
				send: func(status int, body []byte) error {
					if len(body) == 0 {
						return c.NoContent(status)
					}
					return c.Blob(status, typeOf(c.Response().Header()), body)
				},
				httpError: func(status int, text string) error { return echo.NewHTTPError(status, text) },
			})
			return broken(err)
		})
	}
	return e
}

func broken(err error) error {
	if errors.Is(err, errBroken) {
		panic(http.ErrAbortHandler)
	}
	return err
}

func echo5(s *service) http.Handler {
	e := echofive.New()
	otherwise := echofive.DefaultHTTPErrorHandler(false)
	e.HTTPErrorHandler = func(c *echofive.Context, err error) {
		if isStock(err) {
			err = echofive.NewHTTPError(http.StatusConflict, "out of stock")
		}
		var answer *echofive.HTTPError
		if errors.As(err, &answer) {
			_ = c.String(answer.Code, answer.Message)
			return
		}
		otherwise(c, err)
	}
	e.GET("/runs", echofive.WrapHandler(&s.runs))
	for _, at := range ats {
		idempotent := must(onceecho5.New(s.config(at), func(c *echofive.Context) string { return c.Request().Header.Get("Vector-User") }))
		group := e.Group("/" + at)
		if at == "zip" {
			group.Use(echofivemiddleware.Gzip())
		}
		if at == "behind" {
			group.Use(echofive.WrapMiddleware(parseForm))
		}
		group.Use(idempotent.Handler)
		group.Match(methods, "/*", func(c *echofive.Context) error {
			err := s.handle(c.Response(), c.Request(), framework{
				send: func(status int, body []byte) error {
					if len(body) == 0 {
						return c.NoContent(status)
					}
					return c.Blob(status, typeOf(c.Response().Header()), body)
				},
				httpError: func(status int, text string) error { return echofive.NewHTTPError(status, text) },
			})
			return broken(err)
		})
	}
	return e
}

// behindHTTP2 serves the handler by HTTP/2 without TLS, behind a proxy that speaks HTTP/1.1 with the driver.
func behindHTTP2(handler http.Handler) (http.Handler, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: onlyHTTP2(handler), Protocols: protocols}
	go func() { log.Fatal(server.Serve(listener)) }()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: listener.Addr().String()})
	proxy.Transport = &http.Transport{Protocols: protocols, DisableCompression: true}
	proxy.FlushInterval = -1
	// If the handler behind it breaks off the response, it does so, too.
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	return proxy, nil
}

func onlyHTTP2(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			http.Error(w, "not HTTP/2", http.StatusHTTPVersionNotSupported)
			return
		}
		handler.ServeHTTP(w, r)
	})
}
