// Money is moved between accounts by many at once, with software transactional memory: the function is run
// again whenever what it read has changed meanwhile. At every moment the sum is the same, and no account is
// ever overdrawn.
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/tidelock/tidelock/examples/go-etcd/internal/trial"
)

const (
	accounts          = 5
	openingBalance    = 100
	tellers           = 6
	transfersOfTeller = 15
)

var errNotEnough = errors.New("not enough money")

func main() {
	trial.Main(func(ctx context.Context, client *clientv3.Client, prefix string) error {
		bank := bank{client: client, prefix: prefix}
		if err := bank.open(ctx); err != nil {
			return err
		}
		work, stop := context.WithCancel(ctx)
		audit := make(chan error, 1)
		go func() { audit <- bank.audit(work) }()

		results := make(chan error, tellers)
		for range tellers {
			go func() { results <- bank.tell(ctx) }()
		}
		var failed error
		for range tellers {
			failed = errors.Join(failed, <-results)
		}
		stop()
		if err := trial.First(failed, <-audit); err != nil {
			return err
		}
		return trial.InOrder(
			func() error { return bank.check(ctx) },
			bank.audited,
			func() error { return bank.refuses(ctx) },
		)
	})
}

type bank struct {
	client *clientv3.Client
	prefix string
	audits atomic.Int64
}

func (b *bank) account(number int) string { return b.prefix + strconv.Itoa(number) }

func (b *bank) open(ctx context.Context) error {
	for number := range accounts {
		if _, err := b.client.Put(ctx, b.account(number), strconv.Itoa(openingBalance)); err != nil {
			return err
		}
	}
	return nil
}

// transfer reads both accounts and writes both, or does nothing. Both are fetched together first: this isolation reads
// one key after the other at the revision of the first, from whichever member is asked, and a member that has not got
// that far refuses ("required revision is a future revision").
func (b *bank) transfer(ctx context.Context, from, to string, amount int) error {
	_, err := concurrency.NewSTM(b.client, func(stm concurrency.STM) error {
		source, err := strconv.Atoi(stm.Get(from))
		if err != nil {
			return err
		}
		sink, err := strconv.Atoi(stm.Get(to))
		if err != nil {
			return err
		}
		if source < amount {
			return errNotEnough
		}
		stm.Put(from, strconv.Itoa(source-amount))
		stm.Put(to, strconv.Itoa(sink+amount))
		return nil
	},
		concurrency.WithIsolation(concurrency.SerializableSnapshot),
		concurrency.WithPrefetch(from, to),
		concurrency.WithAbortContext(ctx),
	)
	return err
}

func (b *bank) tell(ctx context.Context) error {
	for range transfersOfTeller {
		from := rand.IntN(accounts)
		to := (from + 1 + rand.IntN(accounts-1)) % accounts
		err := b.transfer(ctx, b.account(from), b.account(to), 1+rand.IntN(60))
		if err != nil && !errors.Is(err, errNotEnough) {
			return err
		}
	}
	return nil
}

// audit reads all accounts at once, over and over, while money moves.
func (b *bank) audit(ctx context.Context) error {
	for ctx.Err() == nil {
		err := b.check(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		b.audits.Add(1)
	}
	return nil
}

func (b *bank) audited() error {
	if b.audits.Load() == 0 {
		return errors.New("no audit was finished while money moved")
	}
	return nil
}

// check reads all accounts at one revision.
func (b *bank) check(ctx context.Context) error {
	all, err := b.client.Get(ctx, b.prefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	sum := 0
	for _, account := range all.Kvs {
		balance, err := strconv.Atoi(string(account.Value))
		if err != nil {
			return err
		}
		if balance < 0 {
			return fmt.Errorf("account %s is overdrawn: %d", account.Key, balance)
		}
		sum += balance
	}
	return trial.Same(fmt.Sprintf("the sum at revision %d", all.Header.Revision), sum, accounts*openingBalance)
}

func (b *bank) refuses(ctx context.Context) error {
	err := b.transfer(ctx, b.account(0), b.account(1), accounts*openingBalance+1)
	if !errors.Is(err, errNotEnough) {
		return fmt.Errorf("a transfer of more than there is: found %v, expected %v", err, errNotEnough)
	}
	return b.check(ctx)
}
