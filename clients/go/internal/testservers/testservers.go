// Package testservers starts what the tests of the adapters need: a gateway and brokers, as processes on free ports.
package testservers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Port returns a port that is free now.
func Port(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// Find returns the path of a program that an environment variable names, or that is installed. Else it skips the test, or fails it where ONCEGATE_TEST_BROKERS is set.
func Find(t *testing.T, variable, name string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		path, _ = exec.LookPath(name)
	}
	if path == "" {
		if os.Getenv("ONCEGATE_TEST_BROKERS") != "" {
			t.Fatalf("%s is not installed, and %s is not set", name, variable)
		}
		t.Skipf("%s is not installed, and %s is not set", name, variable)
	}
	return path
}

// Start starts a program, waits until its port answers, and kills it after the test. The returned function kills it before.
func Start(t *testing.T, port int, environment []string, program string, arguments ...string) (kill func()) {
	t.Helper()
	_, kill = launch(t, port, environment, program, arguments...)
	return kill
}

func launch(t *testing.T, port int, environment []string, program string, arguments ...string) (process *os.Process, kill func()) {
	t.Helper()
	command := exec.Command(program, arguments...)
	// A gateway takes each variable with this prefix for a setting, and scripts/with-gateway sets some for clients.
	inherited := slices.DeleteFunc(os.Environ(), func(each string) bool { return strings.HasPrefix(each, "ONCEGATE_") })
	command.Env = append(inherited, environment...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = log, log
	// Brokers start further processes.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
			_ = command.Wait()
			_ = log.Close()
		})
	}
	t.Cleanup(kill)
	Until(t, program+" answers", func() bool {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return command.Process, kill
}

// Gateway starts a gateway on the memory engine, and returns a client of it.
func Gateway(t *testing.T) *oncegate.Client {
	t.Helper()
	url, _ := GatewayAt(t)
	client, err := oncegate.New([]string{url}, oncegate.WithEvents(Quiet))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// GatewayAt starts a gateway on the memory engine, and returns its URL and process.
func GatewayAt(t *testing.T, more ...string) (string, *os.Process) {
	t.Helper()
	program := Find(t, "ONCEGATE_BIN", "oncegate")
	api, admin := Port(t), Port(t)
	address := fmt.Sprintf("127.0.0.1:%d", api)
	arguments := []string{"serve", "--engine", "memory:", "--data-dir", t.TempDir(), "--listen", address, "--admin-listen", fmt.Sprintf("127.0.0.1:%d", admin)}
	process, _ := launch(t, api, nil, program, append(arguments, more...)...)
	return "http://" + address, process
}

// Proxy starts a gateway whose proxy protects POST /parcels of an upstream, and returns the URL of the proxy.
func Proxy(t *testing.T, upstream string) string {
	t.Helper()
	port := Port(t)
	config := filepath.Join(t.TempDir(), "oncegate.toml")
	text := fmt.Sprintf("[proxy]\nlisten = \"127.0.0.1:%d\"\n[proxy.upstreams.parcels]\nurls = [%q]\n[[proxy.routes]]\nname = \"parcel.ship\"\n"+
		"app = \"default\"\npath = \"/parcels\"\nmethods = [\"POST\"]\nupstream = \"parcels\"\nprincipal = [\"authorization\"]\n", port, upstream)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	GatewayAt(t, "--config", config)
	return fmt.Sprintf("http://127.0.0.1:%d", port)
}

// Until waits until a condition holds.
func Until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for ends := time.Now().Add(60 * time.Second); time.Now().Before(ends); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// Effects counts what was done for each order.
type Effects struct {
	mu     sync.Mutex
	counts map[string]int
}

// Add counts one effect, and returns how many the order has.
func (e *Effects) Add(order string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.counts == nil {
		e.counts = map[string]int{}
	}
	e.counts[order]++
	return e.counts[order]
}

// Once fails the test unless each of these orders was done once, and nothing else.
func (e *Effects) Once(t *testing.T, orders []string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, order := range orders {
		if e.counts[order] != 1 {
			t.Errorf("%s was done %d times", order, e.counts[order])
		}
	}
	if len(e.counts) != len(orders) {
		t.Errorf("%d orders were done, not %d", len(e.counts), len(orders))
	}
}

// Messages returns these orders three times each, in any order.
func Messages(orders []string) []string {
	var messages []string
	for range 3 {
		messages = append(messages, orders...)
	}
	rand.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
	return messages
}
