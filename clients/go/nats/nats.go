// Package nats consumes messages of NATS JetStream once. It carries out the decisions of an oncegate.Consumer, and keeps the server informed while
// the work runs.
package nats

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	oncegate "github.com/oncegate/oncegate/clients/go"
)

// Config says where messages come from and go to. The consumer has AckExplicit, no MaxDeliver (redeliveries while another worker is at work are not
// failures), and an AckWait of at least three times InProgressEvery.
type Config struct {
	JetStream jetstream.JetStream
	Source    jetstream.Consumer
	// ParkedSubject and DeadSubject belong to a stream, so that a message is stored there before it is acknowledged.
	ParkedSubject string
	DeadSubject   string
	// Workers is the number of messages handled at the same time. Default 16.
	Workers int
	// InProgressEvery is how often the server is informed that a message is being handled. Default 5 s.
	InProgressEvery time.Duration
}

// failuresMax bounds the messages whose failures are counted.
const failuresMax = 100_000

// runner counts failures in this process: JetStream counts deliveries only, and has no place for another count. A message whose runs fail in several processes
// may run a few times more before it is poison.
type runner struct {
	Config
	consumer *oncegate.Consumer[jetstream.Msg]

	mu       sync.Mutex
	failures map[uint64]int
}

// Consume handles messages until ctx ends, and finishes those that are being handled. An error of the broker ends it.
func Consume(ctx context.Context, config Config, consumer *oncegate.Consumer[jetstream.Msg]) error {
	if config.JetStream == nil || config.Source == nil || config.ParkedSubject == "" || config.DeadSubject == "" {
		return errors.New("oncegate: JetStream, Source, ParkedSubject and DeadSubject are needed")
	}
	if config.Workers <= 0 {
		config.Workers = 16
	}
	if config.InProgressEvery <= 0 {
		config.InProgressEvery = 5 * time.Second
	}
	r := &runner{Config: config, consumer: consumer, failures: map[uint64]int{}}
	messages, err := config.Source.Messages(jetstream.PullMaxMessages(config.Workers))
	if err != nil {
		return err
	}
	ending, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(ending, messages.Stop)()
	var running sync.WaitGroup
	for range config.Workers {
		running.Add(1)
		go func() {
			defer running.Done()
			for {
				message, err := messages.Next()
				if err != nil {
					stop(err)
					return
				}
				if err := r.handle(ending, message); err != nil {
					stop(err)
					return
				}
			}
		}()
	}
	running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(ending)
}

func (r *runner) handle(ctx context.Context, message jetstream.Msg) error {
	metadata, err := message.Metadata()
	if err != nil {
		return err
	}
	sequence := metadata.Sequence.Stream
	done := make(chan struct{})
	go r.inform(message, done)
	// Started work is finished, so a shutdown leaves no unknown outcomes.
	decision := r.consumer.ConsumeOnce(context.WithoutCancel(ctx), message, r.count(sequence, 0))
	close(done)
	if decision.Failed() {
		r.count(sequence, 1)
	}
	// Reports are finished although ctx has ended, and so are acknowledgements.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	switch decision.Action {
	case oncegate.Redeliver:
		return message.NakWithDelay(decision.Delay)
	case oncegate.Park:
		err = r.store(ctx, r.ParkedSubject, message)
	case oncegate.DeadLetter:
		err = r.store(ctx, r.DeadSubject, message)
	}
	if err != nil {
		return err
	}
	r.forget(sequence)
	return message.DoubleAck(ctx)
}

func (r *runner) inform(message jetstream.Msg, done <-chan struct{}) {
	ticker := time.NewTicker(r.InProgressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
			// Without this the server delivers the message again, and the gateway then answers that it is in progress.
			_ = message.InProgress()
		}
	}
}

// store waits until the stream has the message.
func (r *runner) store(ctx context.Context, subject string, message jetstream.Msg) error {
	headers := nats.Header{}
	for name, values := range message.Headers() {
		// An expectation of the first publisher is not one of this stream.
		if len(name) < 5 || name[:5] != "Nats-" {
			headers[name] = values
		}
	}
	_, err := r.JetStream.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: headers, Data: message.Data()})
	return err
}

func (r *runner) count(sequence uint64, more int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if more > 0 {
		if len(r.failures) >= failuresMax {
			clear(r.failures)
		}
		r.failures[sequence] += more
	}
	return r.failures[sequence]
}

func (r *runner) forget(sequence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, sequence)
}
