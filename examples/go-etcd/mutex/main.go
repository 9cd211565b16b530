// Several processes share one lock, and with it a file that nothing else protects. Each grant has a token, the
// revision at which its key was created, and the file takes no write with an older token than it has seen: that
// is what keeps it whole when a holder is paused, loses its lease and wakes up again.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

const (
	processes       = 4
	roundsOfProcess = 8
	timeToLive      = 10
)

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		if len(os.Args) == 3 {
			return work(ctx, client, os.Args[1], resource{os.Args[2]})
		}
		dir, err := os.MkdirTemp("", "mutex")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		shared := resource{filepath.Join(dir, "account")}
		if err := os.WriteFile(shared.path, []byte(`{}`), 0o600); err != nil {
			return err
		}
		return trial.InOrder(
			func() error { return exclusion(ctx, prefix+"lock", shared) },
			func() error { return tryLock(ctx, client, prefix+"tried") },
			func() error { return paused(ctx, client, prefix+"paused", shared) },
		)
	})
}

// exclusion runs the processes and counts what they did.
func exclusion(ctx context.Context, lock string, shared resource) error {
	var workers []*exec.Cmd
	for range processes {
		worker := exec.CommandContext(ctx, os.Args[0], lock, shared.path)
		worker.Stderr = os.Stderr
		if err := worker.Start(); err != nil {
			return err
		}
		workers = append(workers, worker)
	}
	var failed error
	for _, worker := range workers {
		failed = errors.Join(failed, worker.Wait())
	}
	if failed != nil {
		return failed
	}
	state, err := shared.read()
	if err != nil {
		return err
	}
	return trial.Same("writes to the file", state.Writes, processes*roundsOfProcess)
}

// work is one process: it takes the lock, changes the file and lets go, again and again.
func work(ctx context.Context, client *clientv3.Client, lock string, shared resource) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, lock)
	for range roundsOfProcess {
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		token, err := token(ctx, client, mutex)
		if err != nil {
			return err
		}
		if err := shared.write(token); err != nil {
			return err
		}
		if err := mutex.Unlock(ctx); err != nil {
			return err
		}
	}
	return nil
}

// token is the revision at which the holder's key was created: later grants have larger ones.
func token(ctx context.Context, client *clientv3.Client, mutex *concurrency.Mutex) (int64, error) {
	key, err := client.Get(ctx, mutex.Key())
	if err != nil {
		return 0, err
	}
	if len(key.Kvs) == 0 {
		return 0, errors.New("the lock was lost before it was used")
	}
	return key.Kvs[0].CreateRevision, nil
}

func tryLock(ctx context.Context, client *clientv3.Client, lock string) error {
	mine, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return err
	}
	defer mine.Close()
	other, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return err
	}
	defer other.Close()
	held, wanted := concurrency.NewMutex(mine, lock), concurrency.NewMutex(other, lock)
	if err := held.TryLock(ctx); err != nil {
		return err
	}
	if err := wanted.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		return fmt.Errorf("trying a held lock: found %v, expected %v", err, concurrency.ErrLocked)
	}
	return trial.InOrder(
		func() error { return held.Unlock(ctx) },
		func() error { return wanted.TryLock(ctx) },
		func() error { return wanted.Unlock(ctx) },
	)
}

// paused plays the case that no lock can prevent: a holder stops for longer than its lease lives, another one
// takes over, and then the first one goes on, sure that it still holds the lock.
func paused(ctx context.Context, client *clientv3.Client, lock string, shared resource) error {
	first, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return err
	}
	sleeper := concurrency.NewMutex(first, lock)
	if err := sleeper.Lock(ctx); err != nil {
		return err
	}
	old, err := token(ctx, client, sleeper)
	if err != nil {
		return err
	}
	second, err := concurrency.NewSession(client, concurrency.WithTTL(timeToLive))
	if err != nil {
		return err
	}
	defer second.Close()
	next := concurrency.NewMutex(second, lock)
	granted := make(chan error, 1)
	go func() { granted <- next.Lock(ctx) }()
	select {
	case err := <-granted:
		return fmt.Errorf("a held lock was granted again (%v)", err)
	case <-time.After(200 * time.Millisecond):
	}
	// The pause: its lease ends. To wait for that would only make the example slower.
	if _, err := client.Revoke(ctx, first.Lease()); err != nil {
		return err
	}
	if err := <-granted; err != nil {
		return err
	}
	current, err := token(ctx, client, next)
	if err != nil {
		return err
	}
	if current <= old {
		return fmt.Errorf("the later grant has the token %d, the earlier one %d", current, old)
	}
	if err := shared.write(current); err != nil {
		return err
	}
	if err := shared.write(old); !errors.Is(err, errStale) {
		return fmt.Errorf("a write of the paused holder: found %v, expected %v", err, errStale)
	}
	// Where the resource is the key-value store itself, a compare in the same transaction does the same.
	stale, err := client.Txn(ctx).If(sleeper.IsOwner()).Then(clientv3.OpPut(lock+"-data", "stale")).Commit()
	if err != nil {
		return err
	}
	fresh, err := client.Txn(ctx).If(next.IsOwner()).Then(clientv3.OpPut(lock+"-data", "fresh")).Commit()
	if err != nil {
		return err
	}
	err = trial.First(
		trial.Same("a transaction of the paused holder", stale.Succeeded, false),
		trial.Same("a transaction of the holder", fresh.Succeeded, true),
	)
	if err != nil {
		return err
	}
	return next.Unlock(ctx)
}

var errStale = errors.New("a newer token was seen")

// resource is the file. Its write is made of steps that would be lost or mixed if two processes were at it.
type resource struct{ path string }

type state struct {
	Writes int
	Token  int64
}

func (r resource) read() (state, error) {
	var now state
	text, err := os.ReadFile(r.path)
	if err != nil {
		return now, err
	}
	return now, json.Unmarshal(text, &now)
}

func (r resource) write(token int64) error {
	// Somebody else who is in here at the same time is a broken lock: the marker cannot be made twice.
	marker := r.path + ".busy"
	file, err := os.OpenFile(marker, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("two holders at once (token %s): %w", strconv.FormatInt(token, 10), err)
	}
	defer os.Remove(marker)
	defer file.Close()
	now, err := r.read()
	if err != nil {
		return err
	}
	if token < now.Token {
		return errStale
	}
	time.Sleep(2 * time.Millisecond)
	text, err := json.Marshal(state{Writes: now.Writes + 1, Token: token})
	if err != nil {
		return err
	}
	return os.WriteFile(r.path, text, 0o600)
}
