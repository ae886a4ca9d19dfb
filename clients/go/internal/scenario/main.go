// The program that the repository's tests run: the client in a separate process, with options as name=value. The same options and lines
// in every language; clients/python/tests/scenario.py explains them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

type settings map[string]string

func (s settings) ms(name string, otherwise int) time.Duration {
	if count, err := strconv.Atoi(s[name]); err == nil {
		otherwise = count
	}
	return time.Duration(otherwise) * time.Millisecond
}

func main() {
	if os.Args[1] == "vectors" {
		vectors(os.Args[2])
		return
	}
	s := settings{}
	for _, word := range os.Args[2:] {
		name, value, _ := strings.Cut(word, "=")
		s[name] = value
	}
	opts := []oncegate.Option{
		oncegate.WithTimeout(s.ms("timeout", 1000)), oncegate.WithClaimWithin(s.ms("claim_within", 5000)),
		oncegate.WithSettleWithin(s.ms("settle_within", 30000)), oncegate.WithEvents(func(context.Context, oncegate.Event) {}),
	}
	if s["credential"] != "" {
		opts = append(opts, oncegate.WithCredential(s["credential"]))
	}
	if s["policy"] == "proceed" {
		opts = append(opts, oncegate.WithOnUnavailable(oncegate.Proceed))
	}
	client, err := oncegate.New(strings.Split(s["urls"], ","), opts...)
	if err != nil {
		log.Fatal(err)
	}
	if os.Args[1] == "orders" {
		orders(client, s)
	} else {
		one(client, s)
	}
}

var output sync.Mutex

func say(words ...any) {
	output.Lock()
	defer output.Unlock()
	for at, word := range words {
		if word == nil || word == "" {
			words[at] = "-"
		}
	}
	fmt.Println(words...)
}

func orders(client *oncegate.Client, s settings) {
	workers, _ := strconv.Atoi(s["workers"])
	count, _ := strconv.Atoi(s["orders"])
	var all sync.WaitGroup
	for range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for at := range count {
				for pause := try(client, s, fmt.Sprintf("A-%d", at)); pause > 0; pause = try(client, s, fmt.Sprintf("A-%d", at)) {
					time.Sleep(pause)
				}
			}
		}()
	}
	all.Wait()
}

// try returns 0 once the order has an answer, else how long to wait.
func try(client *oncegate.Client, s settings, order string) time.Duration {
	result, err := run(client, s, order)
	var none *oncegate.UnavailableError
	switch {
	case errors.As(err, &none):
		return 50 * time.Millisecond
	case err != nil:
		log.Fatal(err)
	}
	switch result := result.(type) {
	case *oncegate.Done:
		say("done", order, number(result.Result))
	case *oncegate.Duplicate:
		if result.State != oncegate.Succeeded {
			return min(result.RetryAfter, 100*time.Millisecond)
		}
		say("duplicate", order, number(result.Result))
	}
	return 0
}

// number returns the order number of a result, which is a value or JSON.
func number(result any) any {
	text, ok := result.(json.RawMessage)
	if !ok {
		record, _ := result.(map[string]any)
		return record["order_number"]
	}
	var record map[string]any
	_ = json.Unmarshal(text, &record)
	return record["order_number"]
}

func one(client *oncegate.Client, s settings) {
	order := s["order"]
	result, err := run(client, s, order)
	var (
		none      *oncegate.UnavailableError
		rejected  *oncegate.RejectedError
		refused   *oncegate.OutcomeRefusedError
		unsettled *oncegate.NotSettledError
	)
	switch {
	case errors.As(err, &unsettled):
		say("not_settled")
		// Kept somewhere, and given to a gateway later.
		for settled, err := client.Settle(context.Background(), unsettled.Report); ; settled, err = client.Settle(context.Background(), unsettled.Report) {
			if err == nil {
				say("settled", settled.State)
				return
			}
		}
	case errors.As(err, &none):
		words := []any{"unavailable"}
		for _, cause := range none.Causes {
			words = append(words, cause.Kind)
		}
		say(words...)
	case errors.As(err, &rejected):
		say("rejected", rejected.Status, rejected.Code)
	case errors.As(err, &refused):
		say("refused", refused.Code)
	case errors.Is(err, oncegate.ErrNothingHappened):
		say("raised failure")
	case err != nil:
		say("raised unknown")
	}
	switch result := result.(type) {
	case *oncegate.Done:
		if result.ResultOmitted != "" {
			say("not_stored")
		}
		late := "in_time"
		if result.Late != nil && *result.Late {
			late = "late"
		}
		say("done", order, number(result.Result), result.State, result.Degraded, late)
	case *oncegate.Duplicate:
		say("duplicate", order, number(result.Result), result.State)
	case *oncegate.Mismatch:
		say("mismatch", result.Code)
	}
}

func run(client *oncegate.Client, s settings, order string) (oncegate.Result, error) {
	var terms []oncegate.ClaimOption
	if s["lease"] != "" {
		lease, err := time.ParseDuration(s["lease"])
		if err != nil {
			log.Fatal(err)
		}
		terms = append(terms, oncegate.Lease(lease))
	}
	if s["fingerprint"] != "" {
		terms = append(terms, oncegate.Fingerprint(s["fingerprint"]))
	}
	return client.Once(context.Background(), "order.submit", oncegate.Map{"order_id": order}, func(_ context.Context, grant *oncegate.Grant) (any, error) {
		repeated := "first"
		if grant.Repeated {
			repeated = "repeated"
		}
		say("granted", order, repeated, grant.Degraded)
		time.Sleep(s.ms("work", 0))
		switch s["fails"] {
		case "failure":
			return nil, oncegate.ErrNothingHappened
		case "unknown":
			return nil, errors.New("who knows")
		}
		if !grant.IsLive() {
			say("lost", grant.LostReason())
		}
		say("effect", order)
		return returned(s["returns"], order), nil
	}, terms...)
}

// returned is the order number, and further values for a test.
func returned(kind, order string) map[string]any {
	record := map[string]any{"order_number": order}
	switch kind {
	case "foreign":
		record["total"] = make(chan int)
	case "long":
		record["page"] = strings.Repeat("x", 70_000)
	case "deep":
		var deep any = []any{}
		for range 200 {
			deep = []any{deep}
		}
		record["tree"] = deep
	}
	return record
}

func vectors(path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	var table struct {
		Accepted, Refused []struct {
			AppKey       string `json:"app_key"`
			Operation    string
			ContentsJSON string `json:"contents_json"`
		}
	}
	if err := json.Unmarshal(text, &table); err != nil {
		log.Fatal(err)
	}
	for _, vector := range append(table.Accepted, table.Refused...) {
		id, err := oncegate.GlobalID(vector.AppKey, vector.Operation, oncegate.JSONText(vector.ContentsJSON))
		if err != nil {
			say("refused")
		} else {
			say("accepted", id)
		}
	}
}
