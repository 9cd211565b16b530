// Package trial is how every program of this module starts and ends: it connects to ENDPOINTS, runs the
// program's body under a deadline, says "ok" or what went wrong, and turns that into the exit status.
//
// What holds: a run works under a key prefix of its own, so programs may run one after another or at the
// same time against one server, and nothing is left behind when the body succeeds.
package trial

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// deadline is how long a whole program may take; all of them need a few seconds.
const deadline = 60 * time.Second

// patience is how long Eventually waits for something that must happen.
const patience = 20 * time.Second

// Main runs the body of a program with a client and a prefix for its keys, and ends the process.
func Main(body func(ctx context.Context, client *clientv3.Client, prefix string) error) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client, err := Connect()
	if err != nil {
		end(fmt.Errorf("connecting: %w", err))
	}
	prefix := "examples/" + name() + "/"
	err = body(ctx, client, prefix)
	if err == nil {
		_, err = client.Delete(ctx, prefix, clientv3.WithPrefix())
	}
	client.Close()
	end(err)
}

func end(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
	fmt.Println("ok")
	os.Exit(0)
}

// Endpoints are the servers' addresses, from ENDPOINTS (host:port, comma separated).
func Endpoints() []string {
	list := os.Getenv("ENDPOINTS")
	if list == "" {
		list = "127.0.0.1:2379"
	}
	return strings.Split(list, ",")
}

// Connect makes a client of all endpoints.
func Connect() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:   Endpoints(),
		DialTimeout: 5 * time.Second,
		// What goes wrong is returned as an error; the client's own warnings would only repeat it.
		Logger: zap.NewNop(),
	})
}

// name is different in every run.
func name() string {
	var bytes [6]byte
	if _, err := rand.Read(bytes[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(bytes[:])
}

// Same is an error unless both are equal.
func Same[T comparable](what string, found, expected T) error {
	if found != expected {
		return fmt.Errorf("%s: found %v, expected %v", what, found, expected)
	}
	return nil
}

// First returns the first error there is, so that checks of what is already known read as a list. Things to do
// are not for it: all of them would be done, whatever became of the first.
func First(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// InOrder does one thing after the other and stops at the first that fails.
func InOrder(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Eventually waits until the condition holds.
func Eventually(ctx context.Context, what string, condition func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		holds, err := condition()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if holds {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: did not happen within %s", what, patience)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
