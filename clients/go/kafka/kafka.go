// Package kafka consumes records of Kafka once, with franz-go. It carries out the decisions of an oncegate.Consumer: a partition whose record must wait is paused while
// others continue, and only contiguous offsets are committed.
package kafka

import (
	"context"
	"errors"
	"sync"
	"time"

	oncegate "github.com/oncegate/oncegate/clients/go"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Config says what to consume.
type Config struct {
	// Options are those of the client: seed brokers, consumer group and topics. Commits and rebalances are this package's own.
	Options []kgo.Opt
	// ParkedTopic and DeadTopic get records that cannot be handled, with acks of all replicas, before their offsets are committed.
	ParkedTopic string
	DeadTopic   string
}

type partition struct {
	topic  string
	number int32
}

// worker handles the records of one partition in order.
type worker struct {
	partition
	records chan []*kgo.Record
	quit    context.CancelFunc
	ctx     context.Context
	done    chan struct{}
}

type runner struct {
	Config
	consumer *oncegate.Consumer[*kgo.Record]
	client   *kgo.Client
	// The first error of a worker ends all.
	fail context.CancelCauseFunc

	mu      sync.Mutex
	workers map[partition]*worker
}

// Consume handles records until ctx ends, finishes running work, and commits done records.
func Consume(ctx context.Context, config Config, consumer *oncegate.Consumer[*kgo.Record]) error {
	if config.ParkedTopic == "" || config.DeadTopic == "" {
		return errors.New("oncegate: ParkedTopic and DeadTopic are needed")
	}
	ending, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	r := &runner{Config: config, consumer: consumer, fail: fail, workers: map[partition]*worker{}}
	options := append(append([]kgo.Opt{}, config.Options...),
		kgo.AutoCommitMarks(), kgo.BlockRebalanceOnPoll(), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.OnPartitionsAssigned(r.assigned), kgo.OnPartitionsRevoked(r.revoked), kgo.OnPartitionsLost(r.revoked))
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	r.client = client
	defer client.CloseAllowingRebalance()
	defer r.finish()
	for {
		fetches := client.PollRecords(ending, 1000)
		if fetches.IsClientClosed() {
			return kgo.ErrClientClosed
		}
		if ending.Err() != nil {
			if ctx.Err() != nil {
				return nil
			}
			return context.Cause(ending)
		}
		fetches.EachPartition(func(fetched kgo.FetchTopicPartition) {
			if len(fetched.Records) > 0 {
				r.pass(partition{fetched.Topic, fetched.Partition}, fetched.Records)
			}
		})
		client.AllowRebalance()
	}
}

// pass pauses the partition until its worker has handled these records: polling continues for the others, and keeps the consumer in its group.
func (r *runner) pass(p partition, records []*kgo.Record) {
	r.mu.Lock()
	w := r.workers[p]
	r.mu.Unlock()
	if w == nil {
		return
	}
	r.client.PauseFetchPartitions(map[string][]int32{p.topic: {p.number}})
	select {
	case w.records <- records:
	case <-w.done:
	}
}

func (r *runner) assigned(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, numbers := range assigned {
		for _, number := range numbers {
			ctx, quit := context.WithCancel(context.Background())
			// Records that were fetched before the pause took effect have a place, too.
			w := &worker{partition{topic, number}, make(chan []*kgo.Record, 16), quit, ctx, make(chan struct{})}
			r.workers[w.partition] = w
			go r.run(w)
		}
	}
}

// revoked finishes the record at hand, and leaves the rest uncommitted.
func (r *runner) revoked(ctx context.Context, client *kgo.Client, revoked map[string][]int32) {
	var ended []*worker
	r.mu.Lock()
	for topic, numbers := range revoked {
		for _, number := range numbers {
			if w := r.workers[partition{topic, number}]; w != nil {
				delete(r.workers, w.partition)
				ended = append(ended, w)
			}
		}
	}
	r.mu.Unlock()
	for _, w := range ended {
		w.quit()
	}
	for _, w := range ended {
		<-w.done
	}
	// A partition that comes back is fetched again.
	client.ResumeFetchPartitions(revoked)
	_ = client.CommitMarkedOffsets(ctx)
}

func (r *runner) finish() {
	all := map[string][]int32{}
	r.mu.Lock()
	for p := range r.workers {
		all[p.topic] = append(all[p.topic], p.number)
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r.revoked(ctx, r.client, all)
}

func (r *runner) run(w *worker) {
	defer close(w.done)
	for {
		select {
		case <-w.ctx.Done():
			return
		case records := <-w.records:
			for _, record := range records {
				if !r.handle(w.ctx, record) {
					return
				}
			}
			if len(w.records) == 0 {
				r.client.ResumeFetchPartitions(map[string][]int32{w.topic: {w.number}})
			}
		}
	}
}

// handle handles one record until it is done, and marks its offset. False: the partition is revoked or the consumer ends.
func (r *runner) handle(ctx context.Context, record *kgo.Record) bool {
	for failures := 0; ctx.Err() == nil; {
		// Started work is finished, so a shutdown leaves no unknown outcomes.
		decision := r.consumer.ConsumeOnce(context.WithoutCancel(ctx), record, failures)
		switch decision.Action {
		case oncegate.Redeliver:
			if decision.Failed() {
				failures++
			}
			select {
			case <-ctx.Done():
				return false
			case <-time.After(decision.Delay):
			}
			continue
		case oncegate.Park:
			if !r.store(r.ParkedTopic, record) {
				return false
			}
		case oncegate.DeadLetter:
			if !r.store(r.DeadTopic, record) {
				return false
			}
		}
		r.client.MarkCommitRecords(record)
		return true
	}
	return false
}

// store waits until all replicas have the record.
func (r *runner) store(topic string, record *kgo.Record) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	copied := &kgo.Record{Topic: topic, Key: record.Key, Value: record.Value, Headers: record.Headers}
	if err := r.client.ProduceSync(ctx, copied).FirstErr(); err != nil {
		r.fail(err)
		return false
	}
	return true
}
