package nats_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/internal/testservers"
	oncenats "github.com/oncegate/oncegate/clients/go/nats"
)

func TestEachOrderOnceAlthoughTheBrokerIsKilled(t *testing.T) {
	program := testservers.Find(t, "NATS_SERVER", "nats-server")
	client := testservers.Gateway(t)
	port, folder := testservers.Port(t), t.TempDir()
	start := func() func() {
		return testservers.Start(t, port, nil, program, "-a", "127.0.0.1", "-p", strconv.Itoa(port), "-js", "-sd", folder)
	}
	kill := start()
	url := fmt.Sprintf("nats://127.0.0.1:%d", port)
	connection, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	stream, err := jetstream.New(connection)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, subject := range map[string]string{"orders": "orders", "parked": "parked", "dead": "dead"} {
		if _, err := stream.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{subject}}); err != nil {
			t.Fatal(err)
		}
	}
	var orders []string
	for at := range 100 {
		orders = append(orders, fmt.Sprintf("A-%d", at))
	}
	messages := append(testservers.Messages(orders), "fails", "breaks")
	for _, order := range messages {
		if _, err := stream.Publish(ctx, "orders", []byte(order)); err != nil {
			t.Fatal(err)
		}
	}
	source, err := stream.CreateConsumer(ctx, "orders", jetstream.ConsumerConfig{
		Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	var effects testservers.Effects
	consumer := &oncegate.Consumer[jetstream.Msg]{
		Client: client, Operation: "order.submit", RedeliverAfter: 50 * time.Millisecond,
		Contents: func(message jetstream.Msg) (any, error) { return oncegate.Map{"order_id": string(message.Data())}, nil },
		Handle: func(_ context.Context, message jetstream.Msg, _ *oncegate.Grant) (any, error) {
			switch order := string(message.Data()); order {
			case "fails":
				return nil, oncegate.ErrNothingHappened
			case "breaks":
				return nil, errors.New("who knows")
			default:
				time.Sleep(5 * time.Millisecond)
				effects.Add(order)
				return nil, nil
			}
		},
	}
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			config := oncenats.Config{
				JetStream: stream, Source: source, ParkedSubject: "parked", DeadSubject: "dead", Workers: 4, InProgressEvery: 200 * time.Millisecond,
			}
			// A broker that was killed ends a consumer, and its supervisor begins again.
			for ctx.Err() == nil {
				if err := oncenats.Consume(ctx, config, consumer); err == nil {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			ended <- nil
		}()
	}
	testservers.Until(t, "some messages are done", func() bool {
		info, err := source.Info(ctx)
		return err == nil && info.AckFloor.Stream > 50
	})
	kill()
	start()
	testservers.Until(t, "all messages are acknowledged", func() bool {
		info, err := source.Info(ctx)
		return err == nil && info.NumPending == 0 && info.NumAckPending == 0 && info.AckFloor.Stream == uint64(len(messages))
	})
	cancel()
	for range 2 {
		<-ended
	}
	effects.Once(t, orders)
	for _, name := range []string{"parked", "dead"} {
		aside, err := stream.Stream(context.Background(), name)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := aside.Info(context.Background()); err != nil || info.State.Msgs < 1 {
			t.Errorf("nothing is %s: %v", name, err)
		}
	}
}
