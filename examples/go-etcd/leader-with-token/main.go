// A worker that does its work only while it leads, and hands every result over with a token that tells late
// results apart. The usual short version of this goes wrong in three ways, which are put right here:
//
//   - It asks "who leads?" after it won and takes the token from the answer. By then that may be somebody
//     else. The winner's own token is Election.Rev.
//   - It works on although its session is over. Session.Done must end the work.
//   - It resigns with the context that may have been the reason to stop. A cancelled context resigns nothing,
//     and the next leader waits for the lease to run out.
//
// The observer needs no lease that it keeps alive for nothing either: it ends its session.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

const timeToLive = 10

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		office := prefix + "leader"
		ledger := &ledger{}
		if err := twoTerms(ctx, client, office, ledger); err != nil {
			return err
		}
		if err := lostSession(ctx, client, office, ledger); err != nil {
			return err
		}
		if ledger.refused == 0 {
			return errors.New("no late result was refused")
		}
		return nil
	})
}

// twoTerms lets two workers lead one after the other; the first is told to stop while it works.
func twoTerms(ctx context.Context, client *clientv3.Client, office string, ledger *ledger) error {
	shutdown, stop := context.WithCancel(ctx)
	defer stop()
	working := make(chan int64, 1)
	first := make(chan error, 1)
	go func() {
		first <- lead(shutdown, client, office, "first", func(term context.Context, token int64) error {
			working <- token
			<-term.Done()
			return nil
		})
	}()
	oldToken := <-working
	if err := ledger.accept(oldToken); err != nil {
		return err
	}
	if err := observed(ctx, client, office, "first", oldToken); err != nil {
		return err
	}
	stop()
	if err := <-first; err != nil {
		return err
	}
	// It resigned in spite of the cancelled context: the second does not wait for a lease to run out.
	began := time.Now()
	err := lead(ctx, client, office, "second", func(_ context.Context, token int64) error {
		if waited := time.Since(began); waited > timeToLive*time.Second/2 {
			return fmt.Errorf("elected only after %s", waited)
		}
		if err := ledger.accept(token); err != nil {
			return err
		}
		if err := observed(ctx, client, office, "second", token); err != nil {
			return err
		}
		// A result of the first that was on its way all the time.
		if err := ledger.accept(oldToken); !errors.Is(err, errLate) {
			return fmt.Errorf("a late result: found %v, expected %v", err, errLate)
		}
		return nil
	})
	return err
}

// lostSession takes the lease away from under a leader: its work must end although nobody told it to.
func lostSession(ctx context.Context, client *clientv3.Client, office string, ledger *ledger) error {
	return lead(ctx, client, office, "third", func(term context.Context, token int64) error {
		if err := ledger.accept(token); err != nil {
			return err
		}
		holder, err := client.Get(ctx, office, clientv3.WithFirstCreate()...)
		if err != nil {
			return err
		}
		if _, err := client.Revoke(ctx, clientv3.LeaseID(holder.Kvs[0].Lease)); err != nil {
			return err
		}
		select {
		case <-term.Done():
			return nil
		case <-time.After(20 * time.Second):
			return errors.New("the work went on without a lease")
		}
	})
}

// lead waits for the office and works until it is done, told to stop, or no longer leads.
func lead(ctx context.Context, client *clientv3.Client, office, name string, work func(context.Context, int64) error) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return err
	}
	defer session.Close()
	election := concurrency.NewElection(session, office)
	if err := election.Campaign(ctx, name); err != nil {
		return err
	}
	term, over := context.WithCancel(ctx)
	defer over()
	go func() {
		select {
		case <-session.Done():
			over()
		case <-term.Done():
		}
	}()
	workErr := work(term, election.Rev())
	// A context of its own: the one of the caller may be what ended the work.
	goodbye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(workErr, election.Resign(goodbye))
}

// observed waits until an observer sees this leader, with the token that it was given itself.
func observed(ctx context.Context, client *clientv3.Client, office, name string, token int64) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return err
	}
	defer session.Close()
	look, enough := context.WithTimeout(ctx, 15*time.Second)
	defer enough()
	for answer := range concurrency.NewElection(session, office).Observe(look) {
		if string(answer.Kvs[0].Value) == name {
			return trial.Same("the token as others see it", answer.Kvs[0].CreateRevision, token)
		}
	}
	return fmt.Errorf("%s was not observed as the leader", name)
}

var errLate = errors.New("a newer leader has been at work")

// ledger stands for what the leader works on. It remembers the largest token and refuses smaller ones.
type ledger struct {
	mutex   sync.Mutex
	largest int64
	refused int
}

func (l *ledger) accept(token int64) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if token < l.largest {
		l.refused++
		return errLate
	}
	l.largest = token
	return nil
}
