package oncegate_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
)

// gateway imitates a gateway: it grants the first claim, and then says that the operation has succeeded.
func gateway() *httptest.Server {
	claims := 0
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const id = "c72034d8c477e40bda98523df450ed90"
		switch {
		case strings.HasSuffix(r.URL.Path, "/holds"):
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"name":"stock:42","attempt":"1-0123456789abcdef","fence":41,"holds":1,"lease_ms":30000,"mode":"exclusive"}`)
		case strings.HasSuffix(r.URL.Path, "/release"):
			fmt.Fprint(w, `{"holds":0}`)
		case strings.HasSuffix(r.URL.Path, "/outcome"):
			fmt.Fprintf(w, `{"global_id":%q,"state":"succeeded","late":false}`, id)
		default:
			if claims++; claims > 1 {
				w.WriteHeader(http.StatusConflict)
				fmt.Fprintf(w, `{"code":"duplicate","global_id":%q,"state":"succeeded","result":{"order_number":7}}`, id)
				return
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"global_id":%q,"attempt":"1-0123456789abcdef","fence":41,"lease_ms":30000}`, id)
		}
	}))
}

func ExampleClient_Once() {
	server := gateway()
	defer server.Close()
	client, err := oncegate.New([]string{server.URL})
	if err != nil {
		panic(err)
	}
	for range 2 {
		result, err := client.Once(context.Background(), "order.submit", oncegate.Map{"order_id": "A-1001"},
			func(_ context.Context, grant *oncegate.Grant) (any, error) {
				fmt.Println("placed, with fence", *grant.Fence)
				return map[string]int{"order_number": 7}, nil
			}, oncegate.Lease(30*time.Second))
		if err != nil {
			panic(err)
		}
		switch result := result.(type) {
		case *oncegate.Done:
			fmt.Println("done:", result.State)
		case *oncegate.Duplicate:
			fmt.Println("duplicate:", result.State, string(result.Result))
		case *oncegate.Mismatch:
			fmt.Println("mismatch:", result.Code)
		}
	}
	// Output:
	// placed, with fence 41
	// done: succeeded
	// duplicate: succeeded {"order_number":7}
}

func ExampleNothingHappened() {
	err := oncegate.NothingHappened(errors.New("the bank was not reached"))
	fmt.Println(errors.Is(err, oncegate.ErrNothingHappened), err)
	// Output: true nothing happened: the bank was not reached
}

func ExampleGlobalID() {
	id, err := oncegate.GlobalID("default", "order.submit", oncegate.Map{"order_id": "A-1001"})
	fmt.Println(id, err)
	// Output: c72034d8c477e40bda98523df450ed90 <nil>
}

func ExampleCanonical() {
	text, err := oncegate.Canonical(oncegate.Map{"order_id": "A-1001", "amount": oncegate.Decimal("11.10")})
	fmt.Println(text, err)
	_, err = oncegate.Canonical(oncegate.Map{"amount": 11.1})
	fmt.Println(err)
	// Output:
	// {"amount":"11.1","order_id":"A-1001"} <nil>
	// oncegate: contents are not canonical at $.amount: a binary float: send integer minor units, a Decimal, or text
}

func ExampleLocker_Do() {
	server := gateway()
	defer server.Close()
	client, err := oncegate.New([]string{server.URL})
	if err != nil {
		panic(err)
	}
	err = client.Lock("stock:42").Do(context.Background(), 10*time.Second, func(_ context.Context, hold *oncegate.Hold) error {
		fmt.Println("held, with fence", hold.Fence)
		return nil
	})
	fmt.Println(err)
	// Output:
	// held, with fence 41
	// <nil>
}
