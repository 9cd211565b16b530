// Leases: keys that live as long as somebody renews them. One lease is renewed and stays beyond its time, one
// is not and ends with all its keys at one revision, one is given back.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

// timeToLive is short so that the example is; services take 10 s or more.
const timeToLive = 2

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		kept, err := client.Grant(ctx, timeToLive)
		if err != nil {
			return err
		}
		renewals, err := client.KeepAlive(ctx, kept.ID)
		if err != nil {
			return err
		}
		if _, err := client.Put(ctx, prefix+"kept", "here", clientv3.WithLease(kept.ID)); err != nil {
			return err
		}
		return trial.InOrder(
			func() error { return expiry(ctx, client, prefix) },
			func() error { return renewal(ctx, client, prefix, renewals) },
			func() error { return revocation(ctx, client, prefix, kept.ID, renewals) },
		)
	})
}

// expiry watches two keys of a lease that nobody renews.
func expiry(ctx context.Context, client *clientv3.Client, prefix string) error {
	lease, err := client.Grant(ctx, timeToLive)
	if err != nil {
		return err
	}
	var last int64
	for _, key := range []string{"gone/1", "gone/2"} {
		put, err := client.Put(ctx, prefix+key, "here", clientv3.WithLease(lease.ID))
		if err != nil {
			return err
		}
		last = put.Header.Revision
	}
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	var ends []int64
	for answer := range client.Watch(watch, prefix+"gone/", clientv3.WithPrefix(), clientv3.WithRev(last+1)) {
		if err := answer.Err(); err != nil {
			return err
		}
		for _, event := range answer.Events {
			if event.Type == clientv3.EventTypeDelete {
				ends = append(ends, event.Kv.ModRevision)
			}
		}
		if len(ends) == 2 {
			break
		}
	}
	if len(ends) != 2 {
		return fmt.Errorf("the watch ended with %d deletions", len(ends))
	}
	over, err := client.TimeToLive(ctx, lease.ID)
	if err != nil {
		return err
	}
	return trial.First(
		trial.Same("the keys go at one revision", ends[0], ends[1]),
		trial.Same("the time left of a lease that is over", over.TTL, -1),
	)
}

// renewal comes after expiry, which took longer than the kept lease would have lived by itself.
func renewal(ctx context.Context, client *clientv3.Client, prefix string, renewals <-chan *clientv3.LeaseKeepAliveResponse) error {
	renewed := 0
	err := trial.Eventually(ctx, "three renewals", func() (bool, error) {
		select {
		case answer, open := <-renewals:
			if !open {
				return false, errors.New("the lease was lost")
			}
			if err := trial.Same("the renewed time to live", answer.TTL, timeToLive); err != nil {
				return false, err
			}
			renewed++
		default:
		}
		return renewed >= 3, nil
	})
	if err != nil {
		return err
	}
	there, err := client.Get(ctx, prefix+"kept")
	if err != nil {
		return err
	}
	return trial.Same("keys of the kept lease", there.Count, 1)
}

func revocation(ctx context.Context, client *clientv3.Client, prefix string, id clientv3.LeaseID, renewals <-chan *clientv3.LeaseKeepAliveResponse) error {
	if _, err := client.Revoke(ctx, id); err != nil {
		return err
	}
	gone, err := client.Get(ctx, prefix+"kept")
	if err != nil {
		return err
	}
	if err := trial.Same("keys of the revoked lease", gone.Count, 0); err != nil {
		return err
	}
	if _, err := client.KeepAliveOnce(ctx, id); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("renewing a revoked lease: found %v, expected %v", err, rpctypes.ErrLeaseNotFound)
	}
	// Whoever keeps it alive learns that it is gone: the channel is closed. That is the signal to stop work.
	for {
		select {
		case _, open := <-renewals:
			if !open {
				return nil
			}
		case <-time.After(10 * time.Second):
			return errors.New("the keep-alive channel was not closed")
		}
	}
}
