// Three candidates stand for one office: one leads, the others wait in the order of their coming, and an
// observer is told of every change. Leaders leave by resigning and by dying, and each has a larger token.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

const timeToLive = 10

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		office := prefix + "office"
		observer, err := newCandidate(client, office, "observer")
		if err != nil {
			return err
		}
		defer observer.session.Close()
		if _, err := observer.election.Leader(ctx); !errors.Is(err, concurrency.ErrElectionNoLeader) {
			return fmt.Errorf("the leader before anyone stood: found %v, expected %v", err, concurrency.ErrElectionNoLeader)
		}
		seen := observer.election.Observe(ctx)

		var candidates []*candidate
		for _, name := range []string{"alice", "bob", "carol"} {
			next, err := newCandidate(client, office, name)
			if err != nil {
				return err
			}
			candidates = append(candidates, next)
			next.stand(ctx)
			// The order of coming is the order of leading, so each is in the queue before the next comes.
			if err := queued(ctx, client, office, len(candidates)); err != nil {
				return err
			}
		}
		return succession(ctx, client, seen, candidates)
	})
}

func succession(ctx context.Context, client *clientv3.Client, seen <-chan *clientv3.GetResponse, candidates []*candidate) error {
	alice, bob, carol := candidates[0], candidates[1], candidates[2]
	if err := inOffice(alice, seen); err != nil {
		return err
	}
	select {
	case <-bob.elected:
		return errors.New("two leaders at once")
	case <-carol.elected:
		return errors.New("two leaders at once")
	case <-time.After(200 * time.Millisecond):
	}
	err := trial.InOrder(
		// A leader may change what it proclaims without a new election.
		func() error { return alice.election.Proclaim(ctx, "alice again") },
		func() error { return expect(seen, "alice again") },
		func() error { return alice.election.Resign(ctx) },
		func() error { return inOffice(bob, seen) },
	)
	if err != nil {
		return err
	}
	// Bob dies: his lease ends, and his key with it.
	if _, err := client.Revoke(ctx, bob.session.Lease()); err != nil {
		return err
	}
	if err := inOffice(carol, seen); err != nil {
		return err
	}
	// He is told, by his session, and what he proclaims now is refused.
	select {
	case <-bob.session.Done():
	case <-time.After(15 * time.Second):
		return errors.New("a session whose lease was revoked is not done")
	}
	if err := bob.election.Proclaim(ctx, "bob again"); !errors.Is(err, concurrency.ErrElectionNotLeader) {
		return fmt.Errorf("proclaiming without leading: found %v, expected %v", err, concurrency.ErrElectionNotLeader)
	}
	if !(alice.token < bob.token && bob.token < carol.token) {
		return fmt.Errorf("tokens do not grow: %d, %d, %d", alice.token, bob.token, carol.token)
	}
	return trial.InOrder(
		func() error { return carol.election.Resign(ctx) },
		alice.session.Close,
		carol.session.Close,
	)
}

// inOffice waits until the candidate leads and the observer knows.
func inOffice(c *candidate, seen <-chan *clientv3.GetResponse) error {
	if err := c.leads(); err != nil {
		return err
	}
	return expect(seen, c.name)
}

// candidate stands once. elected gives one result: nil when it leads.
type candidate struct {
	name     string
	session  *concurrency.Session
	election *concurrency.Election
	elected  chan error
	token    int64
}

func newCandidate(client *clientv3.Client, office, name string) (*candidate, error) {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return nil, err
	}
	return &candidate{
		name:     name,
		session:  session,
		election: concurrency.NewElection(session, office),
		elected:  make(chan error, 1),
	}, nil
}

func (c *candidate) stand(ctx context.Context) {
	go func() { c.elected <- c.election.Campaign(ctx, c.name) }()
}

// leads waits until the candidate does, and notes its token.
func (c *candidate) leads() error {
	if err := <-c.elected; err != nil {
		return fmt.Errorf("%s was not elected: %w", c.name, err)
	}
	c.token = c.election.Rev()
	return nil
}

func queued(ctx context.Context, client *clientv3.Client, office string, count int) error {
	return trial.Eventually(ctx, fmt.Sprintf("%d candidates", count), func() (bool, error) {
		keys, err := client.Get(ctx, office, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return false, err
		}
		return keys.Count == int64(count), nil
	})
}

// expect waits until the observer sees this leader. What was true only for a moment it may not see; what
// stays it does.
func expect(seen <-chan *clientv3.GetResponse, leader string) error {
	last := "nobody"
	for {
		select {
		case answer, open := <-seen:
			if !open {
				return errors.New("the observation ended")
			}
			last = string(answer.Kvs[0].Value)
			if last == leader {
				return nil
			}
		case <-time.After(15 * time.Second):
			return fmt.Errorf("observed %s, expected %s", last, leader)
		}
	}
}
