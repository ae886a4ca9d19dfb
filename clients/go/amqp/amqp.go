// Package amqp consumes messages of RabbitMQ once. It carries out the decisions of an oncegate.Consumer: each message is acknowledged only after its
// outcome was accepted, and after its copy was confirmed where it is delayed, parked or put aside.
package amqp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// failuresHeader counts the runs of a message that ended with ErrNothingHappened.
const failuresHeader = "x-oncegate-failures"

// delays are those of the retry queues. One queue per delay: RabbitMQ expires messages at the head of a queue only.
var delays = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute}

// Queue is the queue to consume. Declare also makes <queue>.retry.<delay>, <queue>.parked and <queue>.dead.
type Queue struct {
	Name string
	// Arguments are those with which the queue is declared elsewhere.
	Arguments amqp091.Table
	// Workers is the number of messages handled at the same time. Default 16.
	Workers int
}

// Declare declares the queue and its additional queues, all durable.
func (q Queue) Declare(channel *amqp091.Channel) error {
	for _, name := range []string{q.parked(), q.dead()} {
		if _, err := channel.QueueDeclare(name, true, false, false, false, nil); err != nil {
			return err
		}
	}
	if _, err := channel.QueueDeclare(q.Name, true, false, false, false, q.Arguments); err != nil {
		return err
	}
	for _, delay := range delays {
		// Back to the queue when the time is over.
		arguments := amqp091.Table{"x-message-ttl": delay.Milliseconds(), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": q.Name}
		// A classic queue removes a message before the queue has stored it: a kill of the broker loses it.
		arguments["x-queue-type"], arguments["x-dead-letter-strategy"], arguments["x-overflow"] = "quorum", "at-least-once", "reject-publish"
		if _, err := channel.QueueDeclare(q.retry(delay), true, false, false, false, arguments); err != nil {
			return err
		}
	}
	return nil
}

func (q Queue) parked() string { return q.Name + ".parked" }
func (q Queue) dead() string   { return q.Name + ".dead" }

// retry returns the queue with the shortest delay that is long enough, or the longest.
func (q Queue) retry(delay time.Duration) string {
	chosen := delays[len(delays)-1]
	for _, each := range delays {
		if each >= delay {
			chosen = each
			break
		}
	}
	return fmt.Sprintf("%s.retry.%ds", q.Name, int(chosen.Seconds()))
}

// Consume handles messages until ctx ends or the channel closes. Messages that are being handled are finished; others stay in the queue. The
// consumer needs a separate channel.
func Consume(ctx context.Context, channel *amqp091.Channel, queue Queue, consumer *oncegate.Consumer[amqp091.Delivery]) error {
	workers := queue.Workers
	if workers <= 0 {
		workers = 16
	}
	if err := channel.Confirm(false); err != nil {
		return err
	}
	if err := channel.Qos(workers, 0, false); err != nil {
		return err
	}
	// Each worker publishes one message at a time, and takes what has come back before it publishes the next.
	returns := &returned{from: channel.NotifyReturn(make(chan amqp091.Return, workers)), missing: map[string]bool{}}
	const tag = "oncegate"
	deliveries, err := channel.ConsumeWithContext(context.WithoutCancel(ctx), queue.Name, tag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	ending, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	for range workers {
		running.Add(1)
		go func() {
			defer running.Done()
			for {
				select {
				case <-ending.Done():
					return
				case delivery, open := <-deliveries:
					if !open {
						stop(amqp091.ErrClosed)
						return
					}
					if err := handle(ending, channel, returns, queue, consumer, delivery); err != nil {
						stop(err)
						return
					}
				}
			}
		}()
	}
	running.Wait()
	_ = channel.Cancel(tag, false)
	if cause := context.Cause(ending); !errors.Is(cause, ctx.Err()) || ctx.Err() == nil {
		return cause
	}
	return nil
}

func handle(
	ctx context.Context, channel *amqp091.Channel, returns *returned, queue Queue, consumer *oncegate.Consumer[amqp091.Delivery], delivery amqp091.Delivery,
) error {
	failures := failuresOf(delivery.Headers)
	// Started work is finished, so a shutdown leaves no unknown outcomes.
	decision := consumer.ConsumeOnce(context.WithoutCancel(ctx), delivery, failures)
	if decision.Failed() {
		failures++
	}
	to := ""
	switch decision.Action {
	case oncegate.Ack:
	case oncegate.Redeliver:
		to = queue.retry(decision.Delay)
	case oncegate.Park:
		to = queue.parked()
	default:
		to = queue.dead()
	}
	if to != "" {
		// The copy must be safe before the message is removed.
		if err := publish(context.WithoutCancel(ctx), channel, returns, to, delivery, failures); err != nil {
			return err
		}
	}
	return delivery.Ack(false)
}

// returned has the queues that did not exist for a copy. The broker confirms such a copy too, after it has returned it.
type returned struct {
	mu      sync.Mutex
	from    <-chan amqp091.Return
	missing map[string]bool
}

// has takes what came back, and reports whether a copy for this queue did.
func (r *returned) has(queue string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		select {
		case message, open := <-r.from:
			if open {
				r.missing[message.RoutingKey] = true
				continue
			}
		default:
		}
		return r.missing[queue]
	}
}

func publish(ctx context.Context, channel *amqp091.Channel, returns *returned, queue string, delivery amqp091.Delivery, failures int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	headers := amqp091.Table{}
	for name, value := range delivery.Headers {
		headers[name] = value
	}
	headers[failuresHeader] = int64(failures)
	confirmation, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, amqp091.Publishing{
		Headers: headers, ContentType: delivery.ContentType, ContentEncoding: delivery.ContentEncoding, DeliveryMode: amqp091.Persistent,
		CorrelationId: delivery.CorrelationId, MessageId: delivery.MessageId, Timestamp: delivery.Timestamp, Type: delivery.Type, AppId: delivery.AppId,
		Body: delivery.Body,
	})
	if err != nil {
		return err
	}
	confirmed, err := confirmation.WaitContext(ctx)
	if err != nil {
		return err
	}
	if !confirmed {
		return fmt.Errorf("the broker refused a message for %s", queue)
	}
	if returns.has(queue) {
		return fmt.Errorf("there is no queue %s; make it with Queue.Declare", queue)
	}
	return nil
}

func failuresOf(headers amqp091.Table) int {
	switch count := headers[failuresHeader].(type) {
	case int64:
		return int(count)
	case int32:
		return int(count)
	}
	return 0
}
