package amqp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/oncegate/oncegate/clients/go/amqp"
	"github.com/oncegate/oncegate/clients/go/internal/testservers"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// broker starts RabbitMQ, and returns its URL.
func broker(t *testing.T) string {
	t.Helper()
	program := testservers.Find(t, "RABBITMQ_SERVER", "rabbitmq-server")
	// The one in the path of Debian changes the user, and loses its environment.
	if _, err := os.Stat("/usr/lib/rabbitmq/bin/rabbitmq-server"); err == nil {
		program = "/usr/lib/rabbitmq/bin/rabbitmq-server"
	}
	port, folder := testservers.Port(t), t.TempDir()
	testservers.Start(t, port, []string{
		"HOME=" + folder, "RABBITMQ_NODENAME=oncegate" + strconv.Itoa(port) + "@localhost", "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		"RABBITMQ_NODE_PORT=" + strconv.Itoa(port), "RABBITMQ_DIST_PORT=" + strconv.Itoa(testservers.Port(t)), "RABBITMQ_MNESIA_BASE=" + folder,
		"RABBITMQ_LOG_BASE=" + folder, "RABBITMQ_ENABLED_PLUGINS_FILE=" + folder + "/plugins", "RABBITMQ_PID_FILE=" + folder + "/pid",
	}, program)
	return fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", port)
}

func TestEachOrderOnceAlthoughConnectionsAreLost(t *testing.T) {
	url := broker(t)
	client := testservers.Gateway(t)
	var connection *amqp091.Connection
	testservers.Until(t, "the broker accepts a connection", func() (connected bool) {
		var err error
		connection, err = amqp091.Dial(url)
		return err == nil
	})
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	queue := amqp.Queue{Name: "orders", Workers: 4}
	if err := queue.Declare(channel); err != nil {
		t.Fatal(err)
	}
	var orders []string
	for at := range 100 {
		orders = append(orders, fmt.Sprintf("A-%d", at))
	}
	for _, order := range append(testservers.Messages(orders), "fails", "breaks") {
		message := amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: []byte(order)}
		if err := channel.PublishWithContext(context.Background(), "", "orders", true, false, message); err != nil {
			t.Fatal(err)
		}
	}
	var effects testservers.Effects
	consumer := &oncegate.Consumer[amqp091.Delivery]{
		Client: client, Operation: "order.submit", RedeliverAfter: 50 * time.Millisecond, MaxFailures: 2,
		Contents: func(delivery amqp091.Delivery) (any, error) {
			return oncegate.Map{"order_id": string(delivery.Body)}, nil
		},
		Handle: func(_ context.Context, delivery amqp091.Delivery, _ *oncegate.Grant) (any, error) {
			switch order := string(delivery.Body); order {
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
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{}, 2)
	for range 2 {
		go func() {
			defer func() { ended <- struct{}{} }()
			for ctx.Err() == nil {
				consume(ctx, url, queue, consumer)
			}
		}()
	}
	count := func(name string) int {
		found, err := channel.QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return found.Messages
	}
	testservers.Until(t, "all messages are done or aside", func() bool {
		return count("orders") == 0 && count("orders.retry.1s") == 0 && count("orders.parked") >= 1 && count("orders.dead") >= 1
	})
	cancel()
	for range 2 {
		<-ended
	}
	if left := count("orders"); left != 0 {
		t.Errorf("%d messages were not acknowledged", left)
	}
	effects.Once(t, orders)
}

func TestAMessageStaysWhereItsCopyHasNoQueue(t *testing.T) {
	url := broker(t)
	client := testservers.Gateway(t)
	var connection *amqp091.Connection
	testservers.Until(t, "the broker accepts a connection", func() (connected bool) {
		var err error
		connection, err = amqp091.Dial(url)
		return err == nil
	})
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	// Without its additional queues.
	if _, err := channel.QueueDeclare("orders", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for at := range 8 {
		message := amqp091.Publishing{DeliveryMode: amqp091.Persistent, Body: fmt.Appendf(nil, "A-%d", at)}
		if err := channel.PublishWithContext(context.Background(), "", "orders", true, false, message); err != nil {
			t.Fatal(err)
		}
	}
	consumer := &oncegate.Consumer[amqp091.Delivery]{
		Client: client, Operation: "order.missing",
		Contents: func(delivery amqp091.Delivery) (any, error) {
			return oncegate.Map{"order_id": string(delivery.Body)}, nil
		},
		Handle: func(context.Context, amqp091.Delivery, *oncegate.Grant) (any, error) {
			return nil, errors.New("who knows")
		},
	}
	err = amqp.Consume(context.Background(), channel, amqp.Queue{Name: "orders", Workers: 4}, consumer)
	if err == nil || !strings.Contains(err.Error(), "there is no queue orders.parked") {
		t.Errorf("got %v", err)
	}
	// Its messages return to the queue.
	_ = channel.Close()
	channel, err = connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	testservers.Until(t, "all messages are there", func() bool {
		found, err := channel.QueueDeclarePassive("orders", true, false, false, false, nil)
		return err == nil && found.Messages == 8
	})
}

// consume consumes for a moment, and then loses its connection, with what was not acknowledged.
func consume(ctx context.Context, url string, queue amqp.Queue, consumer *oncegate.Consumer[amqp091.Delivery]) {
	connection, err := amqp091.Dial(url)
	if err != nil {
		time.Sleep(50 * time.Millisecond)
		return
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return
	}
	timer := time.AfterFunc(300*time.Millisecond, func() { _ = connection.Close() })
	defer timer.Stop()
	_ = amqp.Consume(ctx, channel, queue, consumer)
}
