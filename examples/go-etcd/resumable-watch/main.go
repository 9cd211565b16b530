// A consumer that keeps in a file how far it has come, is killed at the worst moment, and goes on from there.
// The usual short version of this loses changes, or stops without a word; what is put right here:
//
//   - It saves the revision after every event. The changes of one transaction share a revision: a crash between
//     two of them loses the second. The revision is saved when all of its events are handled.
//   - It does not look at the answer's error. A watch from compacted history ends; without a look it ends
//     silently.
//   - With nothing saved it starts at revision 1, which works only until the first compaction. A new consumer
//     reads the state first and watches from behind it.
//
// A crash between handling and saving repeats the last revision, so handling must not mind that.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		dir, err := os.MkdirTemp("", "resumable")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		consumer := &consumer{prefix: prefix, file: filepath.Join(dir, "revision"), state: map[string]string{}}
		return trial.InOrder(
			func() error { return history(ctx, client, prefix) },
			func() error { return consumer.catchesUp(ctx, client) },
			func() error { return pair(ctx, client, prefix, "two") },
			// After the first of the two changes of one transaction, the worst moment.
			func() error { return consumer.crashesAfter(ctx, 1) },
			func() error { return consumer.catchesUp(ctx, client) },
			func() error { return consumer.survivesCompaction(ctx, client) },
		)
	})
}

// history is what there was before the consumer came, and its beginning is gone.
func history(ctx context.Context, client *clientv3.Client, prefix string) error {
	for _, value := range []string{"zero", "one"} {
		if err := pair(ctx, client, prefix, value); err != nil {
			return err
		}
	}
	now, err := client.Get(ctx, prefix)
	if err != nil {
		return err
	}
	_, err = client.Compact(ctx, now.Header.Revision)
	return err
}

// pair changes two keys at one revision: seen apart they would contradict each other.
func pair(ctx context.Context, client *clientv3.Client, prefix, value string) error {
	_, err := client.Txn(ctx).
		Then(clientv3.OpPut(prefix+"left", value), clientv3.OpPut(prefix+"right", value)).
		Commit()
	return err
}

// errCrashed is how a crash is played: nothing after it happens, not even saving.
var errCrashed = errors.New("crashed")

type consumer struct {
	prefix string
	file   string
	state  map[string]string
	// crashIn is how many more events are handled before the crash; negative for none.
	crashIn int
}

// crashesAfter follows until the crash, which must come.
func (c *consumer) crashesAfter(ctx context.Context, events int) error {
	c.crashIn = events
	err := c.follow(ctx, func() bool { return false })
	if !errors.Is(err, errCrashed) {
		return fmt.Errorf("found %v, expected a crash", err)
	}
	return nil
}

// catchesUp follows until its state is the server's.
func (c *consumer) catchesUp(ctx context.Context, client *clientv3.Client) error {
	c.crashIn = -1
	now, err := client.Get(ctx, c.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	expected := map[string]string{}
	for _, kv := range now.Kvs {
		expected[string(kv.Key)] = string(kv.Value)
	}
	return c.follow(ctx, func() bool { return maps.Equal(c.state, expected) })
}

// survivesCompaction: what it has not read yet is compacted away while it is not running.
func (c *consumer) survivesCompaction(ctx context.Context, client *clientv3.Client) error {
	for _, value := range []string{"missed", "also missed", "the last"} {
		if err := pair(ctx, client, c.prefix, value); err != nil {
			return err
		}
	}
	if _, err := client.Delete(ctx, c.prefix+"left"); err != nil {
		return err
	}
	now, err := client.Get(ctx, c.prefix)
	if err != nil {
		return err
	}
	if _, err := client.Compact(ctx, now.Header.Revision); err != nil {
		return err
	}
	return c.catchesUp(ctx, client)
}

// follow is a run of the consumer, over a connection of its own, until it is satisfied or crashes.
func (c *consumer) follow(ctx context.Context, satisfied func() bool) error {
	client, err := trial.Connect()
	if err != nil {
		return err
	}
	defer client.Close()
	revision, err := c.load(ctx, client)
	for err == nil && !satisfied() {
		err = c.watch(ctx, client, revision+1, satisfied)
		if errors.Is(err, rpctypes.ErrCompacted) {
			revision, err = c.reread(ctx, client)
		}
	}
	return err
}

func (c *consumer) watch(ctx context.Context, client *clientv3.Client, from int64, satisfied func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for answer := range client.Watch(ctx, c.prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if err := answer.Err(); err != nil {
			return err
		}
		var last int64
		for _, event := range answer.Events {
			if c.crashIn == 0 {
				return errCrashed
			}
			c.crashIn--
			c.handle(event)
			last = event.Kv.ModRevision
		}
		if last == 0 {
			continue
		}
		// Answers hold whole revisions, so with the last event its revision is complete.
		if err := c.save(last); err != nil {
			return err
		}
		if satisfied() {
			return nil
		}
	}
	return errors.New("the watch ended")
}

func (c *consumer) handle(event *clientv3.Event) {
	if event.Type == clientv3.EventTypeDelete {
		delete(c.state, string(event.Kv.Key))
	} else {
		c.state[string(event.Kv.Key)] = string(event.Kv.Value)
	}
}

// load finds out how far the consumer has come. A new one begins with the state as it is.
func (c *consumer) load(ctx context.Context, client *clientv3.Client) (int64, error) {
	text, err := os.ReadFile(c.file)
	if errors.Is(err, os.ErrNotExist) {
		return c.reread(ctx, client)
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// reread replaces the state by the server's; what is watched from then on begins behind it.
func (c *consumer) reread(ctx context.Context, client *clientv3.Client) (int64, error) {
	now, err := client.Get(ctx, c.prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	clear(c.state)
	for _, kv := range now.Kvs {
		c.state[string(kv.Key)] = string(kv.Value)
	}
	return now.Header.Revision, c.save(now.Header.Revision)
}

// save replaces the file as a whole: half a number would be worse than an old one.
func (c *consumer) save(revision int64) error {
	fresh := c.file + ".new"
	if err := os.WriteFile(fresh, []byte(strconv.FormatInt(revision, 10)), 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, c.file)
}
