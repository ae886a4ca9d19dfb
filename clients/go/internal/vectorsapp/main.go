// The test applications of the middleware's vectors: one for each framework. clients/vectors/README.md says what they do.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/oncehttp"
)

// ats are the first segments of paths, each protected in its own way.
var ats = []string{"plain", "required", "put-only", "json", "wait", "harmless", "form", "behind", "zip", "down", "down-pass", "off", "observe", "short", "stop", "store"}

// methods are those that frameworks route by name.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY", "PROPFIND", "REPORT", "PURGE", "SEARCH", "LINK"}

// applications make the handler of each row. The frameworks' parsers are called by handlers, so none is in front of the middleware.
var applications = map[string]func(*service) http.Handler{
	"net-http": netHTTP, "chi": chiRouter, "gin": ginEngine, "echo4": echo4, "echo5": echo5, "h2c": netHTTP,
}

func main() {
	app := flag.String("app", "net-http", "the row of the matrix")
	port := flag.Int("port", 0, "the port on loopback")
	flag.Parse()
	build := applications[*app]
	if build == nil {
		log.Fatalf("no application %q", *app)
	}
	service, err := newService()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	handler := build(service)
	if *app == "h2c" {
		if handler, err = behindHTTP2(handler); err != nil {
			log.Fatal(err)
		}
	}
	// A predicate of the service sees what an error wraps.
	fmt.Println("lacks parsed causes")
	if *app == "h2c" {
		// It takes the offer to upgrade.
		fmt.Println("lacks http1")
	}
	fmt.Println("listening", listener.Addr())
	log.Fatal(http.Serve(listener, handler))
}

// service is what all applications share.
type service struct {
	clients map[string]*oncegate.Client
	runs    runs
}

func newService() (*service, error) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	nobody := "http://" + closed.Addr().String()
	_ = closed.Close()
	s := &service{clients: map[string]*oncegate.Client{}, runs: runs{cases: map[string][]*run{}}}
	for name, urls := range map[string][]string{"up": {os.Getenv("ONCEGATE_URL")}, "down": {nobody}} {
		if s.clients[name], err = oncegate.New(urls); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// config returns how one part of the service is protected. Its principal is that of the framework.
func (s *service) config(at string) oncehttp.Config {
	config := oncehttp.Config{
		Client: s.clients["up"], Operation: "vectors." + at, Lease: 3 * time.Second, BodyBytes: 131072, OnUnavailable: oncegate.FailClosed,
	}
	switch at {
	case "required":
		config.Required = true
	case "put-only":
		config.Methods = []string{"PUT"}
	case "json":
		config.Fingerprint = []string{"method", "path", "query", "content-type", "if-match", "body:json"}
	case "wait":
		config.Wait = 5 * time.Second
	case "harmless":
		config.ReleaseOn = isStock
	case "down", "down-pass":
		config.Client, config.ClaimWithin = s.clients["down"], 300*time.Millisecond
		if at == "down-pass" {
			config.OnUnavailable = oncegate.Proceed
		}
	case "off":
		config.Disabled = true
	case "observe":
		config.Observe = true
	case "short":
		config.ExchangeMax = time.Second
	case "stop":
		config.StopWhenGone = true
	case "store":
		config.Store, config.On5xx, config.StorePrivate = []string{"2xx", "403"}, "store", true
		config.StoreWith, config.StoreWithout = []string{"Set-Cookie"}, []string{"X-Secret"}
	}
	return config
}

// parseForm is a layer that consumes forms before the middleware sees them.
func parseForm(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseMultipartForm(1 << 20)
		next.ServeHTTP(w, r)
	})
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
