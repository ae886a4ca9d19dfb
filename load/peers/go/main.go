// The decision in Go: SET NX with go-redis, or Once of the client. See ../README.md.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/redis/go-redis/v9"
)

const (
	kept   = 5 * time.Minute
	sample = 200
)

var run = newRun()

func newRun() string {
	var bytes [4]byte
	_, _ = rand.Read(bytes[:])
	return hex.EncodeToString(bytes[:])
}

func bare(ctx context.Context, callers int, url string) func(uint64) bool {
	options, err := redis.ParseURL(url)
	check(err)
	options.PoolSize = callers
	client := redis.NewClient(options)
	return func(order uint64) bool {
		key := fmt.Sprintf("og:{%s%024x}:load", run, order)
		value := fmt.Sprintf(`1767225600000000-%016x 1p l=306s r=306s o=load.unique c={"order":"%s-%d"}`, order, run, order)
		err := client.SetArgs(ctx, key, value, redis.SetArgs{Mode: "NX", Get: true, TTL: kept}).Err()
		if errors.Is(err, redis.Nil) {
			return true
		}
		check(err)
		return false
	}
}

func ours(ctx context.Context, credential string) func(uint64) bool {
	client, err := oncegate.New(nil, oncegate.WithCredential(credential))
	check(err)
	return func(order uint64) bool {
		done, err := oncegate.Once(ctx, client, "load.unique", oncegate.Map{"order": fmt.Sprintf("%s-%d", run, order)},
			func(context.Context, *oncegate.Grant) (bool, error) { return true, nil },
			oncegate.Lease(kept), oncegate.Retention(kept))
		check(err)
		return done.Done != nil
	}
}

func main() {
	callers, err := strconv.Atoi(os.Args[1])
	check(err)
	ctx := context.Background()
	var claim func(uint64) bool
	if url := os.Getenv("REDIS_URL"); url != "" {
		claim = bare(ctx, callers, url)
	} else {
		claim = ours(ctx, os.Getenv("ONCEGATE_CREDENTIAL"))
	}
	begins := time.Now().Add(seconds(os.Args[2]))
	ends := begins.Add(seconds(os.Args[3]))
	var next, granted, refused atomic.Uint64
	var all sync.WaitGroup
	for range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for now := time.Now(); now.Before(ends); now = time.Now() {
				isGranted := claim(next.Add(1))
				switch {
				case now.Before(begins):
				case isGranted:
					granted.Add(1)
				default:
					refused.Add(1)
				}
			}
		}()
	}
	time.Sleep(time.Until(begins))
	fmt.Println("begin")
	all.Wait()
	fmt.Println("end", granted.Load(), refused.Load())
	repeated, again := 0, 0
	for order := uint64(1); order <= next.Load(); order += max(next.Load()/sample, 1) {
		repeated++
		if claim(order) {
			again++
		}
	}
	fmt.Println("repeated", repeated, again)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func seconds(text string) time.Duration {
	duration, err := time.ParseDuration(text + "s")
	check(err)
	return duration
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
