// Watches a prefix, loses its connection, and goes on where it was: no event is missed and none comes twice.
// Then the history it would need is compacted away; it is told so, reads everything anew and goes on from there.
package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

// eventsPerPart is how many events each of the three parts of the stream has.
const eventsPerPart = 40

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		start, err := client.Get(ctx, prefix)
		if err != nil {
			return err
		}
		follower := follower{prefix: prefix, next: start.Header.Revision + 1}
		if err := write(ctx, client, prefix, 0); err != nil {
			return err
		}
		if err := follower.readUntil(ctx, eventsPerPart); err != nil {
			return err
		}
		// Written while nobody watches: the follower's connection is closed.
		if err := write(ctx, client, prefix, eventsPerPart); err != nil {
			return err
		}
		if err := follower.readUntil(ctx, 2*eventsPerPart); err != nil {
			return err
		}
		return resumeAfterCompaction(ctx, client, &follower)
	})
}

func write(ctx context.Context, client *clientv3.Client, prefix string, first int) error {
	for number := first; number < first+eventsPerPart; number++ {
		if _, err := client.Put(ctx, prefix+"event", strconv.Itoa(number)); err != nil {
			return err
		}
	}
	return nil
}

// follower counts events. What it must remember to go on after a break is one number: the revision up to
// which it has handled everything, plus one.
type follower struct {
	prefix string
	next   int64
	seen   int
}

// readUntil watches over a connection of its own until so many events have been seen in all.
func (f *follower) readUntil(ctx context.Context, total int) error {
	client, err := trial.Connect()
	if err != nil {
		return err
	}
	defer client.Close()
	for answer := range client.Watch(ctx, f.prefix, clientv3.WithPrefix(), clientv3.WithRev(f.next)) {
		if err := answer.Err(); err != nil {
			return err
		}
		for _, event := range answer.Events {
			if err := trial.Same("the event's number", string(event.Kv.Value), strconv.Itoa(f.seen)); err != nil {
				return err
			}
			f.seen++
		}
		// Not before the whole answer is handled: the changes of one transaction have one revision. The
		// client hands out whole revisions (no WithFragment here), so the next one is the one to ask for.
		if len(answer.Events) > 0 {
			f.next = answer.Events[len(answer.Events)-1].Kv.ModRevision + 1
		}
		if f.seen >= total {
			return trial.Same("events seen", f.seen, total)
		}
	}
	return fmt.Errorf("the watch ended after %d of %d events", f.seen, total)
}

func resumeAfterCompaction(ctx context.Context, client *clientv3.Client, f *follower) error {
	if err := write(ctx, client, f.prefix, 2*eventsPerPart); err != nil {
		return err
	}
	latest, err := client.Get(ctx, f.prefix+"event")
	if err != nil {
		return err
	}
	if _, err := client.Compact(ctx, latest.Header.Revision); err != nil {
		return err
	}
	err = f.readUntil(ctx, 3*eventsPerPart)
	if !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("a watch from compacted history: found %v, expected %v", err, rpctypes.ErrCompacted)
	}
	// What was missed cannot be had event by event any more: take the state, and go on behind it.
	state, err := client.Get(ctx, f.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	f.seen, err = strconv.Atoi(string(state.Kvs[0].Value))
	if err != nil {
		return err
	}
	f.seen++
	f.next = state.Header.Revision + 1
	if err := write(ctx, client, f.prefix, 3*eventsPerPart); err != nil {
		return err
	}
	return f.readUntil(ctx, 4*eventsPerPart)
}
