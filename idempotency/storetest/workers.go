package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/consumer"
	"github.com/redrive-go/redrive/idempotency"
)

const (
	workers  = 8
	messages = 12
)

func workerClauses() []clause {
	return []clause{
		{"race", "of workers that claim a key at the same time, exactly one has it", func(t *trial) error {
			return t.race(long)
		}},
		{"race for what has ended", "of workers that claim a key at the same time whose lease has ended, exactly one has it", func(t *trial) error {
			for i := range messages {
				if err := t.begin(t.claim(raced(i)), t.short(), idempotency.Claimed); err != nil {
					return err
				}
			}
			t.pass()
			return t.race(long)
		}},
		{"once", "workers that all get every message run the handler once for each, and again where it failed", once},
		{"killed", "the claim of a killed process keeps the others out until its lease ends, and no longer", killed},
	}
}

func raced(i int) string { return fmt.Sprintf("raced %d", i) }

// race lets workers claim the same keys and counts who gets them.
func (t *trial) race(lease time.Duration) error {
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	got := map[string]int{}
	for range workers {
		store := t.again()
		claims := make([]idempotency.Claim, messages)
		for i := range claims {
			claims[i] = t.claim(raced(i))
		}
		wg.Go(func() {
			for _, c := range claims {
				record, err := store.Begin(t.Context(), c, lease)
				mu.Lock()
				errs = append(errs, err)
				if record.State == idempotency.Claimed {
					got[c.Key]++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for i := range messages {
		if n := got[raced(i)]; n != 1 {
			errs = append(errs, fmt.Errorf("%d of %d workers claimed %q, want 1", n, workers, raced(i)))
		}
	}
	return errors.Join(errs...)
}

// once gives every message to every worker, until each has acked it. The
// first run of every third message fails.
func once(t *trial) error {
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		errs []error
	)
	runs, effects := map[string]int{}, map[string]int{}
	handler := func(_ context.Context, m *brokers.Message) error {
		mu.Lock()
		defer mu.Unlock()
		runs[m.ID]++
		if runs[m.ID] == 1 && len(m.Body)%3 == 0 {
			return errors.New("the first run fails")
		}
		effects[m.ID]++
		return nil
	}
	for range workers {
		middleware, err := idempotency.Once(t.again(), idempotency.Options{Retention: long, Redrive: -1, Lease: time.Minute})
		if err != nil {
			return err
		}
		h := middleware(handler)
		wg.Go(func() {
			for i := range messages {
				err := deliver(t.Context(), h, i)
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for i := range messages {
		id := message(i).ID
		if effects[id] != 1 {
			errs = append(errs, fmt.Errorf("message %s had its effect %d times in %d runs, want once", id, effects[id], runs[id]))
		}
	}
	return errors.Join(errs...)
}

func message(i int) brokers.Message {
	return brokers.Message{ID: fmt.Sprintf("order-%d", i), Topic: "orders", Body: make([]byte, i)}
}

// deliver hands a message to h until it is acked.
func deliver(ctx context.Context, h consumer.Handler, i int) error {
	const tries = 20
	var err error
	for range tries {
		m := message(i)
		if err = h(ctx, &m); err == nil {
			return nil
		}
	}
	return fmt.Errorf("message %d was not acked in %d deliveries: %w", i, tries, err)
}

const (
	victimAddress = "REDRIVE_STORETEST_ADDRESS"
	victimLease   = "REDRIVE_STORETEST_LEASE"
	victimKey     = "killed"
	victimReady   = "claimed"
)

// Victim returns at once, except in a process that the suite has started to
// kill it: there it claims a key and waits for its end. Call it first in
// TestMain, with a function that opens the store at an address as returned by
// Harness.Address.
func Victim(open func(address string) (idempotency.Store, error)) {
	address, ok := os.LookupEnv(victimAddress)
	if !ok {
		return
	}
	if err := fallVictim(open, address); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func fallVictim(open func(address string) (idempotency.Store, error), address string) error {
	lease, err := time.ParseDuration(os.Getenv(victimLease))
	if err != nil {
		return err
	}
	store, err := open(address)
	if err != nil {
		return err
	}
	record, err := store.Begin(context.Background(), idempotency.Claim{Key: victimKey, Token: "victim"}, lease)
	if err != nil || record.State != idempotency.Claimed {
		return fmt.Errorf("the claim of the victim: %q, %v", record.State, err)
	}
	fmt.Println(victimReady)
	_, err = io.Copy(io.Discard, os.Stdin) // ends with the parent
	return err
}

func killed(t *trial) error {
	if t.harness.Address == nil {
		return skip("no other process can reach the store")
	}
	lease := 10 * t.harness.Unit
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(t.Context(), executable)
	cmd.Env = append(os.Environ(), victimAddress+"="+t.harness.Address(t.TB, t.store), victimLease+"="+lease.String())
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	asked := time.Now()
	said, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if said != victimReady+"\n" {
		return fmt.Errorf("the process to be killed said %q, %v", said, err)
	}
	record, err := t.store.Begin(t.Context(), t.claim(victimKey), long)
	late := time.Since(asked) > lease
	if err != nil || record.State != idempotency.InProgress && !late {
		return fmt.Errorf("after the kill the key is %q, %v, want %q", record.State, err, idempotency.InProgress)
	}
	if record.State == idempotency.Claimed {
		return nil
	}
	t.harness.Pass(lease + t.harness.Unit)
	return t.begin(t.claim(victimKey), long, idempotency.Claimed)
}
