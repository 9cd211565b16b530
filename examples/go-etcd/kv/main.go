// Reads and writes keys, and changes several at once if conditions hold. At the end eight writers raise one
// counter by compare-and-swap, and not one step is lost.
package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/clientv3util"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

const (
	writers        = 8
	stepsPerWriter = 15
)

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		return trial.InOrder(
			func() error { return keys(ctx, client, prefix) },
			func() error { return transactions(ctx, client, prefix) },
			func() error { return counter(ctx, client, prefix+"counter") },
		)
	})
}

func keys(ctx context.Context, client *clientv3.Client, prefix string) error {
	first, err := client.Put(ctx, prefix+"color", "blue")
	if err != nil {
		return err
	}
	second, err := client.Put(ctx, prefix+"color", "green", clientv3.WithPrevKV())
	if err != nil {
		return err
	}
	now, err := client.Get(ctx, prefix+"color")
	if err != nil {
		return err
	}
	// Every change has a revision, and what was there at an earlier one can still be read.
	before, err := client.Get(ctx, prefix+"color", clientv3.WithRev(first.Header.Revision))
	if err != nil {
		return err
	}
	gone, err := client.Delete(ctx, prefix+"color")
	if err != nil {
		return err
	}
	absent, err := client.Get(ctx, prefix+"color")
	if err != nil {
		return err
	}
	return trial.First(
		trial.Same("one put is one revision", second.Header.Revision, first.Header.Revision+1),
		trial.Same("the value before", string(second.PrevKv.Value), "blue"),
		trial.Same("the value now", string(now.Kvs[0].Value), "green"),
		trial.Same("the version now", now.Kvs[0].Version, 2),
		trial.Same("the value then", string(before.Kvs[0].Value), "blue"),
		trial.Same("deleted", gone.Deleted, 1),
		trial.Same("keys left", absent.Count, 0),
	)
}

func transactions(ctx context.Context, client *clientv3.Client, prefix string) error {
	once := func(value string) (bool, error) {
		answer, err := client.Txn(ctx).
			If(clientv3util.KeyMissing(prefix+"once")).
			Then(clientv3.OpPut(prefix+"once", value), clientv3.OpPut(prefix+"by", value)).
			Commit()
		if err != nil {
			return false, err
		}
		return answer.Succeeded, nil
	}
	won, err := once("alice")
	if err != nil {
		return err
	}
	lost, err := once("bob")
	if err != nil {
		return err
	}
	both, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	if len(both.Kvs) != 2 {
		return fmt.Errorf("found %d keys, expected 2", len(both.Kvs))
	}
	return trial.First(
		trial.Same("the first one wins", won, true),
		trial.Same("the second one does not", lost, false),
		trial.Same("by", string(both.Kvs[0].Value), "alice"),
		trial.Same("both puts are one change", both.Kvs[0].ModRevision, both.Kvs[1].ModRevision),
	)
}

// counter is raised by several writers at once, each of which writes only over what it has read.
func counter(ctx context.Context, client *clientv3.Client, key string) error {
	if _, err := client.Put(ctx, key, "0"); err != nil {
		return err
	}
	results := make(chan error, writers)
	for range writers {
		go func() {
			for range stepsPerWriter {
				if err := raise(ctx, client, key); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	var failed error
	for range writers {
		failed = errors.Join(failed, <-results)
	}
	if failed != nil {
		return failed
	}
	end, err := client.Get(ctx, key)
	if err != nil {
		return err
	}
	return trial.Same("the counter", string(end.Kvs[0].Value), strconv.Itoa(writers*stepsPerWriter))
}

func raise(ctx context.Context, client *clientv3.Client, key string) error {
	for {
		read, err := client.Get(ctx, key)
		if err != nil {
			return err
		}
		value, err := strconv.Atoi(string(read.Kvs[0].Value))
		if err != nil {
			return err
		}
		answer, err := client.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(key), "=", read.Kvs[0].ModRevision)).
			Then(clientv3.OpPut(key, strconv.Itoa(value+1))).
			Commit()
		if err != nil {
			return err
		}
		if answer.Succeeded {
			return nil
		}
	}
}
